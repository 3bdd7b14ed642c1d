"""The distance of finite networks to the limit for every network of the zoo: kernels, and tangent kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from netsor.files import write_text
from netsor.plots.panels import distance_lines
from netsor.plots.style import caption, save, style
from netsor.reproduce.convergence import measure, slope_table
from netsor.reproduce.kernels import write_convergence
from netsor.reproduce.store import Run
from netsor.reproduce.studies import Study, tangent_studies, zoo_studies

__all__ = ["ntk_figure", "zoo_figure"]


def zoo_figure(
    run: Run, widths: Sequence[int], samples: int, images: np.ndarray | None = None
) -> Iterator[str]:
    """The kernels, one line for each network; yields what it found."""
    yield from _figure(run, "zoo", zoo_studies(images), widths, samples, tangent=False)


def ntk_figure(run: Run, widths: Sequence[int], samples: int) -> Iterator[str]:
    """The tangent kernels: the figure of Tensor Programs II, with the rest of the zoo."""
    yield from _figure(run, "ntk", tangent_studies(), widths, samples, tangent=True)


def _figure(
    run: Run, stem: str, studies: Sequence[Study], widths: Sequence[int], samples: int, tangent: bool
) -> Iterator[str]:
    pyplot, kernels = style(), "tangent kernels" if tangent else "kernels"
    found = []
    for study in studies:
        found.append(measure(run, study, widths, samples, tangent))
        yield f"{study.title}: slope {found[-1].fit}"
    yield from slope_table(found)
    write_convergence(run, stem, found)
    figure, ax = pyplot.subplots(figsize=(11, 6.6), layout="constrained")
    ordered = sorted(found, key=lambda c: -np.log(c.distances[-1]).mean())
    lines = [(f"{c.study.title}, {c.fit.slope:.3f} ± {c.fit.error:.3f}", c.distances) for c in ordered]
    title = f"Distance of the {kernels} of {samples} random networks to the limit, with fitted slopes"
    distance_lines(ax, widths, lines, title, beside=True)
    far = max(found, key=lambda c: abs(c.fit.deviation))
    text = (
        f"Relative Frobenius distance of the {kernels} of {samples} random networks to the limit, for every "
        "network of the zoo: geometric mean with two standard errors. The numbers are the slopes of the log "
        "distance by weighted least squares, with one standard error; the theory says -0.5. The farthest "
        f"from it is {far.study.title}, by {abs(far.fit.deviation):.1f} standard errors."
    )
    caption(figure, text, columns=125)
    paths = save(figure, run.folder / stem)
    pyplot.close(figure)
    write_text(run.folder / f"{stem}_caption.txt", text + "\n")
    yield f"wrote {', '.join(str(p) for p in paths)}, {stem}_caption.txt and 2 tables ({stem}_*.csv)"
