"""Kernel matrices as heat maps, and what is computed from a kernel matrix before it is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from netsor.errors import DataError
from netsor.limits import Result
from netsor.plots.style import INK, Axes, Picture, colour_bar, picture


def kernel_map(
    kernel: Result | ArrayLike,
    labels: Sequence[str] = (),
    title: str = "",
    *,
    breaks: Sequence[int] = (),
    correlation: bool = False,
) -> Picture:
    """Draw a kernel matrix as a heat map.

    Parameters
    ----------
    kernel
        The kernel, with its errors or without.
    labels
        A name for each row, such as a token. At most 48 are drawn.
    title
        Title of the picture.
    breaks
        Rows where a new input begins; lines are drawn before them.
    correlation
        Whether to draw K_ij / sqrt(K_ii K_jj) in place of K.

    Returns
    -------
    Picture
        The picture; its caption has the largest error, if the errors are given.

    Raises
    ------
    DataError
        If the kernel is no matrix of finite numbers, if the labels do not fit, or without correlations.

    Examples
    --------
    >>> import netsor as ns
    >>> from netsor.data import sentences
    >>> first = sentences()[0]
    >>> K = ns.kernel(ns.zoo.simple_rnn()).evaluate([first.vectors])
    >>> ns.plots.kernel_map(K, first.words, "simple RNN", correlation=True)
    <picture: Correlation of the outputs at infinite width, 7 x 7. Largest error of an entry: ...>
    """
    K = values_of(kernel)
    if labels and len(labels) != len(K):
        raise DataError(f"{len(labels)} labels for {len(K)} rows", remedy="Give one label for each row.")
    matrix = as_correlation(K) if correlation else K
    what = "Correlation" if correlation else "Covariance"
    caption = f"{what} of the outputs at infinite width, {K.shape[0]} x {K.shape[1]}."
    if isinstance(kernel, Result):
        largest = f"{kernel.bound.largest:.1e} (largest entry {np.abs(K).max():.3g})"
        caption += f" Largest error of an entry: {largest}."
    # Negative correlations take a diverging map with white at 0.
    signed = {"limits": (-1.0, 1.0), "cmap": "PuOr_r", "line": INK}

    def draw(ax: Axes) -> str:
        words = labels if len(labels) <= 48 else ()
        looks = signed if correlation and matrix.min() < 0 else {}
        heat_map(ax, matrix, words, title, breaks=breaks, scale=what.lower(), **looks)
        if not words:
            ax.set(xlabel="row of the kernel", ylabel="row of the kernel")
        return caption

    return picture(draw, (6.2, 5.6))


def heat_map(
    ax: Axes,
    matrix: np.ndarray,
    labels: Sequence[str] = (),
    title: str = "",
    *,
    breaks: Sequence[int] = (),
    limits: tuple[float | None, float | None] = (None, None),
    scale: str = "",
    line: str = "white",
    cmap: str = "viridis",
) -> None:
    """Draw a matrix with words on both axes, a colour bar, and lines where a new input begins."""
    image = ax.imshow(matrix, cmap=cmap, interpolation="nearest", vmin=limits[0], vmax=limits[1])
    if labels:
        size = min(7.5, 250 / len(labels))  # points: what fits beside a row
        ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=size)
        ax.set_yticks(range(len(labels)), labels, fontsize=size)
    ax.tick_params(length=0 if labels else 3)
    for row in breaks:
        ax.axhline(row - 0.5, color=line, linewidth=1.3)
        ax.axvline(row - 0.5, color=line, linewidth=1.3)
    ax.set_title(title)
    colour_bar(image, ax, scale)


def values_of(kernel: Result | ArrayLike) -> np.ndarray:
    """The numbers of a kernel matrix."""
    K = kernel.value if isinstance(kernel, Result) else np.asarray(kernel, float)
    if K.ndim != 2 or not K.size or not np.isfinite(K).all():
        remedy = "Give a matrix of finite numbers, or a Result."
        raise DataError(f"a kernel of shape {K.shape}", remedy=remedy)
    return K


def as_correlation(K: np.ndarray) -> np.ndarray:
    """K_ij / sqrt(K_ii K_jj)."""
    if K.shape[0] != K.shape[1] or not (np.diagonal(K) > 0).all():
        raise DataError("the kernel has no correlations", remedy="It takes one set and positive variances.")
    sigma = np.sqrt(np.diagonal(K))
    return K / np.outer(sigma, sigma)


def eigenvalue_fractions(K: np.ndarray) -> np.ndarray:
    """Eigenvalues from the largest down, divided by their sum; those below 1e-15 are rounding errors."""
    if K.shape[0] != K.shape[1]:
        raise DataError(f"{K.shape} is no square matrix", remedy="A spectrum is that of one set.")
    eigenvalues = np.linalg.eigvalsh((K + K.T) / 2)[::-1]
    fractions = eigenvalues / eigenvalues.sum()
    return fractions[fractions > 1e-15]
