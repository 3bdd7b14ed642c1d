"""Exact Gaussian-process regression with the kernel of a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular

from netsor import arguments
from netsor.build.joint_program import as_inputs
from netsor.errors import DataError
from netsor.gp.factor import (
    check_noise,
    checked_variance,
    cholesky,
    likelihood,
    log_determinant,
    needed_jitter,
    root,
    solve,
    warn_of_jitter,
)
from netsor.gp.targets import OnData, arrange, as_kernel, check_consistent, output_sizes
from netsor.limits import KernelFn
from netsor.limits.inputs import InputSet

if TYPE_CHECKING:
    from netsor.gp.stores.model import StoredGP
    from netsor.gp.stores.store import Store


@dataclass(frozen=True)
class Prediction:
    """Mean and standard deviation of a Gaussian process at some inputs.

    Attributes
    ----------
    mean : np.ndarray
        (rows,), or (rows, d) if the targets have d columns.
    std : np.ndarray
        (rows,) standard deviations, the same for all columns.
    cov : np.ndarray or None
        (rows, rows) covariance, on request.
    sizes : tuple
        Number of rows of each input.
    """

    mean: np.ndarray
    std: np.ndarray
    cov: np.ndarray | None
    sizes: tuple[int, ...]

    def by_input(self) -> list[Prediction]:
        """Split into one prediction per input; inputs may have different numbers of outputs."""
        cuts = map(slice, np.cumsum(self.sizes) - self.sizes, np.cumsum(self.sizes))
        return [
            Prediction(self.mean[c], self.std[c], None if self.cov is None else self.cov[c, c], (size,))
            for c, size in zip(cuts, self.sizes, strict=True)
        ]


@dataclass(frozen=True, repr=False)
class GP(OnData):
    """A network's Gaussian process given data; made by `fit`.

    Attributes
    ----------
    kernel, params
        K, and the variances that replace the network's.
    x, y, sizes, flat
        Inputs, targets (rows, d), rows of each input, whether targets were given without the axis d.
    noise, jitter
        The diagonal is raised by the larger of the two.
    exact : bool
        Whether no part of the kernel is sampled.
    lower : np.ndarray
        (rows, rows) the Cholesky factor of K + nugget, nugget = max(noise, jitter).
    alpha : np.ndarray
        (rows, d) (K + nugget)^-1 (y - prior mean).
    """

    params: dict[str, float]
    noise: np.ndarray
    jitter: float
    exact: bool
    lower: np.ndarray = field(compare=False)
    alpha: np.ndarray = field(compare=False)

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
        """max(noise, jitter), which was added to the diagonal of the kernel matrix."""
        return np.maximum(self.noise, self.jitter)

    def log_marginal_likelihood(self) -> float:
        """Return log p(y | x), summed over the columns of y."""
        return float(likelihood(log_determinant(self.lower), self.alpha, self.centred))

    def mean(self, x: InputSet) -> np.ndarray:
        """Return the posterior mean of `predict` alone, which is cheaper: (rows,) or (rows, d)."""
        inputs = as_inputs(x)
        self.unchanged.check()
        if not self.exact:
            return self.predict(inputs).mean
        change = self.kernel(inputs, self.x, params=self.params) @ self.alpha
        return self._shaped(self.kernel.mean(inputs)[:, None] + change)

    def predict(self, x: InputSet, *, cov: bool = False, observed: bool = False) -> Prediction:
        """Return mean and standard deviation of the network's outputs, or of noisy observations of them.

        A sampled kernel is evaluated jointly on training and new inputs, so that all blocks belong to one
        positive semi-definite matrix.

        Parameters
        ----------
        x
            New inputs, as for `fit`.
        cov
            Whether to return the covariance of all rows, too.
        observed
            Whether to include the noise in the prediction.

        Returns
        -------
        Prediction
            `mean`, `std` and `cov`.

        Raises
        ------
        InferenceError
            The kernel matrix is nearly singular.
        DataError
            The network has changed since `fit`, or the noise of new observations is not known.
        """
        inputs = as_inputs(x)
        cross, prior, lower, alpha = self._blocks(inputs, cov)
        # L^-1 k: the sum of its squares is the explained variance.
        half = solve_triangular(lower.T, cross.T, trans=1, check_finite=False)
        posterior = prior - half.T @ half if cov else None
        before = np.diagonal(prior) if cov else prior
        variance = before - np.sum(half**2, axis=0) if posterior is None else np.diagonal(posterior)
        variance = checked_variance(variance, before, self.jitter)
        if observed:
            extra = scalar_noise(self.noise)
            variance = variance + extra
            posterior = None if posterior is None else posterior + extra * np.eye(len(posterior))
        mean = self.kernel.mean(inputs)[:, None] + cross @ alpha
        sizes = output_sizes(self.kernel.net, inputs)
        return Prediction(self._shaped(mean), np.sqrt(variance), posterior, sizes)

    def sample(
        self, x: InputSet, samples: int = 1, seed: int | None = None, *, observed: bool = False
    ) -> np.ndarray:
        """Draw functions from the posterior at x.

        Parameters
        ----------
        x, observed
            As for `predict`.
        samples, seed
            As for `ns.gp.sample`.

        Returns
        -------
        np.ndarray
            (samples, rows), or (samples, rows, d).
        """
        posterior = self.predict(x, cov=True, observed=observed)
        assert posterior.cov is not None
        mean = posterior.mean.reshape(len(posterior.mean), -1)
        half = root(posterior.cov, len(mean) * self.jitter)
        return self._shaped(mean + half @ _normal(seed, samples, mean.shape))

    def leave_one_out(self) -> Prediction:
        """Predict the targets of each input from all others, without another fit.

        With B the rows of an input, the mean is y_B - P^-1 alpha_B and the covariance P^-1, where P is block
        B of (K + nugget)^-1. The prediction includes the noise. Rasmussen & Williams 2006, section 5.4.2.
        """
        # One inverse serves all inputs; a fit without each input would cost n factorisations.
        precision = solve(self.lower, np.eye(len(self.y)))
        mean, variance = self.y.copy(), np.empty(len(self.y))
        for block in map(slice, np.cumsum(self.sizes) - self.sizes, np.cumsum(self.sizes)):
            covariance = np.linalg.inv(precision[block, block])
            mean[block] -= covariance @ self.alpha[block]
            variance[block] = np.diagonal(covariance)
        return Prediction(self._shaped(mean), np.sqrt(variance), None, self.sizes)

    def save(self, path: str | Path) -> None:
        """Write the model to an .npz file; `ns.gp.load(path, net)` reads it."""
        from netsor.gp.saved import save

        save(self, path)

    def _blocks(self, inputs: list[Any], cov: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Covariances (new, rows), prior (new, new) or its diagonal, Cholesky factor and weights alpha."""
        self.unchanged.check()
        if self.exact:
            cross = self.kernel(inputs, self.x, params=self.params)
            prior = (self.kernel if cov else self.kernel.diag)(inputs, params=self.params)
            return cross, prior, self.lower, self.alpha
        matrix, cross, prior = self._joint(self.kernel, inputs, params=self.params)
        # A joint evaluation draws new sample points, so the factor of `fit` belongs to another matrix.
        lower = cholesky(matrix, self.nugget)
        return cross, prior if cov else np.diagonal(prior), lower, solve(lower, self.centred)


