"""Classification as regression on centred one-hot labels (Lee et al. 2018, Novak et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from netsor.errors import DataError
from netsor.gp.regression import GP, fit
from netsor.limits.inputs import InputSet
from netsor.limits.kernel import KernelFn


@dataclass(frozen=True, repr=False)
class Classifier:
    """A Gaussian process on centred one-hot labels: 1 - 1/C for the class, -1/C for others."""

    gp: GP
    classes: np.ndarray

    def __repr__(self) -> str:
        size = f"{len(self.gp.x)} inputs, {len(self.classes)} classes"
        return f"<classifier of {self.gp.kernel.net.name} on {size}>"

    def decision(self, x: InputSet) -> np.ndarray:
        """Return the posterior means, (rows, classes)."""
        return self.gp.mean(x)

    def predict(self, x: InputSet) -> np.ndarray:
        """Return the class with the largest posterior mean for each row, (rows,)."""
        return self.classes[np.argmax(self.decision(x), axis=1)]

    def probabilities(self, x: InputSet) -> np.ndarray:
        """Return calibrated probabilities softmax(slope * mean), (rows, classes).

        The slope maximises the likelihood of the training labels under their leave-one-out means, so no data
        are held back. Far from all data the mean is 0, and the classes are equally likely.
        """
        return softmax(self.slope * self.decision(x), axis=1)

    @cached_property
    def slope(self) -> float:
        """The slope of `probabilities`."""
        means = self.gp.leave_one_out().mean
        rows, classes = means.shape
        # Labels are softened by one pseudo-observation per class (Platt 1999): otherwise the slope would be
        # infinite if the means separate the labels.
        wanted = np.full(means.shape, 1 / (rows + classes))
        wanted[np.arange(rows), np.argmax(self.gp.y, axis=1)] = (rows + 1) / (rows + classes)

        def loss(log_slope: float) -> float:
            return -float(np.mean(np.sum(wanted * log_softmax(np.exp(log_slope) * means, axis=1), axis=1)))

        best = minimize_scalar(loss, bounds=(-10.0, 10.0), method="bounded", options={"xatol": 1e-6})
        return float(np.exp(best.x))

    def save(self, path: str | Path) -> None:
        """Write the model to an .npz file; `ns.gp.load(path, net)` reads it."""
        from netsor.gp.saved import save

        save(self, path)


def one_hot(labels: ArrayLike | Sequence[ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes, and the centred one-hot labels (rows, classes)."""
    if isinstance(labels, list) and labels:
        labels = np.concatenate([np.atleast_1d(part) for part in labels])
    flat = np.asarray(labels)
    if flat.ndim != 1 or not len(flat) or flat.dtype.kind == "O":
        raise DataError(
            f"the labels have shape {flat.shape} and type {flat.dtype}",
            remedy="Give one integer or string per output of the network.",
        )
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise DataError("a label is NaN or infinite", remedy="Leave out inputs without a label.")
    classes, position = np.unique(flat, return_inverse=True)
    if len(classes) < 2:
        what = f"all labels are {classes.tolist()[0]!r}"
        raise DataError(what, remedy="Give labels of two or more classes.")
    return classes, np.eye(len(classes))[position] - 1 / len(classes)


def classify(
    kernel: KernelFn,
    x: InputSet,
    labels: ArrayLike | Sequence[ArrayLike],
    *,
    noise: ArrayLike = 1e-2,
    jitter: float | None = None,
    params: Mapping[str, float] | None = None,
) -> Classifier:
    """Fit a classifier: regression on centred one-hot labels.

    Parameters
    ----------
    kernel, x, noise, jitter, params
        As for `ns.gp.fit`.
    labels
        One integer or string per output of the network.

    Returns
    -------
    Classifier
        The process given the labels, for predictions and probabilities.

    Raises
    ------
    DataError
        The labels do not fit the inputs, or are all of one class.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> x = np.array([[0.0, 1.0], [0.2, 1.0], [1.0, 0.0], [1.0, 0.1]])
    >>> model = ns.gp.classify(ns.kernel(ns.zoo.mlp(2)), x, np.array(["up", "up", "right", "right"]))
    >>> model.predict([[0.1, 0.9], [0.9, 0.2]])
    array(['up', 'right'], dtype='<U5')
    """
    classes, table = one_hot(labels)
    return Classifier(fit(kernel, x, table, noise=noise, jitter=jitter, params=params), classes)
