"""Exact Gaussian-process regression with the kernel of a network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from netsor import arguments
from netsor.build.network import as_inputs
from netsor.errors import DataError
from netsor.gp.factor import (
    InferenceError,
    check_noise,
    cholesky,
    likelihood,
    needed_jitter,
    root,
    solve,
    solve_half,
    warn_of_jitter,
)
from netsor.gp.targets import arrange, as_kernel, check_consistent, output_sizes
from netsor.gp.unchanged import Unchanged
from netsor.limits import KernelFn, Result

if TYPE_CHECKING:
    from netsor.gp.stores.model import StoredGP
    from netsor.gp.stores.store import Store

__all__ = ["GP", "Prediction", "fit", "sample"]

MOST_SAMPLES = 2**31  # functions drawn at a time
ROUNDING = 1e-7  # of the prior variance: what we forgive a posterior variance below zero


@dataclass(frozen=True)
class Prediction:
    """Marginals of a Gaussian process.

    mean   (rows,), or (rows, d) if the targets have d columns
    std    (rows,): standard deviations, the same for all columns
    cov    (rows, rows) if it was asked for
    sizes  rows per input
    """

    mean: np.ndarray
    std: np.ndarray
    cov: np.ndarray | None
    sizes: tuple[int, ...]

    def by_input(self) -> list[Prediction]:
        """One prediction for each input, whatever number of outputs it has."""
        parts, start = [], 0
        for size in self.sizes:
            cut = slice(start, start + size)
            cov = None if self.cov is None else self.cov[cut, cut]
            parts.append(Prediction(self.mean[cut], self.std[cut], cov, (size,)))
            start += size
        return parts


@dataclass(frozen=True, repr=False)
class GP:
    """A network's Gaussian process given data; made by `fit`.

    lower   the Cholesky factor of K + nugget, nugget = max(noise, jitter)
    alpha   (K + nugget)^-1 (y - prior mean)
    exact   whether no part of the kernel is sampled
    """

    kernel: KernelFn
    params: dict[str, float]
    x: list[Any]
    sizes: tuple[int, ...]
    y: np.ndarray
    flat: bool
    noise: np.ndarray
    jitter: float
    exact: bool
    lower: np.ndarray = field(compare=False)
    alpha: np.ndarray = field(compare=False)
    unchanged: Unchanged = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unchanged", Unchanged(self.kernel))

    def __repr__(self) -> str:
        return f"<GP of {self.kernel.net.name} on {len(self.x)} inputs, {len(self.y)} targets>"

    def _repr_html_(self) -> str:
        from html import escape

        from netsor.display import panel, table

        left = self.leave_one_out()
        wrong = (left.mean.reshape(len(self.y), -1) - self.y) / left.std[:, None]
        facts = [
            ("log marginal likelihood", f"{self.log_marginal_likelihood():.6g}"),
            ("noise, and what was added to the diagonal", f"{self.noise.max():.3g}, {self.nugget.max():.3g}"),
            ("each target predicted from all others", f"{np.sqrt(np.mean(wrong**2)):.3g} deviations away"),
            ("kernel", "exact" if self.exact else "sampled in part"),
        ]
        facts += [(f"variance of {escape(name)}", f"{value:.4g}") for name, value in self.params.items()]
        return panel(repr(self)[1:-1], table((), facts))

    @property
    def nugget(self) -> np.ndarray:
        """What was added to the diagonal of the kernel matrix."""
        return np.maximum(self.noise, self.jitter)

    def log_marginal_likelihood(self) -> float:
        """log p(y | x), summed over the columns of y."""
        return likelihood(self.lower, self.alpha, self.centred)

    @property
    def centred(self) -> np.ndarray:
        """The targets without the means that the network's outputs have before any data."""
        return self.y - self.kernel.mean(self.x)[:, None]

    def mean(self, x: Any) -> np.ndarray:
        """The posterior mean alone, which is cheaper than `predict`."""
        inputs = as_inputs(x)
        self.unchanged.check()
        if not self.exact:
            return self.predict(inputs).mean
        found = self.kernel(inputs, self.x, params=self.params) @ self.alpha
        return self._shaped(self.kernel.mean(inputs)[:, None] + found)

    def predict(self, x: Any, *, cov: bool = False, observed: bool = False) -> Prediction:
        """Mean and standard deviation of the network's outputs, or of noisy observations of them.

        Where the kernel is sampled, all its blocks come from one joint evaluation of training and new
        inputs, so that they belong to one positive matrix.
        """
        inputs = as_inputs(x)
        sizes = output_sizes(self.kernel.net, inputs)
        cross, prior, lower, alpha = self._blocks(inputs, cov)
        half = solve_half(lower, cross.T)
        if cov:
            posterior = prior - half.T @ half
            variance, before = np.diagonal(posterior), np.diagonal(prior)
        else:
            posterior, variance, before = None, prior - np.sum(half**2, axis=0), prior
        variance = checked_variance(variance, before, self.jitter)
        if observed:
            extra = self._scalar_noise()
            variance = variance + extra
            posterior = None if posterior is None else posterior + extra * np.eye(len(posterior))
        mean = self.kernel.mean(inputs)[:, None] + cross @ alpha
        return Prediction(self._shaped(mean), np.sqrt(variance), posterior, sizes)

    def sample(self, x: Any, samples: int = 1, seed: Any = None, *, observed: bool = False) -> np.ndarray:
        """Functions drawn from the posterior at x: (samples, rows), or (samples, rows, d)."""
        found = self.predict(x, cov=True, observed=observed)
        assert found.cov is not None
        mean = found.mean if found.mean.ndim == 2 else found.mean[:, None]
        rng = _random(seed)
        count = arguments.whole("samples", samples, 1, MOST_SAMPLES)
        allowed = len(mean) * (ROUNDING * float(np.abs(found.cov).max(initial=0.0)) + self.jitter)
        factor = root(found.cov, allowed)
        drawn = mean + factor @ rng.standard_normal((count, *mean.shape))
        return drawn[:, :, 0] if self.flat else drawn

    def leave_one_out(self) -> Prediction:
        """Prediction of the targets of each input from all others, without fitting again.

        With B the rows of an input, mean = y_B - P^-1 alpha_B and covariance P^-1, where P is that block
        of (K + nugget)^-1. The noise is part of it. Rasmussen & Williams 2006, section 5.4.2.
        """
        precision = solve(self.lower, np.eye(len(self.y)))
        if max(self.sizes) == 1:
            variance = 1 / np.diagonal(precision)
            return Prediction(
                self._shaped(self.y - variance[:, None] * self.alpha), np.sqrt(variance), None, self.sizes
            )
        means, variances, start = [], [], 0
        for size in self.sizes:
            block = slice(start, start + size)
            lower = cholesky(precision[block, block], 0.0)
            means.append(self.y[block] - solve(lower, self.alpha[block]))
            variances.append(np.diagonal(solve(lower, np.eye(size))))
            start += size
        return Prediction(
            self._shaped(np.concatenate(means)), np.sqrt(np.concatenate(variances)), None, self.sizes
        )

    def save(self, path: str | Path) -> None:
        """Write the model to an .npz file; `ns.gp.load(path, net)` reads it."""
        from netsor.gp.saved import save

        save(self, path)

    def _blocks(self, inputs: list[Any], cov: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Cross covariances, prior covariance (or its diagonal), factor and weights."""
        self.unchanged.check()
        if self.exact:
            cross = self.kernel(inputs, self.x, params=self.params)
            prior = (self.kernel if cov else self.kernel.diag)(inputs, params=self.params)
            return cross, prior, self.lower, self.alpha
        joint = self.kernel(self.x + inputs, params=self.params)
        rows = len(self.y)
        lower = cholesky(joint[:rows, :rows], self.nugget)
        prior = joint[rows:, rows:]
        return joint[rows:, :rows], prior if cov else np.diagonal(prior), lower, solve(lower, self.centred)

    def _scalar_noise(self) -> float:
        if self.noise.ndim:
            raise DataError(
                "the noise of new observations is not known: it was given per target",
                remedy="Predict with observed=False and add the variance of your observations.",
            )
        return float(self.noise)

    def _shaped(self, table: np.ndarray) -> np.ndarray:
        return table[:, 0] if self.flat else table


def checked_variance(variance: np.ndarray, prior: np.ndarray, jitter: float) -> np.ndarray:
    """Variances that rounding took below zero are zero; more than that is an error."""
    if np.any(variance < -(ROUNDING * prior + jitter)):
        raise InferenceError(
            f"a posterior variance is {variance.min():.2g}, further below 0 than rounding explains",
            remedy="The kernel matrix is too near to singular. Give a larger noise.",
        )
    return np.clip(variance, 0.0, None)


@overload
def fit(
    kernel: KernelFn,
    x: Any,
    y: Any,
    *,
    noise: Any = 0.0,
    jitter: float | None = None,
    params: Mapping[str, float] | None = None,
) -> GP: ...
@overload
def fit(
    kernel: Store,
    x: Any,
    *,
    noise: Any = 0.0,
    jitter: float | None = None,
    solver: str = "auto",
    memory: int | None = None,
    tol: float = 1e-8,
    rank: int | None = None,
    engine: Any = None,
    progress: bool | None = None,
) -> StoredGP: ...
def fit(
    kernel: Any,
    x: Any,
    y: Any = None,
    *,
    noise: Any = 0.0,
    jitter: float | None = None,
    params: Mapping[str, float] | None = None,
    **solving: Any,
) -> Any:
    """Condition the Gaussian process of a network on data: fit(K, x, y), or fit(store, y).

    kernel  `ns.kernel(net)`; a network with several outputs per input has several rows per input
    x       array whose first axis runs over inputs, or a list, e.g. of sequences of different lengths
    y       one target per row, or a list with the targets of each input; columns are independent targets
    noise   variance of the noise on the targets: a number, or one per row
    jitter  the least that is added to the diagonal; see `netsor.gp.factor` for the default
    params  variances in place of the network's own, as in `K(x, params=...)`

    In memory is one copy of the kernel matrix, and it is refused at once if that does not fit. One in a store
    (`ns.gp.store`) has its inputs with it, and never is in memory:

    solver  "cholesky": a factor in the store, block by block; "pcg": preconditioned conjugate gradients;
            "auto": the first up to 30,000 rows
    memory  bytes that may be used, 1 GB by default
    tol     of conjugate gradients: the largest relative residual
    rank    of their preconditioner
    engine  a Dask client or the address of a scheduler, if not this process
    """
    if not isinstance(kernel, KernelFn) and hasattr(kernel, "grid"):
        from netsor.gp.stores.model import fit_store

        if y is not None or params is not None:
            raise DataError("a store has its inputs and variances", remedy="Call ns.gp.fit(store, y).")
        return fit_store(kernel, x, noise=noise, jitter=jitter, **solving)
    if solving or y is None:
        what = f"{next(iter(solving))}=... is for stores" if solving else "there are no targets"
        raise DataError(what, remedy="Call ns.gp.fit(K, x, y), or ns.gp.fit(store, y, solver=...).")
    kernel = as_kernel(kernel)
    inputs = as_inputs(x)
    sizes = output_sizes(kernel.net, inputs)
    table, flat = arrange(y, sizes)
    level = check_noise(noise, len(table))
    if not np.all(level > 0):
        check_consistent(inputs, sizes, table)
    check_room(len(table))
    used = arguments.mapping("params", params, '{"W1": 2.0}')
    result = kernel.evaluate(inputs, params=used)
    least = jitter_of(result) if jitter is None else float(check_noise(jitter))
    if jitter is None:
        warn_of_jitter(least, level, np.diagonal(result.value))
    nugget, shown = np.maximum(level, least), kernel.options.progress
    lower = cholesky(result.value, nugget, overwrite=True, progress=shown)
    alpha = solve(lower, table - kernel.mean(inputs)[:, None])
    return GP(kernel, used, inputs, sizes, table, flat, level, least, result.plan.exact, lower, alpha)


def check_room(rows: int) -> None:
    """Refuse a kernel matrix that the memory of this machine cannot hold."""
    if not hasattr(os, "sysconf"):
        return
    there, needed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 8 * rows**2
    if needed > there:
        raise DataError(
            f"a kernel matrix of {rows} rows takes {needed / 2**30:.3g} GB, and this machine has "
            f"{there / 2**30:.3g} GB",
            remedy='Keep it on disk: ns.gp.fit(ns.gp.store(K, x, "K.zarr"), y).',
        )


def jitter_of(result: Result) -> float:
    """What the diagonal of a kernel matrix is raised by at least."""
    return needed_jitter(np.diagonal(result.value).astype(np.float64), result.bound.rms)


def sample(
    kernel: KernelFn, x: Any, samples: int = 1, seed: Any = None, *, params: Mapping[str, float] | None = None
) -> np.ndarray:
    """Functions drawn from the prior at x: (samples, rows)."""
    result = as_kernel(kernel).evaluate(as_inputs(x), params=params)
    value = np.asarray(result.value, np.float64)
    allowed = len(value) * (ROUNDING * float(np.abs(value).max(initial=0.0))) + jitter_of(result)
    rng = _random(seed)
    noise = rng.standard_normal((arguments.whole("samples", samples, 1, MOST_SAMPLES), len(value)))
    return as_kernel(kernel).mean(as_inputs(x)) + noise @ root(value, allowed).T


def _random(seed: Any) -> np.random.Generator:
    """Random numbers of a seed; None: other ones each time."""
    return np.random.default_rng(None if seed is None else arguments.seed(seed))