def scalar_noise(noise: np.ndarray) -> float:
    """Return the noise of new observations, which is unknown if it was given per target."""
    if noise.ndim:
        raise DataError(
            "the noise of new observations is not known: it was given per target",
            remedy="Predict with observed=False and add the variance of your observations.",
        )
    return float(noise)


@overload
def fit(
    kernel: KernelFn,
    x: InputSet,
    y: ArrayLike | Sequence[ArrayLike],
    *,
    noise: ArrayLike = 0.0,
    jitter: float | None = None,
    params: Mapping[str, float] | None = None,
) -> GP: ...
@overload
def fit(kernel: Store, x: ArrayLike | Sequence[ArrayLike], **options: Any) -> StoredGP: ...
def fit(
    kernel: KernelFn | Store,
    x: InputSet,
    y: ArrayLike | Sequence[ArrayLike] | None = None,
    *,
    noise: ArrayLike = 0.0,
    jitter: float | None = None,
    params: Mapping[str, float] | None = None,
    **solving: Any,
) -> GP | StoredGP:
    """Condition the Gaussian process of a network on data: fit(K, x, y), or fit(store, y).

    Memory holds one copy of the kernel matrix; a matrix that does not fit is refused at once. A store
    (`ns.gp.store`) contains its inputs, and its matrix stays on disk.

    Parameters
    ----------
    kernel
        `ns.kernel(net)`, or a store. A network with several outputs per input has several rows per input.
    x
        An array whose first axis runs over inputs, or a list, e.g. of sequences of different lengths.
    y
        One target per row, or a list with the targets of each input; columns are independent targets.
    noise
        Variance of the noise on the targets: a number, or one per row.
    jitter
        The least that is added to the diagonal; see `netsor.gp.factor` for the default.
    params
        Variances that replace the network's, as in `K(x, params=...)`.
    **solving
        For a store: `solver`, "cholesky" (a factor in the store), "pcg" (preconditioned conjugate gradients)
        or "auto" ("cholesky" up to 30,000 rows); `memory` in bytes, by default 1 GB; `tol`, the largest
        relative residual of pcg, and `rank`, that of its preconditioner; `engine`, a Dask client or the
        address of a scheduler; `progress`, as for `ns.kernel`.

    Returns
    -------
    GP or StoredGP
        The process given the data, for predictions.

    Raises
    ------
    DataError
        Inputs, targets or noise do not fit each other, or the matrix does not fit into memory.
    InferenceError
        The kernel matrix is not positive definite.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> x = np.linspace(-1, 1, 5)[:, None]
    >>> model = ns.gp.fit(ns.kernel(ns.zoo.mlp(2)), x, x[:, 0], noise=1e-4)
    >>> bool(abs(model.mean([[0.25]]) - 0.25) < 0.01)
    True
    """
    if not isinstance(kernel, KernelFn) and hasattr(kernel, "grid"):  # stores need Zarr, which may be missing
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
    if jitter is None:
        least = needed_jitter(np.diagonal(result.value), result.bound.rms)
        warn_of_jitter(least, level, np.diagonal(result.value))
    else:
        least = float(check_noise(jitter))
    nugget, shown = np.maximum(level, least), kernel.options.progress
    lower = cholesky(result.value, nugget, overwrite=True, progress=shown)
    alpha = solve(lower, table - kernel.mean(inputs)[:, None])
    return GP(kernel, inputs, sizes, table, flat, used, level, least, result.plan.exact, lower, alpha)


