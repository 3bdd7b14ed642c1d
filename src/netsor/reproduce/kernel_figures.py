"""Kernels and how finite networks approach them: the paper's figure, and those with the whole zoo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from netsor.plots.curves import distance_lines
from netsor.plots.maps import as_correlation, heat_map
from netsor.plots.style import RED, Axes, picture
from netsor.reproduce.convergence import measured
from netsor.reproduce.experiment import Experiment
from netsor.reproduce.studies import Study, paper_studies, tangent_studies, zoo_studies


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
    experiment: Experiment, widths: Sequence[int], samples: int, images: np.ndarray | None = None
) -> Iterator[str]:
    """Draw the distances of the kernels of every network of the zoo; arguments as for `kernels_figure`."""
    return _distances_figure(experiment, "zoo", zoo_studies(images), widths, samples)


def ntk_figure(experiment: Experiment, widths: Sequence[int], samples: int) -> Iterator[str]:
    """Draw the distances of the tangent kernels: the figure of Tensor Programs II, with the whole zoo."""
    return _distances_figure(experiment, "ntk", tangent_studies(), widths, samples)


def _distances_figure(
    experiment: Experiment, stem: str, studies: Sequence[Study], widths: Sequence[int], samples: int
) -> Iterator[str]:
    results = yield from measured(experiment, stem, studies, widths, samples)
    networks = f"the {'tangent ' if stem == 'ntk' else ''}kernels of {samples} random networks"

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
