"""The distance of random networks to their limit as the width grows, and the slope of its logarithm."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from netsor.files import write_csv
from netsor.limits import Result, kernel, ntk
from netsor.reproduce.experiment import Experiment, fingerprint
from netsor.reproduce.studies import Study
from netsor.simulation import empirical_kernel, empirical_ntk
from netsor.verify import log_means


@dataclass(frozen=True)
class Fit:
    """A straight line through log distance against log width.

    The weights are the inverse squared standard errors of the mean log distances. Where the points scatter
    more than these predict (chi2 above its degrees of freedom), the error is larger in proportion.
    """

    slope: float
    error: float
    intercept: float
    chi2: float
    freedom: int

    @property
    def deviation(self) -> float:
        """Distance of the slope from -1/2 in standard errors."""
        return (self.slope + 0.5) / self.error

    @property
    def text(self) -> str:
        """The slope with its error, for pictures."""
        return f"{self.slope:.3f} ± {self.error:.3f}"

    def __str__(self) -> str:
        return self.text.replace("±", "+-")


@dataclass(frozen=True)
class Convergence:
    """A study with its limit and the relative Frobenius distances to it, shape (widths, samples)."""

    study: Study
    limit: Result
    widths: tuple[int, ...]
    distances: np.ndarray

    @property
    def fit(self) -> Fit:
        """The fit over all widths."""
        return fit_slope(self.widths, self.distances)


def measure(
    experiment: Experiment, study: Study, widths: Sequence[int], samples: int, tangent: bool = False
) -> Convergence:
    """Simulate a study at every width, in single precision, and compare with its limit.

    With `tangent`, the tangent kernels of the networks are compared in place of their own.
    """
    result = (ntk if tangent else kernel)(study.net).evaluate(study.inputs)
    mark = f"{'ntk' if tangent else 'kernel'} {fingerprint(study.net, study.inputs)}"
    name = f"{study.name}_ntk" if tangent else study.name
    simulated = empirical_ntk if tangent else empirical_kernel
    distances = []
    for width in widths:

        def draw(count: int, seeds: np.random.SeedSequence, width: int = width) -> np.ndarray:
            return simulated(study.net, study.inputs, width, count, seeds, dtype=np.float32, progress=False)

        kernels = experiment.samples(name, mark, width, samples, draw, chunk=25)
        # Samples are kept in single precision, but the limit is not rounded to it.
        distances.append(np.linalg.norm(kernels.astype(float) - result.value, axis=(1, 2)))
    return Convergence(study, result, tuple(widths), np.array(distances) / np.linalg.norm(result.value))


def fit_slope(widths: Sequence[int] | np.ndarray, distances: np.ndarray) -> Fit:
    """Fit log distance (widths, samples) against log width by weighted least squares."""
    x = np.log(np.asarray(widths, float))
    y, errors = log_means(distances)
    weights = errors**-2
    centre = np.average(x, weights=weights)
    square = np.sum(weights * (x - centre) ** 2)
    slope = np.sum(weights * (x - centre) * y) / square
    intercept = np.average(y, weights=weights) - slope * centre
    chi2, freedom = float(np.sum(weights * (y - intercept - slope * x) ** 2)), len(x) - 2
    excess = max(1.0, np.sqrt(chi2 / freedom)) if freedom else 1.0
    return Fit(float(slope), float(excess / np.sqrt(square)), float(intercept), chi2, freedom)


def measured(
    experiment: Experiment, stem: str, studies: Sequence[Study], widths: Sequence[int], samples: int
) -> Generator[str, None, list[Convergence]]:
    """Measure studies and write tables of distances and slopes; yields the results as lines of text."""
    results = []
    for study in studies:
        results.append(measure(experiment, study, widths, samples, tangent=stem == "ntk"))
        yield f"{study.title}: slope {results[-1].fit}"
    yield f"{'network':22} {'slope':>17}  {'from width 128':>17}  {'chi2/dof':>8}  {'limit error':>11}"
    distances: list[list[object]] = []
    slopes: list[list[object]] = []
    wide = np.asarray(widths) >= 128
    for c in results:
        fit = c.fit
        wide_fit = fit_slope(np.asarray(widths)[wide], c.distances[wide]) if wide.sum() > 1 else None
        from_128 = [wide_fit.slope, wide_fit.error] if wide_fit else ["", ""]
        limit_error = np.linalg.norm(c.limit.error) / np.linalg.norm(c.limit.value)
        ratio = f"{fit.chi2 / fit.freedom:.2f}" if fit.freedom else ""
        yield f"{c.study.title:22} {fit!s:>17}  {wide_fit or ''!s:>17}  {ratio:>8}  {limit_error:11.1e}"
        for width, row in zip(widths, c.distances, strict=True):
            distances += [[c.study.name, width, k, d] for k, d in enumerate(row)]
        slopes.append([c.study.name, fit.slope, fit.error, fit.chi2, fit.freedom, *from_128, limit_error])
    header = ["network", "slope", "error", "chi2", "dof", "slope_from_128", "error_from_128", "limit_error"]
    write_csv(experiment.folder / f"{stem}_E_slopes.csv", header, slopes)
    header = ["network", "width", "sample", "distance"]
    write_csv(experiment.folder / f"{stem}_E_distances.csv", header, distances)
    return results
