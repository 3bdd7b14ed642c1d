"""Kernels and how finite networks approach them: distances, their slope, and the figures about them."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from netsor.files import write_csv
from netsor.limits import Result, kernel, ntk
from netsor.plots.curves import distance_lines
from netsor.plots.maps import as_correlation, heat_map
from netsor.plots.style import RED, Axes, picture
from netsor.reproduce.experiment import Experiment, fingerprint
from netsor.reproduce.studies import Study, paper_studies, tangent_studies, zoo_studies
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
    """Simulate kernels, or tangent kernels, at every width in single precision; compare with their limit."""
    result = (ntk if tangent else kernel)(study.net).evaluate(study.inputs)
    mark = f"{'ntk' if tangent else 'kernel'} {fingerprint(study.net, study.inputs)}"
    name = f"{study.name}_ntk" if tangent else study.name
    simulated = empirical_ntk if tangent else empirical_kernel
    distances = []
    for width in widths:
        draw = partial(simulated, study.net, study.inputs, width, dtype=np.float32, progress=False)
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


def kernels_figure(
    experiment: Experiment, widths: Sequence[int], samples: int, images: np.ndarray | None = None
) -> Iterator[str]:
    """Draw panels A to E of the paper's figure of all kernels, and yield the results line by line.

    There are `samples` networks of each width. The batches are 64 `images`, by default digits.
    """
    results = yield from measured(experiment, "kernels", paper_studies(images), widths, samples)
    correlations = [as_correlation(c.limit.value) for c in results]
    for panel, c, matrix in zip("ABCD", results, correlations, strict=True):
        names = c.study.labels or tuple(str(k) for k in range(len(matrix)))
        experiment.write_matrix(f"kernels_{panel}_{c.study.name}", names, matrix)

    def draw(*axes: Axes) -> str:
        lowest = min(float(matrix.min()) for matrix in correlations[:3])  # sentences have one scale
        for panel, ax, c, matrix in zip("ABCDE", axes, results, correlations, strict=False):
            batches = not c.study.labels
            limits = (float(matrix.min()) if batches else lowest, 1.0)
            looks = {"limits": limits, "scale": "correlation", "line": RED if batches else "white"}
            title = f"{panel}  {c.study.title}"
            heat_map(ax, matrix, c.study.labels, title, breaks=c.study.breaks, **looks)
            if batches:
                ax.set(xlabel="image", ylabel="image")
        lines = [(f"{c.study.title}, slope {c.fit.text}", c.distances) for c in results]
        distance_lines(axes[4], widths, lines, f"E  distance of {samples} random networks to the limit")
        return (
            "Correlation matrices of the infinite-width kernels of (A) the simple RNN, (B) the GRU and (C) "
            "the transformer on the two sentences, and (D) a network of two layers of batchnorm followed by "
            f"relu on 64 {'digits' if images is None else 'CIFAR-10 images'} in two batches of 32; the red "
            "lines divide the batches. (E) Relative Frobenius distance of the kernels of "
            f"{samples} random networks to the limit, at widths {widths[0]} to {widths[-1]}: geometric mean "
            "with two standard errors; the shade holds the middle half of the networks. Slopes of the log "
            "distance by weighted least squares, with one standard error: "
            f"{', '.join(f'{c.study.title} {c.fit.text}' for c in results)}. The theory says -0.5."
        )

    files = experiment.write("kernels", picture(draw, (13.5, 9), "AABBCC\nDDEEEE"))
    yield f"wrote {files} and 6 tables (kernels_*.csv)"


def zoo_figure(
    experiment: Experiment,
    widths: Sequence[int],
    samples: int,
    images: np.ndarray | None = None,
    *,
    tangent: bool = False,
) -> Iterator[str]:
    """Draw the distances of the kernels of every network of the zoo; arguments as for `kernels_figure`.

    With `tangent`, those of the tangent kernels: the figure of Tensor Programs II, with the whole zoo.
    """
    studies, stem = (tangent_studies(), "ntk") if tangent else (zoo_studies(images), "zoo")
    results = yield from measured(experiment, stem, studies, widths, samples)
    networks = f"the {'tangent ' if tangent else ''}kernels of {samples} random networks"

    def draw(ax: Axes) -> str:
        ordered = sorted(results, key=lambda c: -np.log(c.distances[-1]).mean())
        lines = [(f"{c.study.title}, {c.fit.text}", c.distances) for c in ordered]
        title = f"Distance of {networks} to the limit, with fitted slopes"
        distance_lines(ax, widths, lines, title, beside=True)
        farthest = max(results, key=lambda c: abs(c.fit.deviation))
        return (
            f"Relative Frobenius distance of {networks} to the limit, for "
            "every network of the zoo: geometric mean with two standard errors. The numbers are the slopes "
            "of the log distance by weighted least squares, with one standard error; the theory says -0.5. "
            f"The farthest is {farthest.study.title}, by {abs(farthest.fit.deviation):.1f} standard errors."
        )

    yield f"wrote {experiment.write(stem, picture(draw, (11, 6.6)))} and 2 tables ({stem}_*.csv)"
