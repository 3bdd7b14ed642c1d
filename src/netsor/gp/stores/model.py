"""A Gaussian process whose kernel matrix is in a store and never in memory: `ns.gp.fit(store, y)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import log, pi
from pathlib import Path
from typing import Any

import numpy as np

from netsor import arguments
from netsor.build.network import as_inputs
from netsor.errors import DataError
from netsor.files import read_sealed_npz, write_sealed_npz
from netsor.gp.factor import check_noise, needed_jitter, warn_of_jitter
from netsor.gp.regression import Prediction, checked_variance
from netsor.gp.stores.cholesky import Factor
from netsor.gp.stores.gradients import STEPS, Gradients
from netsor.gp.stores.landmarks import with_landmarks
from netsor.gp.stores.store import Store
from netsor.gp.targets import arrange, check_consistent, output_sizes
from netsor.progress import bar

__all__ = ["Estimate", "StoredGP", "fit_store"]

MEMORY = 2**30  # bytes, if nothing is said
DIRECT = 30_000  # rows up to which "auto" takes a Cholesky factor
SOLVERS = ("auto", "cholesky", "pcg")


@dataclass(frozen=True)
class Estimate:
    """A number and its error."""

    value: float
    error: float


@dataclass(frozen=True, repr=False)
class StoredGP:
    """A network's Gaussian process given data, with the kernel matrix in a store.

    alpha     (K + nugget)^-1 (y - prior mean)
    residual  the largest |y - (K + nugget) alpha| / |y| of a column, as far as the solver says
    solver    the factor in the store, or conjugate gradients
    """

    store: Store
    y: np.ndarray
    flat: bool
    noise: np.ndarray
    jitter: float
    alpha: np.ndarray = field(compare=False)
    residual: float
    solver: Factor | Gradients = field(compare=False)
    tol: float
    memory: int
    mean_before: np.ndarray = field(compare=False)

    def __repr__(self) -> str:
        return f"<GP of {self.store.identity['network']} on {self.store.path}, {len(self.y)} targets>"

    @property
    def nugget(self) -> np.ndarray:
        """What is added to the diagonal of the kernel matrix."""
        return np.maximum(self.noise, self.jitter)

    def log_marginal_likelihood(self, *, progress: bool | None = None) -> Estimate:
        """log p(y | x), summed over the columns of y; by conjugate gradients an estimate, with its error.

        The estimate takes 40 passes over the tiles, often more than the fit itself.
        """
        rows, targets = self.y.shape
        centred = self.y - self.mean_before[:, None]
        fit = -0.5 * float(np.sum(centred * self.alpha)) - targets * rows / 2 * log(2 * pi)
        if isinstance(self.solver, Factor):
            return Estimate(fit - targets / 2 * self.solver.log_determinant(), 0.0)
        with bar(progress, min(STEPS, rows), "estimating the log marginal likelihood") as advance:
            found = self.solver.log_determinant(step=advance)
        return Estimate(fit - targets / 2 * found.value, targets / 2 * found.error)

    def mean(self, x: Any) -> np.ndarray:
        """The posterior mean alone, which needs no solve."""
        kernel = self.store.kernel
        inputs = as_inputs(x)
        found = [kernel.mean(some)[:, None] + self._cross_times(some) for some in self._batches(inputs)]
        return self._shaped(np.concatenate(found))

    def predict(self, x: Any, *, observed: bool = False, progress: bool | None = None) -> Prediction:
        """Mean and standard deviation of the network's outputs, or of noisy observations of them.

        New inputs go together as far as their covariances with all data fit into memory.
        """
        kernel = self.store.kernel
        inputs = as_inputs(x)
        means, variances = [], []
        with bar(progress, 0, "predicting") as advance:
            for some in self._batches(inputs):
                cross = np.concatenate([k.T for _, k in self._cross(some)])
                means.append(kernel.mean(some)[:, None] + cross.T @ self.alpha)
                prior = self._prior(some)
                variances.append(
                    checked_variance(prior - self._explained(cross, advance), prior, self.jitter)
                )
        variance = np.concatenate(variances)
        if observed:
            if self.noise.ndim:
                raise DataError(
                    "the noise of new observations is not known: it was given per target",
                    remedy="Predict with observed=False and add the variance of your observations.",
                )
            variance = variance + float(self.noise)
        sizes = output_sizes(kernel.net, inputs)
        return Prediction(self._shaped(np.concatenate(means)), np.sqrt(variance), None, sizes)

    def save(self, path: str | Path) -> None:
        """Write weights, targets and noise to an .npz file; `load_stored` reads them."""
        facts = {
            "solver": self.solver.name,
            "jitter": self.jitter,
            "residual": self.residual,
            "tol": self.tol,
        }
        arrays = {"y": self.y, "flat": self.flat, "noise": self.noise, "alpha": self.alpha}
        write_sealed_npz(arguments.file("path", path), {**arrays, **facts, "store": self.store.digest})

    def _explained(self, cross: np.ndarray, advance: Callable[[], None]) -> np.ndarray:
        """k^T (K + nugget)^-1 k for each column k."""
        if isinstance(self.solver, Factor):
            return np.sum(self.solver.forward(cross) ** 2, axis=0)
        solved, _ = self.solver.solve(cross, self.tol, advance)
        return np.sum(cross * solved, axis=0)

    def _batches(self, inputs: list[Any]) -> Iterator[list[Any]]:
        """New inputs, as many at a time as memory has room for."""
        rows = max(output_sizes(self.store.kernel.net, inputs))
        step = max(1, self.memory // (4 * 8 * len(self.y) * rows))
        if self.store.landmarks:  # what is sampled goes together as in tiles
            step = min(step, max(1, self.store.grid.rows.chunk // rows))
        return (inputs[a : a + step] for a in range(0, len(inputs), step))

    def _cross(self, inputs: list[Any]) -> Iterator[tuple[slice, np.ndarray]]:
        """Covariances of new inputs with the data, some of these at a time, and their rows."""
        kernel, params, sizes = self.store.kernel, self.store.params, self.store.grid.rows.sizes
        stops = np.cumsum(sizes)
        step = max(1, self.store.grid.rows.chunk // int(sizes.max()))
        for a in range(0, len(sizes), step):
            b = min(a + step, len(sizes))
            rows = slice(int(stops[a] - sizes[a]), int(stops[b - 1]))
            if self.store.landmarks:
                yield rows, self._sampled(inputs, np.arange(a, b))
            else:
                some = self.store.inputs(0, a, b)
                yield rows, np.asarray(kernel(_like(inputs), some, params=params), np.float64)

    def _prior(self, inputs: list[Any]) -> np.ndarray:
        """The variances of new inputs."""
        if self.store.landmarks:
            return np.diagonal(self._sampled(inputs, None))
        return np.asarray(self.store.kernel.diag(inputs, params=self.store.params), np.float64)

    def _sampled(self, inputs: list[Any], data: np.ndarray | None) -> np.ndarray:
        """Covariances of new inputs with some of the data, or with each other, drawn as the store was."""
        new = _like(inputs)
        if not isinstance(new, np.ndarray):
            raise DataError(
                "the kernel of the store is sampled, with inputs of one shape",
                remedy="Predict at inputs of that shape.",
            )
        own = len(self.store.grid.rows.sizes) + np.arange(len(new))
        found, rows, columns = with_landmarks(self.store, own, own if data is None else data, new)
        return np.asarray(found.value[np.ix_(rows, columns)], np.float64)

    def _cross_times(self, inputs: list[Any]) -> np.ndarray:
        return sum((k @ self.alpha[rows] for rows, k in self._cross(inputs)), np.zeros(()))

    def _shaped(self, table: np.ndarray) -> np.ndarray:
        return table[:, 0] if self.flat else table


def _like(inputs: list[Any]) -> Any:
    """Inputs of one shape as one array, so that those of the store, which are one, are of the same kind."""
    plain = not any(isinstance(x, tuple) for x in inputs) and len({np.shape(x) for x in inputs}) == 1
    return np.stack([np.asarray(x) for x in inputs]) if plain else inputs


def load_stored(path: str | Path, store: Store, memory: int = MEMORY) -> StoredGP:
    """The model that `save` wrote, with the store that it was fitted to."""
    facts = read_sealed_npz(arguments.file("path", path), "Models of stores are written by `netsor fit`.")
    if "store" not in facts:
        raise DataError(f"{path} is not a model of a store", remedy="Read it with ns.gp.load(path, net).")
    if str(facts["store"]) != store.digest:
        raise DataError(
            f"{path} was fitted to another kernel than {store.path} holds",
            remedy="Give the store that it was fitted to.",
        )
    y, noise, jitter, alpha = (facts[name] for name in ("y", "noise", "jitter", "alpha"))
    solver, residual, tol = str(facts["solver"]), float(facts["residual"]), float(facts["tol"])
    flat = bool(facts["flat"])
    nugget = np.maximum(noise, jitter)
    made = Factor(store, nugget, memory) if solver == Factor.name else Gradients(store, nugget, memory)
    if isinstance(made, Factor):
        made.complete()
    return StoredGP(store, y, flat, noise, float(jitter), alpha, residual, made, tol, memory, store.mean())


def fit_store(
    store: Store,
    y: Any,
    *,
    noise: Any = 0.0,
    jitter: float | None = None,
    solver: str = "auto",
    memory: int | None = None,
    tol: float = 1e-8,
    rank: int | None = None,
    engine: Any = None,
    progress: bool | None = None,
) -> StoredGP:
    """Condition the Gaussian process of a stored kernel on targets; see `ns.gp.fit`."""
    if not store.symmetric:
        raise DataError(f"{store.path} is between two sets", remedy="Fit a store of one set of inputs.")
    arguments.choice("solver", solver, SOLVERS)
    tol = arguments.number("tol", tol, above=0)
    rank = None if rank is None else arguments.whole("rank", rank, 1)
    store.require_complete()
    sizes, allowed = (
        tuple(int(s) for s in store.grid.rows.sizes),
        MEMORY if memory is None else int(arguments.number("memory", memory, above=0)),
    )
    table, flat = arrange(y, sizes)
    level = check_noise(noise, len(table))
    if not np.all(level > 0):
        check_consistent(as_inputs(store.inputs(0)), sizes, table)
    least = _jitter(store, level) if jitter is None else float(check_noise(jitter))
    nugget = np.maximum(level, least)
    before = store.mean()
    centred = table - before[:, None]
    if solver == "cholesky" or (solver == "auto" and len(table) <= DIRECT):
        made: Factor | Gradients = Factor(store, nugget, allowed)
        made.complete(progress, engine)
        alpha = made.solve(centred)
        reached = _residual(store, nugget, alpha, centred)
    else:
        with bar(progress, 0, "conjugate gradients") as advance:
            made = Gradients(store, nugget, allowed, rank, engine=engine)
            alpha, reached = made.solve(centred, tol, advance)
    return StoredGP(store, table, flat, level, least, alpha, reached, made, tol, allowed, before)


def _residual(store: Store, nugget: np.ndarray, alpha: np.ndarray, right: np.ndarray) -> float:
    left = right - store.times(alpha) - np.reshape(nugget, (-1, 1)) * alpha
    size = np.linalg.norm(right, axis=0)
    return float(np.max(np.linalg.norm(left, axis=0) / np.where(size > 0, size, 1.0)))


def _jitter(store: Store, noise: np.ndarray) -> float:
    """The least that is added to the diagonal, from the largest error of each tile; much is reported."""
    rows = np.array([b - a for a, b in map(store.grid.rows.span, range(store.grid.rows.count))])
    squares = store.errors() ** 2 * rows[:, None] * rows
    diagonal = store.diagonal()
    jitter = needed_jitter(diagonal, float(np.sqrt(squares.sum())) / store.shape[0])
    warn_of_jitter(jitter, noise, diagonal, "more landmarks, ns.gp.store(K, x, path, landmarks=...)")
    return jitter
