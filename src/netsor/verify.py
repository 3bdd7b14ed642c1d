"""Check a limit by simulation: the distance of finite networks to it falls like width^(-1/2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from netsor.arguments import is_integer, shown, whole
from netsor.build.network import Network
from netsor.build.tangent_network import TangentNetwork
from netsor.errors import SimulationError
from netsor.limits import Result, kernel
from netsor.simulation import empirical_kernel, empirical_ntk
from netsor.simulation.simulate import seed_sequence


@dataclass(frozen=True, repr=False)
class Verification:
    """Distances of simulated kernels to the limit.

    Parameters
    ----------
    widths
        Widths of the networks.
    distances
        Relative Frobenius distance of each simulated kernel to the limit, shape (widths, samples).
    slope, slope_error
        Slope of the log distance against the log width, with its standard error. The theory says -1/2.
    z
        Root mean square over the entries of the distance of the mean simulated kernel to the limit, at the
        largest width, in standard errors.
    result
        The limit.
    floor
        Relative distance that the errors of the limit and rounding explain.
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
        """Whether networks of every width have the kernel of the limit, up to its error."""
        return bool(np.all(self.distances <= 3 * self.floor))

    @property
    def ok(self) -> bool:
        """Whether the slope is -1/2 within three standard errors and 0.05, and the mean agrees."""
        return (self.exact or abs(self.slope + 0.5) < 3 * self.slope_error + 0.05) and self.z < 3

    def __repr__(self) -> str:
        return f"<verification: {'agrees' if self.ok else 'does not agree'}, {self.slope_text}>"

    @property
    def slope_text(self) -> str:
        """The slope and the one of the theory, in words."""
        if self.exact:
            return "no slope: networks of every width equal the limit to its error"
        return f"slope {self.slope:.3f} +- {self.slope_error:.3f} (theory: -0.5)"

    def _repr_html_(self) -> str:
        from netsor.display import fold, panel

        return panel(repr(self)[1:-1], self.chart(), fold("numbers", f"<pre>{self}</pre>"))

    def chart(self) -> str:
        """Draw the distances with two standard errors and a line of slope -1/2, as SVG."""
        from netsor.display.charts import Curve, curves

        logs, errors = log_means(self.distances)
        means, spread = np.exp(logs), np.exp(2 * errors)
        line = means[-1] * np.sqrt(self.widths[-1] / np.array(self.widths))
        lines = [
            Curve(f"{self.distances.shape[1]} networks", self.widths, means.tolist(), spread.tolist()),
            Curve("slope -1/2", self.widths, line.tolist(), dashed=True),
        ]
        return curves(lines, "distance to the limit", "width", "relative distance")

    def __str__(self) -> str:
        rows = [f"{'width':>7}  relative distance (mean of {self.distances.shape[1]} networks)"]
        for width, row in zip(self.widths, self.distances, strict=True):
            rows.append(f"{width:>7}  {row.mean():.4f} +- {row.std(ddof=1) / np.sqrt(len(row)):.4f}")
        rows.append(self.slope_text)
        rows.append(f"mean kernel at width {self.widths[-1]}: {self.z:.2f} standard errors from the limit")
        return "\n".join(rows)


