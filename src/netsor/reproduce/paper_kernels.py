"""The paper's figure of all kernels: correlation matrices, and the distance of finite networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from netsor.files import write_csv
from netsor.plots.maps import as_correlation
from netsor.plots.panels import distance_lines, heat_map
from netsor.plots.style import RED, picture
from netsor.reproduce.convergence import Convergence, measure, slope_table
from netsor.reproduce.experiment import Experiment
from netsor.reproduce.studies import paper_studies

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def kernels_figure(
    experiment: Experiment, widths: Sequence[int], samples: int, images: np.ndarray | None = None
) -> Iterator[str]:
    """Draw panels A to E, and yield the results line by line.

    Parameters
    ----------
    experiment
        Where to keep samples and figures.
    widths, samples
        Widths of the random networks, and how many there are of each.
    images
        64 images for the batches, by default digits.
    """
    results = []
    for study in paper_studies(images):
        results.append(measure(experiment, study, widths, samples))
        yield f"{study.title}: slope {results[-1].fit}"
    yield from slope_table(results)
    correlations = [as_correlation(c.limit.value) for c in results]
    for panel, c, matrix in zip("ABCD", results, correlations, strict=True):
        names = c.study.labels or tuple(str(k) for k in range(len(matrix)))
        rows = [[name, *row] for name, row in zip(names, matrix, strict=True)]
        write_csv(experiment.folder / f"kernels_{panel}_{c.study.name}.csv", ["", *names], rows)
    write_convergence(experiment, "kernels", results)

    def draw(*axes: Axes) -> str:
        _draw_matrices(axes[:4], results, correlations)
        lines = [
            (f"{c.study.title}, slope {c.fit.slope:.3f} ± {c.fit.error:.3f}", c.distances) for c in results
        ]
        distance_lines(axes[4], widths, lines, f"E  distance of {samples} random networks to the limit")
        return _caption(results, samples, "digits" if images is None else "CIFAR-10 images")

    files = experiment.write("kernels", picture(draw, (13.5, 9), "AABBCC\nDDEEEE"))
    yield f"wrote {files} and 6 tables (kernels_*.csv)"


def _draw_matrices(
    axes: Sequence[Axes], results: Sequence[Convergence], correlations: Sequence[np.ndarray]
) -> None:
    """Draw the correlations of the sentences on one scale, and those of the batches on their own."""
    lowest = min(float(matrix.min()) for matrix in correlations[:3])
    for panel, ax, c, matrix in zip("ABCD", axes, results, correlations, strict=True):
        title, batches = f"{panel}  {c.study.title}", not c.study.labels
        limits = (float(matrix.min()) if batches else lowest, 1.0)
        looks = {"limits": limits, "scale": "correlation", "line": RED if batches else "white"}
        heat_map(ax, matrix, c.study.labels, title, breaks=c.study.breaks, **looks)
        if batches:
            ax.set(xlabel="image", ylabel="image")


def _caption(results: Sequence[Convergence], samples: int, images: str) -> str:
    slopes = ", ".join(f"{c.study.title} {c.fit.slope:.3f} ± {c.fit.error:.3f}" for c in results)
    widths = results[0].widths
    return (
        "Correlation matrices of the infinite-width kernels of (A) the simple RNN, (B) the GRU and (C) the "
        "transformer on the two sentences, and (D) a network of two layers of batchnorm followed by relu on "
        f"64 {images} in two batches of 32; the red lines divide the batches. (E) Relative Frobenius "
        f"distance of the kernels of {samples} random networks to the limit, at widths {widths[0]} to "
        f"{widths[-1]}: geometric mean with two standard errors; the shade holds the middle half of the "
        f"networks. Slopes of the log distance by weighted least squares, with one standard error: "
        f"{slopes}. The theory says -0.5."
    )


def write_convergence(experiment: Experiment, stem: str, results: Sequence[Convergence]) -> None:
    """Write a table of all distances, and one of the slopes with their errors."""
    rows: list[list[object]] = []
    for c in results:
        for width, distances in zip(c.widths, c.distances, strict=True):
            rows += [[c.study.name, width, k, d] for k, d in enumerate(distances)]
    write_csv(experiment.folder / f"{stem}_E_distances.csv", ["network", "width", "sample", "distance"], rows)
    header = ["network", "slope", "error", "chi2", "dof", "slope_from_128", "error_from_128", "limit_error"]
    table: list[list[object]] = []
    for c in results:
        wide = c.wide_fit
        last = ["", ""] if wide is None else [wide.slope, wide.error]
        fit = [c.fit.slope, c.fit.error, c.fit.chi2, c.fit.freedom]
        table.append([c.study.name, *fit, *last, c.limit_error])
    write_csv(experiment.folder / f"{stem}_E_slopes.csv", header, table)
