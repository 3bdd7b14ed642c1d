"""The distance of finite networks to the limit for every network of the zoo: kernels, and tangent kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from netsor.plots.panels import distance_lines
from netsor.plots.style import picture
from netsor.reproduce.convergence import measure, slope_table
from netsor.reproduce.experiment import Experiment
from netsor.reproduce.paper_kernels import write_convergence
from netsor.reproduce.studies import Study, tangent_studies, zoo_studies

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def zoo_figure(
    experiment: Experiment, widths: Sequence[int], samples: int, images: np.ndarray | None = None
) -> Iterator[str]:
    """Draw the distances of the kernels of every network of the zoo, and yield the results line by line.

    Parameters
    ----------
    experiment
        Where to keep samples and figures.
    widths, samples
        Widths of the random networks, and how many there are of each.
    images
        64 images for the batches, by default digits.
    """
    yield from _figure(experiment, "zoo", zoo_studies(images), widths, samples, tangent=False)


def ntk_figure(experiment: Experiment, widths: Sequence[int], samples: int) -> Iterator[str]:
    """Draw the distances of the tangent kernels: the figure of Tensor Programs II, with the whole zoo.

    Parameters
    ----------
    experiment, widths, samples
        As for `zoo_figure`.
    """
    yield from _figure(experiment, "ntk", tangent_studies(), widths, samples, tangent=True)


def _figure(
    experiment: Experiment,
    stem: str,
    studies: Sequence[Study],
    widths: Sequence[int],
    samples: int,
    tangent: bool,
) -> Iterator[str]:
    kernels = "tangent kernels" if tangent else "kernels"
    results = []
    for study in studies:
        results.append(measure(experiment, study, widths, samples, tangent))
        yield f"{study.title}: slope {results[-1].fit}"
    yield from slope_table(results)
    write_convergence(experiment, stem, results)

    def draw(ax: Axes) -> str:
        ordered = sorted(results, key=lambda c: -np.log(c.distances[-1]).mean())
        lines = [(f"{c.study.title}, {c.fit.slope:.3f} ± {c.fit.error:.3f}", c.distances) for c in ordered]
        title = f"Distance of the {kernels} of {samples} random networks to the limit, with fitted slopes"
        distance_lines(ax, widths, lines, title, beside=True)
        farthest = max(results, key=lambda c: abs(c.fit.deviation))
        return (
            f"Relative Frobenius distance of the {kernels} of {samples} random networks to the limit, for "
            "every network of the zoo: geometric mean with two standard errors. The numbers are the slopes "
            "of the log distance by weighted least squares, with one standard error; the theory says -0.5. "
            f"The farthest is {farthest.study.title}, by {abs(farthest.fit.deviation):.1f} standard errors."
        )

    yield f"wrote {experiment.write(stem, picture(draw, (11, 6.6)))} and 2 tables ({stem}_*.csv)"
