"""The paper's figure of all kernels: correlation matrices, and the distance of finite networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from netsor.files import write_csv, write_text
from netsor.plots.panels import distance_lines, heat_map
from netsor.plots.style import RED, caption, save, style
from netsor.reproduce.convergence import Convergence, measure, slope_table
from netsor.reproduce.store import Run
from netsor.reproduce.studies import paper_studies

__all__ = ["kernels_figure", "write_convergence"]


def kernels_figure(
    run: Run, widths: Sequence[int], samples: int, images: np.ndarray | None = None
) -> Iterator[str]:
    """Panels A to E; yields what it found, line by line."""
    pyplot = style()
    found = []
    for study in paper_studies(images):
        found.append(measure(run, study, widths, samples))
        yield f"{study.title}: slope {found[-1].fit}"
    yield from slope_table(found)
    _write_kernels(run, found)
    write_convergence(run, "kernels", found)
    figure, axes = pyplot.subplot_mosaic("AABBCC\nDDEEEE", figsize=(13.5, 9), layout="constrained")
    lowest = min(float(correlation(c).min()) for c in found[:3])
    for panel, c in zip("ABCD", found, strict=True):
        limits = (float(correlation(c).min()) if panel == "D" else lowest, 1.0)
        title, batches = f"{panel}  {c.study.title}", not c.study.labels
        heat_map(
            axes[panel],
            correlation(c),
            c.study.labels,
            title,
            breaks=c.study.breaks,
            limits=limits,
            scale="correlation",
            line=RED if batches else "white",
        )
        if batches:
            axes[panel].set(xlabel="image", ylabel="image")
    lines = [(f"{c.study.title}, slope {c.fit.slope:.3f} ± {c.fit.error:.3f}", c.distances) for c in found]
    distance_lines(axes["E"], widths, lines, f"E  distance of {samples} random networks to the limit")
    text = _caption(found, samples, "digits" if images is None else "CIFAR-10 images")
    caption(figure, text)
    paths = save(figure, run.folder / "kernels")
    pyplot.close(figure)
    write_text(run.folder / "kernels_caption.txt", text + "\n")
    yield f"wrote {', '.join(str(p) for p in paths)}, kernels_caption.txt and 6 tables (kernels_*.csv)"


def correlation(c: Convergence) -> np.ndarray:
    """The correlation matrix of the limit."""
    sigma = np.sqrt(np.diag(c.limit.value))
    return c.limit.value / np.outer(sigma, sigma)


def _caption(found: Sequence[Convergence], samples: int, images: str) -> str:
    slopes = ", ".join(f"{c.study.title} {c.fit.slope:.3f} ± {c.fit.error:.3f}" for c in found)
    widths = found[0].widths
    return (
        "Correlation matrices of the infinite-width kernels of (A) the simple RNN, (B) the GRU and (C) the "
        "transformer on the two sentences, and (D) a network of two layers of batchnorm followed by relu on "
        f"64 {images} in two batches of 32; the red lines divide the batches. (E) Relative Frobenius "
        f"distance of the kernels of {samples} random networks to the limit, at widths {widths[0]} to "
        f"{widths[-1]}: geometric mean with two standard errors; the shade holds the middle half of the "
        f"networks. Slopes of the log distance by weighted least squares, with one standard error: "
        f"{slopes}. The theory says -0.5."
    )


def _write_kernels(run: Run, found: Sequence[Convergence]) -> None:
    for panel, c in zip("ABCD", found, strict=True):
        names = c.study.labels or tuple(str(k) for k in range(len(c.limit.value)))
        rows = [[name, *row] for name, row in zip(names, correlation(c), strict=True)]
        write_csv(run.folder / f"kernels_{panel}_{c.study.name}.csv", ["", *names], rows)


def write_convergence(run: Run, stem: str, found: Sequence[Convergence]) -> None:
    """Every distance, and the slopes with their errors."""
    rows: list[list[object]] = []
    for c in found:
        for width, distances in zip(c.widths, c.distances, strict=True):
            rows += [[c.study.name, width, k, d] for k, d in enumerate(distances)]
    write_csv(run.folder / f"{stem}_E_distances.csv", ["network", "width", "sample", "distance"], rows)
    header = ["network", "slope", "error", "chi2", "dof", "slope_from_128", "error_from_128", "limit_error"]
    table: list[list[object]] = []
    for c in found:
        wide = c.wide_fit
        last = ["", ""] if wide is None else [wide.slope, wide.error]
        fit = [c.fit.slope, c.fit.error, c.fit.chi2, c.fit.freedom]
        table.append([c.study.name, *fit, *last, c.limit_error])
    write_csv(run.folder / f"{stem}_E_slopes.csv", header, table)
