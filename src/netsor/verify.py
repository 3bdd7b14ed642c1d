"""The check of the limit by simulation: the distance of finite networks to it falls like width^(-1/2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.build.network import Network
from netsor.build.tangent import TangentNetwork
from netsor.errors import SimulationError
from netsor.limits import Result, kernel
from netsor.simulation import empirical_kernel, empirical_ntk
from netsor.simulation.simulate import seed_sequence

__all__ = ["Verification", "verify"]

ROUNDING = 64 * float(np.finfo(np.float64).eps)  # of an entry: sums of squares over a width round by less


@dataclass(frozen=True, repr=False)
class Verification:
    """Distances of simulated kernels to the limit.

    distances  relative Frobenius distance of every simulated kernel, shape (widths, samples)
    slope      of log distance against log width, with its standard error; the theory says -1/2
    z          distance of the mean simulated kernel to the limit at the largest width, entry by entry
               in units of its standard error (the square root of its mean square)
    floor      relative distances that the errors of the limit and rounding explain
    """

    widths: tuple[int, ...]
    distances: np.ndarray
    slope: float
    slope_error: float
    z: float
    result: Result
    floor: float = 0.0

    @property
    def exact(self) -> bool:
        """Networks of every width have the kernel of the limit, to its error: there is no slope."""
        return bool(np.all(self.distances <= 3 * self.floor))

    @property
    def ok(self) -> bool:
        """The slope is -1/2 within three standard errors and 0.05, and the mean agrees."""
        return (self.exact or abs(self.slope + 0.5) < 3 * self.slope_error + 0.05) and self.z < 3

    def __repr__(self) -> str:
        return f"<verification: {'agrees' if self.ok else 'does not agree'}, {self.slope_text}>"

    @property
    def slope_text(self) -> str:
        """The slope beside that of the theory, in words."""
        if self.exact:
            return "no slope: networks of every width equal the limit to its error"
        return f"slope {self.slope:.3f} +- {self.slope_error:.3f} (theory: -0.5)"

    def _repr_html_(self) -> str:
        from netsor.display import curves, fold, panel
        from netsor.display.charts import Curve

        logs = np.log(np.maximum(self.distances, np.finfo(float).tiny))
        means = np.exp(logs.mean(1))
        spread = np.exp(2 * logs.std(1, ddof=1) / np.sqrt(logs.shape[1]))
        line = means[-1] * np.sqrt(self.widths[-1] / np.array(self.widths))
        shown = [
            Curve(f"{self.distances.shape[1]} networks", self.widths, means.tolist(), spread.tolist()),
            Curve("slope -1/2", self.widths, line.tolist(), dashed=True),
        ]
        chart = curves(shown, "distance to the limit", "width", "relative distance")
        return panel(repr(self)[1:-1], chart, fold("numbers", f"<pre>{self}</pre>"))

    def __str__(self) -> str:
        rows = [f"{'width':>7}  relative distance (mean of {self.distances.shape[1]} networks)"]
        for width, row in zip(self.widths, self.distances, strict=True):
            rows.append(f"{width:>7}  {row.mean():.4f} +- {row.std(ddof=1) / np.sqrt(len(row)):.4f}")
        rows.append(self.slope_text)
        rows.append(f"mean kernel at width {self.widths[-1]}: {self.z:.2f} standard errors from the limit")
        return "\n".join(rows)


def verify(
    net: Network,
    x: Any,
    widths: Sequence[int] = (64, 128, 256, 512, 1024),
    samples: int = 30,
    seed: int = 0,
    *,
    progress: bool | None = None,
    **options: Any,
) -> Verification:
    """Simulate a network at several widths and compare with its limit.

    Of `ns.tangent(net)`, tangent kernels of finite networks are compared with theirs.

    >>> import netsor as ns
    >>> print(ns.verify(ns.zoo.mlp(2), [[1.0, 2.0], [0.5, -1.0]], widths=(64, 256)).ok)
    True
    """
    widths = _widths(widths)
    if not isinstance(samples, int | np.integer) or isinstance(samples, bool) or samples < 2:
        raise SimulationError(
            f"samples={samples!r:.60}",
            remedy="The spread of the networks takes at least 2 at each width, an integer.",
        )
    start = seed_sequence(seed)
    result = kernel(net, **options).evaluate(x)
    norm = np.linalg.norm(result.value)
    if not norm > 0:
        raise SimulationError(
            "the limit is zero, so no relative distance can be measured",
            remedy="Verify the network on inputs, or with variances, for which its kernel is not zero.",
        )
    seeds = np.random.SeedSequence(start.entropy, spawn_key=start.spawn_key).spawn(len(widths))
    simulated = empirical_ntk if isinstance(net, TangentNetwork) else empirical_kernel
    distances, kernels = [], np.zeros(())
    for width, child in zip(widths, seeds, strict=True):
        kernels = simulated(net, x, width, samples, child, progress=progress)
        distances.append(np.linalg.norm(kernels - result.value, axis=(1, 2)) / norm)
    z, rounding = _deviation(kernels, result, widths[-1])
    table = np.array(distances)
    slope, error = _slope(np.asarray(widths), table)
    floor = float((np.linalg.norm(result.error) + np.linalg.norm(rounding)) / norm)
    return Verification(widths, table, slope, error, z, result, floor)


def _deviation(kernels: np.ndarray, result: Result, width: int) -> tuple[float, np.ndarray]:
    """The mean kernel's distance to the limit in standard errors, and what rounding moves its entries by.

    An entry that is the same in all networks has no standard error: it equals the limit to its error and to
    the rounding of the whole kernel, or nothing can be said of it.
    """
    mean, spread = kernels.mean(0), kernels.std(0, ddof=1) / np.sqrt(len(kernels))
    sizes = np.maximum(np.diagonal(mean), np.diagonal(result.value)).clip(0.0)
    rounding = ROUNDING * np.sqrt(np.outer(sizes, sizes))
    constant = spread <= rounding
    rounding = np.where(constant, ROUNDING * float(sizes.max(initial=0.0)), rounding)
    gap, known = np.abs(mean - result.value), np.sqrt(spread**2 + result.error**2 + rounding**2)
    unseen = constant & (gap > 3 * known)
    if unseen.any():
        i, j = (int(k) for k in np.argwhere(unseen)[0])
        raise SimulationError(
            f"entry ({i}, {j}) of the kernel is {mean[i, j]:.6g} in each of {len(kernels)} networks of width "
            f"{width}, and {result.value[i, j]:.6g} in the limit: without a spread it has no standard error",
            remedy="The output may depend on events that are too rare for networks of this width, such as "
            "relu(h - 8). Give larger widths=, more samples=, or inputs at which they are frequent.",
        )
    return float(np.sqrt(np.mean((gap / np.where(known > 0, known, 1.0)) ** 2))), rounding


def _widths(widths: Any) -> tuple[int, ...]:
    """At least two different widths, as the slope is that of a line."""
    given = tuple(widths) if isinstance(widths, list | tuple | np.ndarray | range) else ()
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in given)
    if not whole or len(set(given)) < 2:
        raise SimulationError(
            f"widths={widths!r:.60}",
            remedy="The slope takes at least two different widths, integers >= 1: widths=(64, 256, 1024).",
        )
    return tuple(int(n) for n in given)


def _slope(widths: np.ndarray, distances: np.ndarray) -> tuple[float, float]:
    """Least-squares slope of the mean log distance, and its standard error from the spread of samples."""
    logs = np.log(np.maximum(distances, np.finfo(float).tiny))  # an exact network has distance 0
    x = np.log(widths) - np.log(widths).mean()
    weights = x / (x @ x)
    errors = logs.std(1, ddof=1) / np.sqrt(logs.shape[1])
    return float(weights @ logs.mean(1)), float(np.sqrt(np.sum((weights * errors) ** 2)))
