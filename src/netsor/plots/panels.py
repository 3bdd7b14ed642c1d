"""Parts of pictures: what is drawn into one pair of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netsor.plots.style import COLOURS, INK, MARKERS, PAPER, minus, plain_axes

__all__ = ["distance_lines", "heat_map", "joint_histogram", "radius_histogram"]


def heat_map(
    ax: Any,
    matrix: np.ndarray,
    labels: Sequence[str] = (),
    title: str = "",
    *,
    breaks: Sequence[int] = (),
    limits: tuple[float, float] | None = None,
    scale: str = "",
    line: str = "white",
    cmap: str = "viridis",
) -> Any:
    """A matrix with words on both axes, a colour bar, and lines where a new input begins."""
    low, high = limits or (None, None)
    image = ax.imshow(matrix, cmap=cmap, interpolation="nearest", vmin=low, vmax=high)
    if labels:
        size = min(7.5, 250 / len(labels))  # points: what fits beside a row
        ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=size)
        ax.set_yticks(range(len(labels)), labels, fontsize=size)
    ax.tick_params(length=0 if labels else 3)
    for row in breaks:
        ax.axhline(row - 0.5, color=line, linewidth=1.3)
        ax.axvline(row - 0.5, color=line, linewidth=1.3)
    ax.set_title(title)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label(scale, fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_linewidth(0.5)
    return image


def joint_histogram(
    ax: Any, pairs: np.ndarray, covariance: np.ndarray, labels: tuple[str, str], title: str
) -> None:
    """A two-dimensional histogram with the level curves of a centred Gaussian at 1, 2 and 3 sigma."""
    reach = 3.8 * np.sqrt(np.diag(covariance)).max()
    grid = np.linspace(-reach, reach, int(np.clip(len(pairs) ** 0.45, 24, 100)) + 1)
    _, _, _, image = ax.hist2d(pairs[:, 0], pairs[:, 1], bins=(grid, grid), cmap="magma")
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(angles), np.sin(angles)])
    for radius, name in ((1, "1 sigma"), (2, "2 sigma"), (3, "3 sigma")):
        ax.plot(*(radius * circle), color="white", linestyle=(0, (4, 2)), linewidth=1.0)
        peak = radius * circle[:, np.argmax(circle[1])]
        ax.annotate(
            name,
            peak,
            (0, 2),
            textcoords="offset points",
            color="white",
            fontsize=7,
            ha="center",
            va="bottom",
        )
    ax.set(xlabel=labels[0], ylabel=labels[1], aspect="equal", title=title)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("networks per cell", fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_linewidth(0.5)


def distance_lines(
    ax: Any,
    widths: Sequence[int],
    lines: Sequence[tuple[str, np.ndarray]],
    title: str,
    *,
    beside: bool = False,
) -> None:
    """Distances against width on logarithmic axes; a line of (label, array (widths, samples)) each.

    The points are geometric means with two standard errors, the shade holds the middle half of the networks.
    """
    for k, (label, distances) in enumerate(lines):
        logs = np.log(distances)
        centre, error = logs.mean(1), logs.std(1, ddof=1) / np.sqrt(logs.shape[1])
        low, high = np.quantile(distances, (0.25, 0.75), axis=1)
        colour = COLOURS[k % len(COLOURS)]
        if len(lines) <= 6:
            ax.fill_between(widths, low, high, color=colour, alpha=0.12, linewidth=0)
        bars = [np.exp(centre) - np.exp(centre - 2 * error), np.exp(centre + 2 * error) - np.exp(centre)]
        ax.errorbar(
            widths,
            np.exp(centre),
            bars,
            color=colour,
            marker=MARKERS[k % len(MARKERS)],
            markersize=4.5,
            linewidth=1.4,
            elinewidth=0.9,
            label=minus(label),
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    _reference(ax, np.asarray(widths, float), [d for _, d in lines])
    ax.set_xticks(widths, [str(w) for w in widths])
    ax.minorticks_off()
    plain_axes(ax)
    ax.set(xlabel="width", ylabel="relative Frobenius distance to the limit", title=title)
    place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if beside else {"loc": "best"}
    ax.legend(fontsize=8, frameon=not beside, framealpha=0.9, edgecolor="none", **place)


def _reference(ax: Any, widths: np.ndarray, distances: Sequence[np.ndarray]) -> None:
    """A dashed line of slope -1/2 below the others, and decimal ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    bottom = min(np.exp(np.log(d).mean(1))[-1] for d in distances)
    line = 0.62 * bottom * np.sqrt(widths[-1] / widths)
    ax.plot(widths, line, color=INK, linestyle=(0, (4, 3)), linewidth=1.0, label=r"$1/\sqrt{\mathrm{width}}$")
    ticks = [m * 10.0**e for e in range(-5, 2) for m in (1, 2, 5)]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def radius_histogram(ax: Any, radii: np.ndarray, title: str) -> None:
    """Distances of points to the centre of a plane Gaussian in units of its sigma, and r exp(-r^2 / 2)."""
    edges = np.linspace(0, 4.5, int(np.clip(len(radii) ** 0.4, 18, 60)) + 1)
    ax.hist(radii, edges, density=True, color="#f0a35e", edgecolor=PAPER, linewidth=0.4, label="networks")
    r = np.linspace(0, 4.5, 300)
    ax.plot(r, r * np.exp(-0.5 * r**2), color=INK, linewidth=1.5, label=r"limit, $r\,e^{-r^2/2}$")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set(
        xlabel="distance from the centre in the limit's sigma", ylabel="density", title=title, xlim=(0, 4.5)
    )
    ax.set_box_aspect(1)
    ax.legend(fontsize=8, frameon=False)