def check_room(rows: int) -> None:
    """Raise a DataError for a kernel matrix that does not fit into the memory of this machine."""
    if not hasattr(os, "sysconf"):  # Windows
        return
    there, needed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 8 * rows**2
    if needed > there:
        raise DataError(
            f"a kernel matrix of {rows} rows takes {needed / 2**30:.3g} GB, and this machine has "
            f"{there / 2**30:.3g} GB",
            remedy='Keep it on disk: ns.gp.fit(ns.gp.store(K, x, "K.zarr"), y).',
        )


def sample(
    kernel: KernelFn,
    x: InputSet,
    samples: int = 1,
    seed: int | None = None,
    *,
    params: Mapping[str, float] | None = None,
) -> np.ndarray:
    """Draw functions from the prior at x.

    Parameters
    ----------
    kernel, x, params
        As for `fit`.
    samples, seed
        Number of functions, and seed of the random numbers; None draws differently each time.

    Returns
    -------
    np.ndarray
        (samples, rows)
    """
    kernel, inputs = as_kernel(kernel), as_inputs(x)
    result = kernel.evaluate(inputs, params=params)
    value = np.asarray(result.value, np.float64)
    half = root(value, needed_jitter(np.diagonal(value), result.bound.rms))
    return kernel.mean(inputs) + _normal(seed, samples, (len(value),)) @ half.T


def _normal(seed: int | None, samples: int, shape: tuple[int, ...]) -> np.ndarray:
    """Draw standard normal numbers, (samples, *shape)."""
    count = arguments.whole("samples", samples, 1, 2**31)
    rng = np.random.default_rng(None if seed is None else arguments.seed(seed))
    return rng.standard_normal((count, *shape))
