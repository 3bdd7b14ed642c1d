"""Pictures. Needs the extra `plots` (matplotlib)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netsor.errors import NetsorError
from netsor.files import replacing

__all__ = [
    "caption",
    "distance_lines",
    "heat_map",
    "joint_histogram",
    "radius_histogram",
    "save",
    "style",
    "training",
]

INK, PAPER, RED = "#1f2430", "#ffffff", "#e4003a"
COLOURS = (
    "#4269d0",
    "#e07b00",
    "#c9243f",
    "#2a8f82",
    "#3c9a4a",
    "#9a62d8",
    "#b3568a",
    "#7a5c44",
    "#5b6270",
    "#0f86c1",
    "#a58b00",
    "#d0589c",
)
MARKERS = "osD^vP*Xdph<"


def style() -> Any:
    """matplotlib's pyplot with our settings, drawing to files only."""
    try:
        import matplotlib
    except ImportError:
        raise NetsorError(
            "pictures need matplotlib", remedy="Install it with: pip install 'netsor[plots]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "figure.facecolor": PAPER,
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "axes.linewidth": 0.7,
            "xtick.color": INK,
            "ytick.color": INK,
            "text.color": INK,
            "mathtext.fontset": "stix",
            "pdf.fonttype": 42,
            "savefig.dpi": 200,
        }
    )
    return pyplot


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
        ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7.5)
        ax.set_yticks(range(len(labels)), labels, fontsize=7.5)
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
            label=_minus(label),
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    _reference(ax, np.asarray(widths, float), [d for _, d in lines])
    ax.set_xticks(widths, [str(w) for w in widths])
    ax.minorticks_off()
    ax.grid(color="#d8dbe2", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
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


def training(stored: Mapping[str, np.ndarray], title: str) -> Any:
    """Predictions of an ensemble at several times, with bands of two deviations, and its loss over time.

    The inputs must have one number each; otherwise the loss is drawn alone.
    """
    pyplot, new = style(), np.asarray(stored["new"], float).reshape(len(stored["new"]), -1)
    line = new.shape[1] == 1 and stored["mean"].ndim == 2
    figure, axes = pyplot.subplots(1, 1 + line, figsize=(4.6 + 4.6 * line, 3.6), squeeze=False)
    colours = pyplot.get_cmap("viridis")(np.linspace(0.0, 0.85, len(stored["times"])))
    if line:
        _predictions(axes[0, 0], stored, new[:, 0], colours)
        axes[0, 0].set(xlabel="input", ylabel="output", title=title)
    ax = axes[0, -1]
    ax.plot(stored["curve_times"], stored["curve_loss"], color=INK, linewidth=1.5)
    for time, loss, colour in zip(stored["times"], stored["loss"], colours, strict=True):
        if 0 < time < np.inf:
            ax.plot([time], [loss], "o", color=colour, markersize=6)
    ax.set(xscale="log", yscale="log", xlabel="time", ylabel="expected loss", title="loss" if line else title)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#d8dbe2", linewidth=0.6)
    figure.tight_layout(w_pad=3)
    return figure


def _predictions(ax: Any, stored: Mapping[str, np.ndarray], x: np.ndarray, colours: Any) -> None:
    order = np.argsort(x)
    rows = zip(stored["times"], stored["mean"][:, order], stored["std"][:, order], colours, strict=True)
    for k, (time, mean, std, colour) in enumerate(rows):
        label = "t = ∞" if time == np.inf else f"t = {time:g}"
        ax.plot(x[order], mean, color=colour, linewidth=1.5, label=label)
        if k in (0, len(stored["times"]) - 1):
            ax.fill_between(x[order], mean - 2 * std, mean + 2 * std, color=colour, alpha=0.15, linewidth=0)
    ax.plot(stored["x"].reshape(-1), stored["y"].reshape(-1), "o", color=RED, markersize=4.5, zorder=5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False)


def _minus(text: str) -> str:
    """Numbers with a proper minus sign."""
    return text.replace("-0.", "\u22120.")


def caption(figure: Any, text: str, columns: int = 190) -> None:
    """A caption below the whole figure."""
    lines = textwrap.fill(_minus(text), columns)
    figure.text(0.01, -0.012, lines, ha="left", va="top", fontsize=9, linespacing=1.45)


def save(figure: Any, stem: Path) -> list[Path]:
    """PNG and PDF of a figure; returns the files. The same numbers give the same files."""
    paths = [stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.pdf")]
    for path in paths:
        stamp = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
        with replacing(path) as temporary:
            figure.savefig(temporary, bbox_inches="tight", pad_inches=0.15, metadata=stamp)
    return paths
