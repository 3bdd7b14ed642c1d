"""Kernel matrices as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netsor.errors import DataError
from netsor.limits import Result
from netsor.plots.panels import heat_map
from netsor.plots.style import Picture, picture

__all__ = ["as_correlation", "kernel_map", "values_of"]

MOST_LABELS = 48


def kernel_map(
    kernel: Result | np.ndarray,
    labels: Sequence[str] = (),
    title: str = "",
    *,
    breaks: Sequence[int] = (),
    correlation: bool = False,
) -> Picture:
    """A heat map of a kernel matrix, with a label for each row if there are at most 48.

    breaks       rows where a new input begins
    correlation  K_ij / sqrt(K_ii K_jj) in place of K

    >>> import netsor as ns
    >>> from netsor.data import sentences
    >>> first = sentences()[0]
    >>> found = ns.kernel(ns.zoo.simple_rnn()).evaluate([first.vectors])
    >>> ns.plots.kernel_map(found, first.words, "simple RNN", correlation=True)
    <picture: Correlation of the outputs at infinite width, 7 x 7. Largest error of an entry: ...>
    """
    K = values_of(kernel)
    if labels and len(labels) != len(K):
        raise DataError(f"{len(labels)} labels for {len(K)} rows", remedy="Give one label for each row.")
    shown = as_correlation(K) if correlation else K
    what = "Correlation" if correlation else "Covariance"
    told = f"{what} of the outputs at infinite width, {K.shape[0]} x {K.shape[1]}."
    if isinstance(kernel, Result):
        told += (
            f" Largest error of an entry: {kernel.bound.largest:.1e} (largest entry {np.abs(K).max():.3g})."
        )

    def draw(ax: Any) -> str:
        few = labels if len(labels) <= MOST_LABELS else ()
        signed = correlation and shown.min() < 0
        heat_map(
            ax,
            shown,
            few,
            title,
            breaks=breaks,
            scale=what.lower(),
            limits=(-1.0, 1.0) if signed else None,
            cmap="PuOr_r" if signed else "viridis",
            line="#1f2430" if signed else "white",
        )
        if not few:
            ax.set(xlabel="row of the kernel", ylabel="row of the kernel")
        return told

    return picture(draw, (6.2, 5.6))


def values_of(kernel: Result | np.ndarray) -> np.ndarray:
    """The numbers of a kernel matrix."""
    K = kernel.value if isinstance(kernel, Result) else np.asarray(kernel, float)
    if K.ndim != 2 or not K.size or not np.isfinite(K).all():
        raise DataError(
            f"a kernel of shape {K.shape}", remedy="Give a matrix of finite numbers, or a Result."
        )
    return K


def as_correlation(K: np.ndarray) -> np.ndarray:
    """K_ij / sqrt(K_ii K_jj)."""
    if K.shape[0] != K.shape[1] or not (np.diagonal(K) > 0).all():
        raise DataError("the kernel has no correlations", remedy="It takes one set and positive variances.")
    sigma = np.sqrt(np.diagonal(K))
    return K / np.outer(sigma, sigma)
