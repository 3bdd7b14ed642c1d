"""Gaussian processes on given kernel matrices, all tuned the same way: shared by the examples.

A kernel is a family of matrices over one shape parameter (a length scale, a variance). On the training
rows of a split we choose the member and the ratio of noise to signal that maximise the marginal likelihood;
the scale of the signal is then known in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RATIOS = 10.0 ** np.arange(-6.0, 1.01, 0.5)


@dataclass(frozen=True)
class Chosen:
    """The best member of a family on one split: its place, its noise ratio, its signal, its prediction."""

    member: int
    ratio: float
    signal: float
    mean: np.ndarray
    variance: np.ndarray


def normalised(matrix: np.ndarray) -> np.ndarray:
    """The matrix with a mean variance of 1."""
    return matrix / np.mean(np.diagonal(matrix))


def choose(family: Sequence[np.ndarray], y: np.ndarray, train: np.ndarray, test: np.ndarray) -> Chosen:
    """Tune on the training rows, predict the test rows. Targets are (rows, columns)."""
    best: tuple[float, int, float, float] = (-np.inf, 0, 0.0, 0.0)
    spectra = [np.linalg.eigh(normalised(matrix)[np.ix_(train, train)]) for matrix in family]
    for k, (values, vectors) in enumerate(spectra):
        turned = vectors.T @ y[train]
        for ratio in RATIOS:
            raised = np.clip(values, 0.0, None) + ratio
            signal = np.sum(turned**2 / raised[:, None]) / turned.size
            score = -0.5 * y.shape[1] * np.sum(np.log(signal * raised))  # up to a constant
            best = max(best, (float(score), k, float(ratio), float(signal)))
    _, k, ratio, signal = best
    matrix, (values, vectors) = normalised(family[k]), spectra[k]
    raised = np.clip(values, 0.0, None) + ratio
    cross = matrix[np.ix_(test, train)] @ vectors
    mean = cross / raised @ (vectors.T @ y[train])
    left = np.diagonal(matrix)[test] - np.sum(cross**2 / raised, axis=1)
    return Chosen(k, ratio, signal, mean, signal * (np.clip(left, 0.0, None) + ratio))


def splits(
    labels: np.ndarray, train: int, count: int, stratified: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random splits into `train` training rows and the rest; classes keep their shares if stratified."""
    from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

    kind = StratifiedShuffleSplit if stratified else ShuffleSplit
    return list(kind(count, train_size=train, random_state=0).split(np.zeros(len(labels)), labels))


def radial(
    x: np.ndarray, profile: Callable[[np.ndarray], np.ndarray], scales: Sequence[float]
) -> list[np.ndarray]:
    """A radial kernel at several length scales, in units of the median distance."""
    flat = x.reshape(len(x), -1)
    squares = np.sum(flat**2, axis=1)
    distances = np.sqrt(np.clip(squares[:, None] + squares - 2 * flat @ flat.T, 0.0, None))
    unit = np.median(distances[np.triu_indices(len(x), 1)])
    return [profile(distances / (unit * scale)) for scale in scales]


def rbf(r: np.ndarray) -> np.ndarray:
    """exp(-r^2 / 2)."""
    return np.exp(-0.5 * r**2)


def matern(r: np.ndarray) -> np.ndarray:
    """The Matern kernel of order 3/2."""
    return (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)


def summary(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error over splits."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the header."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("-" * w for w in widths) + " |", *lines[1:]])
