"""Parts of pictures: what is drawn into one pair of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from netsor.plots.style import COLOURS, INK, colour_bar, minus, plain_axes
from netsor.verify import log_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def heat_map(
    ax: Axes,
    matrix: np.ndarray,
    labels: Sequence[str] = (),
    title: str = "",
    *,
    breaks: Sequence[int] = (),
    limits: tuple[float, float] | None = None,
    scale: str = "",
    line: str = "white",
    cmap: str = "viridis",
) -> None:
    """Draw a matrix with words on both axes, a colour bar, and lines where a new input begins."""
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
    colour_bar(image, ax, scale)


def joint_histogram(
    ax: Axes, pairs: np.ndarray, covariance: np.ndarray, labels: tuple[str, str], title: str
) -> None:
    """Draw a two-dimensional histogram with the level curves of a centred Gaussian at 1, 2 and 3 sigma."""
    reach = 3.8 * np.sqrt(np.diag(covariance)).max()
    grid = np.linspace(-reach, reach, int(np.clip(len(pairs) ** 0.45, 24, 100)) + 1)
    _, _, _, image = ax.hist2d(pairs[:, 0], pairs[:, 1], bins=(grid, grid), cmap="magma")
    angles = np.linspace(0, 2 * np.pi, 200)
    ellipse = np.linalg.cholesky(covariance) @ np.stack([np.cos(angles), np.sin(angles)])
    for radius in (1, 2, 3):
        ax.plot(*(radius * ellipse), color="white", linestyle=(0, (4, 2)), linewidth=1.0)
        top = radius * ellipse[:, np.argmax(ellipse[1])]
        place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
        ax.annotate(f"{radius} sigma", (top[0], top[1]), color="white", fontsize=7, **place)
    ax.set(xlabel=labels[0], ylabel=labels[1], aspect="equal", title=title)
    colour_bar(image, ax, "networks per cell")


def distance_lines(
    ax: Axes,
    widths: Sequence[int],
    lines: Sequence[tuple[str, np.ndarray]],
    title: str = "",
    *,
    beside: bool = False,
) -> None:
    """Draw geometric means of distances (widths, samples) with two standard errors, and a slope of -1/2.

    A shade holds the middle half of the distances, if there are few lines; the legend stands `beside` many.
    """
    markers = "osD^vP*Xdph<"
    for k, (label, distances) in enumerate(lines):
        logs, errors = log_means(distances)
        mean, bars = np.exp(logs), np.exp(logs + 2 * errors * [[-1], [1]])
        colour = COLOURS[k % len(COLOURS)]
        if len(lines) <= 6:  # more shades than that hide each other
            low, high = np.quantile(distances, (0.25, 0.75), axis=1)
            ax.fill_between(widths, low, high, color=colour, alpha=0.12, linewidth=0)
        looks = {"color": colour, "linewidth": 1.4, "elinewidth": 0.9, "markersize": 4.5}
        reach = abs(bars - mean)
        ax.errorbar(widths, mean, reach, label=minus(label), marker=markers[k % len(markers)], **looks)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    _reference(ax, np.asarray(widths, float), [distances for _, distances in lines])
    ax.set_xticks(widths, [str(w) for w in widths])  # powers of two read better than 10^1.5
    ax.minorticks_off()
    plain_axes(ax)
    ax.set(xlabel="width", ylabel="relative Frobenius distance to the limit", title=title)
    legend = ax.legend(fontsize=8, frameon=not beside, framealpha=0.9, edgecolor="none")
    if beside:
        legend.set_loc("center left")
        legend.set_bbox_to_anchor((1.01, 0.5))


def _reference(ax: Axes, widths: np.ndarray, distances: Sequence[np.ndarray]) -> None:
    """Draw a dashed line of slope -1/2 below the others, and decimal ticks."""
    from matplotlib.ticker import FixedLocator

    lowest = min(float(np.exp(log_means(d)[0])[-1]) for d in distances)
    line = 0.62 * lowest * np.sqrt(widths[-1] / widths)
    ax.plot(widths, line, color=INK, linestyle=(0, (4, 3)), linewidth=1.0, label=r"$1/\sqrt{\mathrm{width}}$")
    ax.yaxis.set_major_locator(FixedLocator([m * 10.0**e for e in range(-5, 2) for m in (1, 2, 5)]))
    ax.yaxis.set_major_formatter("{x:g}")


def radius_histogram(ax: Axes, radii: np.ndarray, title: str) -> None:
    """Draw the distances of points to the centre of a plane Gaussian, in sigma, and r exp(-r^2 / 2)."""
    edges = np.linspace(0, 4.5, int(np.clip(len(radii) ** 0.4, 18, 60)) + 1)
    looks = {"color": "#f0a35e", "edgecolor": "white", "linewidth": 0.4}
    ax.hist(radii, edges.tolist(), density=True, label="networks", **looks)
    r = np.linspace(0, 4.5, 300)
    ax.plot(r, r * np.exp(-0.5 * r**2), color=INK, linewidth=1.5, label=r"limit, $r\,e^{-r^2/2}$")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set(xlabel="distance from the centre in the limit's sigma", ylabel="density")
    ax.set(title=title, xlim=(0, 4.5))
    ax.set_box_aspect(1)
    ax.legend(fontsize=8, frameon=False)
