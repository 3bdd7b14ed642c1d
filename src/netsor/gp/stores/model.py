"""A Gaussian process whose kernel matrix stays on disk: `ns.gp.fit(store, y)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from netsor import arguments
from netsor.build.joint_program import as_inputs
from netsor.errors import DataError
from netsor.files import read_sealed_npz, write_npz
from netsor.gp.factor import check_noise, checked_variance, likelihood, needed_jitter, warn_of_jitter
from netsor.gp.regression import Prediction, scalar_noise
from netsor.gp.stores.cholesky import StoredFactor
from netsor.gp.stores.conjugate_gradients import Estimate, Gradients
from netsor.gp.stores.engines import Engine, with_landmarks
from netsor.gp.stores.input_sets import stacked
from netsor.gp.stores.store import Store
from netsor.gp.targets import arrange, check_consistent, output_sizes
from netsor.limits.inputs import InputSet
from netsor.progress import bar

MEMORY = 2**30  # bytes, by default
SAVED = ("y", "flat", "noise", "jitter", "alpha", "residual", "tol")  # attributes that files keep


@dataclass(frozen=True, repr=False)
class StoredGP:
    """A network's Gaussian process given data, with the kernel matrix in a store.

    Attributes
    ----------
    y, flat, noise, jitter, alpha
        As for `GP`.
    residual
        The largest relative residual |y - (K + nugget) alpha| / |y| of a column.
    solver
        A Cholesky factor in the store, or conjugate gradients.
    mean_before
        (rows,) the prior mean.
    """

    store: Store
    y: np.ndarray
    flat: bool
    noise: np.ndarray
    jitter: float
    alpha: np.ndarray = field(compare=False)
    residual: float
    solver: StoredFactor | Gradients = field(compare=False)
    tol: float
    memory: int
    mean_before: np.ndarray = field(compare=False)

    def __repr__(self) -> str:
        return f"<GP of {self.store.identity['network']} on {self.store.path}, {len(self.y)} targets>"

    @property
    def nugget(self) -> np.ndarray:
        """The vector or number that is added to the diagonal of the kernel matrix."""
        return np.maximum(self.noise, self.jitter)

    def log_marginal_likelihood(self, *, progress: bool | None = None) -> Estimate:
        """Return log p(y | x), summed over the columns of y.

        With conjugate gradients it is an estimate, and takes 40 passes over the tiles, often more than the
        fit; with a Cholesky factor its `error` is 0. `progress` is as for `ns.kernel`.
        """
        with bar(progress, self.solver.steps, "estimating the log marginal likelihood") as advance:
            determinant = self.solver.log_determinant(step=advance)
        value = likelihood(determinant.value, self.alpha, self.y - self.mean_before[:, None])
        return Estimate(float(value), self.y.shape[1] / 2 * determinant.error)

    def mean(self, x: InputSet) -> np.ndarray:
        """Return the posterior mean k(x, data) alpha alone, which needs no solve: (rows,) or (rows, d)."""
        means = [
            self.store.kernel.mean(batch)[:, None]
            + sum(k @ self.alpha[rows] for rows, k in self._cross(batch))
            for batch in self._batches(as_inputs(x))
        ]
        return self._shaped(np.concatenate(means))

    def predict(self, x: InputSet, *, observed: bool = False, progress: bool | None = None) -> Prediction:
        """Return mean and standard deviation of the network's outputs, or of noisy observations of them.

        New inputs are processed in batches whose covariances with all data fit into memory.

        Parameters
        ----------
        x, observed, progress
            As for `GP.predict` and `ns.kernel`.

        Returns
        -------
        Prediction
            `mean` and `std`.
        """
        kernel, inputs = self.store.kernel, as_inputs(x)
        means, variances = [], []
        with bar(progress, 0, "predicting") as advance:
            for batch in self._batches(inputs):
                cross = np.concatenate([k.T for _, k in self._cross(batch)])
                means.append(kernel.mean(batch)[:, None] + cross.T @ self.alpha)
                if self.store.landmarks:
                    prior = np.diagonal(self._sampled(batch, None))
                else:
                    prior = np.asarray(kernel.diag(batch, params=self.store.params), np.float64)
                if isinstance(self.solver, StoredFactor):
                    explained = np.sum(self.solver.forward(cross) ** 2, axis=0)
                else:
                    explained = np.sum(cross * self.solver.solve(cross, self.tol, advance)[0], axis=0)
                variances.append(checked_variance(prior - explained, prior, self.jitter))
        variance = np.concatenate(variances)
        if observed:
            variance = variance + scalar_noise(self.noise)
        sizes = output_sizes(kernel.net, inputs)
        return Prediction(self._shaped(np.concatenate(means)), np.sqrt(variance), None, sizes)

    def save(self, path: str | Path) -> None:
        """Write weights, targets and noise to an .npz file for `load_stored`."""
        facts = {name: getattr(self, name) for name in SAVED}
        facts |= {"solver": self.solver.name, "store": self.store.digest}
        write_npz(arguments.file("path", path), facts, sealed=True)

    def _batches(self, inputs: list[Any]) -> Iterator[list[Any]]:
        """Split new inputs into batches that fit into memory."""
        most = self.memory // (4 * 8 * len(self.y))  # rows
        if self.store.landmarks:  # sampled inputs are drawn jointly, at most as many as in a tile
            most = min(most, self.store.grid.rows.chunk)
        step = max(1, most // max(output_sizes(self.store.kernel.net, inputs)))
        return (inputs[a : a + step] for a in range(0, len(inputs), step))

    def _cross(self, inputs: list[Any]) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield covariances (new rows, data rows) of new inputs with slices of the data."""
        kernel, params, sizes = self.store.kernel, self.store.params, self.store.grid.rows.sizes
        stops = np.cumsum(sizes)
        step = max(1, self.store.grid.rows.chunk // int(sizes.max()))
        for a in range(0, len(sizes), step):
            b = min(a + step, len(sizes))
            rows = slice(int(stops[a] - sizes[a]), int(stops[b - 1]))
            if self.store.landmarks:
                yield rows, self._sampled(inputs, np.arange(a, b))
            else:
                data = self.store.inputs(0, a, b)
                yield rows, np.asarray(kernel(stacked(inputs), data, params=params), np.float64)

    def _sampled(self, inputs: list[Any], data: np.ndarray | None) -> np.ndarray:
        """Sampled covariances of new inputs with the data of these numbers, or (None) with each other."""
        new = stacked(inputs)
        if not isinstance(new, np.ndarray):
            raise DataError(
                "the kernel of the store is sampled, with inputs of one shape",
                remedy="Predict at inputs of that shape.",
            )
        numbers = len(self.store.grid.rows.sizes) + np.arange(len(new))
        other = numbers if data is None else data
        result, rows, columns = with_landmarks(self.store, numbers, other, new)
        return np.asarray(result.value[np.ix_(rows, columns)], np.float64)

    def _shaped(self, table: np.ndarray) -> np.ndarray:
        return table[:, 0] if self.flat else table


def load_stored(path: str | Path, store: Store, memory: int = MEMORY) -> StoredGP:
    """Read a model that `save` wrote, for the store that it was fitted to."""
    facts = read_sealed_npz(arguments.file("path", path), "Models of stores are written by `netsor fit`.")
    if "store" not in facts:
        raise DataError(f"{path} is not a model of a store", remedy="Read it with ns.gp.load(path, net).")
    if str(facts["store"]) != store.digest:
        raise DataError(
            f"{path} was fitted to another kernel than {store.path} holds",
            remedy="Give the store that it was fitted to.",
        )
    # Numbers come back as arrays without axes.
    saved: dict[str, Any] = {name: facts[name] if facts[name].ndim else facts[name].item() for name in SAVED}
    saved["noise"], nugget = facts["noise"], np.maximum(facts["noise"], facts["jitter"])
    kind = StoredFactor if str(facts["solver"]) == StoredFactor.name else Gradients
    solver = kind(store, nugget, memory)
    if isinstance(solver, StoredFactor):
        solver.complete()
    return StoredGP(store=store, solver=solver, memory=memory, mean_before=store.mean(), **saved)


def fit_store(
    store: Store,
    y: ArrayLike | Sequence[ArrayLike],
    *,
    noise: ArrayLike = 0.0,
    jitter: float | None = None,
    solver: str = "auto",
    memory: int | None = None,
    tol: float = 1e-8,
    rank: int | None = None,
    engine: Engine = None,
    progress: bool | None = None,
) -> StoredGP:
    """Condition the Gaussian process of a stored kernel on targets; see `ns.gp.fit`."""
    if not store.symmetric:
        raise DataError(f"{store.path} is between two sets", remedy="Fit a store of one set of inputs.")
    arguments.choice("solver", solver, ("auto", "cholesky", "pcg"))
    tol = arguments.number("tol", tol, above=0)
    rank = None if rank is None else arguments.whole("rank", rank, 1)
    store.require_complete()
    sizes = tuple(int(size) for size in store.grid.rows.sizes)
    allowed = MEMORY if memory is None else int(arguments.number("memory", memory, above=0))
    table, flat = arrange(y, sizes)
    level = check_noise(noise, len(table))
    if not np.all(level > 0):
        check_consistent(as_inputs(store.inputs(0)), sizes, table)
    least = _jitter(store, level) if jitter is None else float(check_noise(jitter))
    nugget = np.maximum(level, least)
    before = store.mean()
    centred = table - before[:, None]
    few = len(table) <= 30_000  # rows up to which a factor takes minutes
    if solver == "cholesky" or (solver == "auto" and few):
        solving: StoredFactor | Gradients = StoredFactor(store, nugget, allowed)
        solving.complete(progress, engine)
        alpha, reached = solving.solve(centred)
    else:
        with bar(progress, 0, "conjugate gradients") as advance:
            solving = Gradients(store, nugget, allowed, rank, engine=engine)
            alpha, reached = solving.solve(centred, tol, advance)
    return StoredGP(store, table, flat, level, least, alpha, reached, solving, tol, allowed, before)


def _jitter(store: Store, noise: np.ndarray) -> float:
    """The jitter that covers the errors of the tiles; warn if it is large."""
    # With the largest error of each tile for all its entries, this bounds the root mean square from above.
    rows = np.diff([*range(0, store.shape[0], store.grid.rows.chunk), store.shape[0]])
    squares = store.errors() ** 2 * rows[:, None] * rows
    diagonal = store.diagonal()
    jitter = needed_jitter(diagonal, float(np.sqrt(squares.sum())) / store.shape[0])
    warn_of_jitter(jitter, noise, diagonal, "more landmarks, ns.gp.store(K, x, path, landmarks=...)")
    return jitter