def verify(
    net: Network,
    x: ArrayLike | Sequence[Any],
    widths: Sequence[int] = (64, 128, 256, 512, 1024),
    samples: int = 30,
    seed: int = 0,
    *,
    progress: bool | None = None,
    **options: Any,
) -> Verification:
    """Simulate a network at several widths and compare with its limit.

    Parameters
    ----------
    net
        The network. For `ns.tangent(net)`, tangent kernels of finite networks are compared with their limit.
    x
        The inputs.
    widths
        At least two different widths.
    samples
        Number of networks at each width, at least two.
    seed
        Seed of the weights.
    progress
        Whether to show a progress bar; None shows it for runs longer than two seconds.
    **options
        Options of the limit, as for `ns.kernel`.

    Returns
    -------
    Verification
        All distances, the slope over the widths, and whether they agree with the theory (`ok`).

    Raises
    ------
    SimulationError
        If the limit is zero, or if an entry is the same in all networks and differs from the limit.

    Examples
    --------
    >>> import netsor as ns
    >>> print(ns.verify(ns.zoo.mlp(2), [[1.0, 2.0], [0.5, -1.0]], widths=(64, 256)).ok)
    True
    """
    given = tuple(widths) if isinstance(widths, list | tuple | np.ndarray | range) else ()
    if not all(is_integer(n, 1) for n in given) or len(set(given)) < 2:
        raise SimulationError(
            f"widths={shown(widths)}",
            remedy="The slope takes at least two different widths, integers >= 1: widths=(64, 256, 1024).",
        )
    widths, start = tuple(map(int, given)), seed_sequence(seed)
    remedy = "The spread of the networks takes at least 2 at each width, an integer."
    samples = whole("samples", samples, 2, remedy=remedy, error=SimulationError)
    result = kernel(net, **options).evaluate(x)
    norm = np.linalg.norm(result.value)  # distances are relative to it
    if not norm > 0:
        raise SimulationError(
            "the limit is zero, so no relative distance can be measured",
            remedy="Verify the network on inputs, or with variances, for which its kernel is not zero.",
        )
    seeds = np.random.SeedSequence(start.entropy, spawn_key=start.spawn_key).spawn(len(widths))
    simulated = empirical_ntk if isinstance(net, TangentNetwork) else empirical_kernel
    rows, kernels = [], np.zeros(())
    for width, child in zip(widths, seeds, strict=True):
        kernels = simulated(net, x, width, samples, child, progress=progress)
        rows.append(np.linalg.norm(kernels - result.value, axis=(1, 2)) / norm)
    distances = np.array(rows)
    z, rounding = _deviation(kernels, result, widths[-1])
    # Least squares of the mean log distance; its error follows from the spread of the samples.
    x_log, (means, errors) = np.log(widths) - np.log(widths).mean(), log_means(distances)
    weights = x_log / (x_log @ x_log)
    slope, error = float(weights @ means), float(np.sqrt(np.sum((weights * errors) ** 2)))
    floor = float((np.linalg.norm(result.error) + np.linalg.norm(rounding)) / norm)
    return Verification(widths, distances, slope, error, z, result, floor)


def _deviation(kernels: np.ndarray, result: Result, width: int) -> tuple[float, np.ndarray]:
    """The distance of the mean kernel to the limit in standard errors, and the rounding errors of entries.

    An entry that is the same in all networks has no standard error. It must equal the limit up to the error
    of the limit and the rounding error of the whole kernel.
    """
    precision = 64 * np.finfo(np.float64).eps  # sums of squares over a width round by less
    mean, spread = kernels.mean(0), kernels.std(0, ddof=1) / np.sqrt(len(kernels))
    sizes = np.maximum(np.diagonal(mean), np.diagonal(result.value)).clip(0.0)
    rounding = precision * np.sqrt(np.outer(sizes, sizes))
    # Where all networks agree up to rounding, the spread is no measure of the error of the mean.
    constant = spread <= rounding
    rounding = np.where(constant, precision * float(sizes.max(initial=0.0)), rounding)
    gap, error = np.abs(mean - result.value), np.sqrt(spread**2 + result.error**2 + rounding**2)
    unseen = constant & (gap > 3 * error)
    if unseen.any():
        i, j = (int(k) for k in np.argwhere(unseen)[0])
        raise SimulationError(
            f"entry ({i}, {j}) of the kernel is {mean[i, j]:.6g} in each of {len(kernels)} networks of width "
            f"{width}, and {result.value[i, j]:.6g} in the limit: without a spread it has no standard error",
            remedy="The output may depend on events that are too rare for networks of this width, such as "
            "relu(h - 8). Give larger widths=, more samples=, or inputs at which they are frequent.",
        )
    return float(np.sqrt(np.mean((gap / np.where(error > 0, error, 1.0)) ** 2))), rounding


def log_means(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of log distances (widths, samples) over the samples, and their standard errors."""
    logs = np.log(np.maximum(distances, np.finfo(float).tiny))  # an exact network has distance 0
    return logs.mean(1), logs.std(1, ddof=1) / np.sqrt(logs.shape[1])
