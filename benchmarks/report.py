"""Write tables as CSV and Markdown, and plot the scaling curves."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scaling import Curve, Point, exponent

__all__ = ["Row", "Slope", "markdown", "plot", "slopes", "write_csv"]

COLOURS = {"netsor": "#0072B2", "neural-tangents": "#D55E00", "plain": "#E69F00"}


@dataclass(frozen=True)
class Row:
    """A line of the table; times in seconds, memory in MB beyond the import, None where there is nothing."""

    name: str
    work: str
    peer: str | None
    peer_first: float | None
    peer_steady: float | None
    peer_cpu: float | None
    peer_memory: float | None
    first: float
    steady: float
    cpu: float
    memory: float
    ratio: float | None
    cpu_ratio: float | None
    target: str
    met: bool | None
    difference: float | None
    allowed: float | None
    error: float | None
    allowed_error: float | None
    agrees: bool | None
    limit: float | None
    reached: float | None
    load: float


@dataclass(frozen=True)
class Slope:
    """The fitted power of one side of a curve."""

    curve: str
    variable: str
    side: str
    fitted: float
    theory: float


def write_csv(path: Path, rows: Sequence[Row] | Sequence[Point] | Sequence[Slope]) -> None:
    if not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def number(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None else format(value, form)


def pair(theirs: float | None, ours: float, form: str = ".3g") -> str:
    return f"{number(theirs, form)} / {number(ours, form)}"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def agreement(row: Row) -> str:
    """The difference to the peer, the error where a reference gives it, and a remark if one is too large."""
    parts = [] if row.difference is None else [f"{row.difference:.1e}"]
    if row.error is not None:
        parts.append(f"error {row.error:.1e}")
    if row.agrees is False:
        parts.append("**too large**")
    return ", ".join(parts) or "-"


def markdown(rows: Sequence[Row], found: Sequence[Slope], about: Mapping[str, str], command: str) -> str:
    """The whole report; in columns with two numbers the peer's comes first."""
    verdict = {True: "yes", False: "no", None: "-"}
    parts = [f"Command: `{command}`", table(["", ""], about.items())]
    if rows:
        header = [
            "work",
            "peer",
            "first call, s",
            "steady, s",
            "CPU, s",
            "memory, MB",
            "ratio",
            "CPU ratio",
            "target",
            "met",
        ]
        header += ["largest difference", "machine's limit, s", "reached", "load"]
        lines = [
            [
                row.work,
                row.peer or "-",
                pair(row.peer_first, row.first),
                pair(row.peer_steady, row.steady),
                pair(row.peer_cpu, row.cpu),
                pair(row.peer_memory, row.memory, ".0f"),
                number(row.ratio),
                number(row.cpu_ratio),
                row.target or "-",
                verdict[row.met],
                agreement(row),
                number(row.limit, ".2g"),
                number(row.reached, ".1%"),
                f"{row.load:.1f}",
            ]
            for row in rows
        ]
        parts += ["Two numbers in a cell: the peer's, then netsor's.", table(header, lines)]
    if found:
        lines = [[s.curve, s.variable, s.side, f"{s.fitted:.2f}", f"{s.theory:g}"] for s in found]
        parts.append(table(["curve", "variable", "side", "fitted exponent", "theory"], lines))
    return "\n\n".join(parts) + "\n"


def slopes(curves: Sequence[Curve], points: Sequence[Point]) -> list[Slope]:
    """One fit for each curve and side that has been measured."""
    found = []
    for curve in curves:
        for side, chosen in by_side(curve, points).items():
            fitted = exponent([p.value for p in chosen], [p.seconds for p in chosen])
            found.append(Slope(curve.name, curve.variable, side, fitted, curve.power(side)))
    return found


def by_side(curve: Curve, points: Sequence[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        if point.curve == curve.name:
            found.setdefault(point.side, []).append(point)
    return {side: chosen for side, chosen in found.items() if len(chosen) > 1}


def plot(path: Path, curves: Sequence[Curve], points: Sequence[Point]) -> None:
    """Seconds over each variable on logarithmic axes, with the theory's slope through our last point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter, NullLocator

    shown = [curve for curve in curves if by_side(curve, points)]
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.0 * columns, 3.2 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(shown) :]:
        axis.remove()
    for axis, curve in zip(axes.flat, shown, strict=False):
        for side, chosen in by_side(curve, points).items():
            values, seconds = [p.value for p in chosen], [p.seconds for p in chosen]
            label = f"{side}: {exponent([*map(float, values)], seconds):.2f}"
            axis.loglog(values, seconds, "o-", ms=4, color=COLOURS[side], label=label)
            if side == "netsor":
                guide = [seconds[-1] * (v / values[-1]) ** curve.theory for v in values]
                axis.loglog(values, guide, ":", color="0.5", label=f"theory: {curve.theory:g}")
        ticks = (*curve.values, *curve.beyond)
        axis.set_xticks(ticks, [str(v) for v in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set(title=curve.name, xlabel=curve.variable, ylabel="seconds")
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 3, "frameon": False}
        axis.legend(title="exponents", fontsize=8, title_fontsize=8, columnspacing=1.0, **below)
    figure.savefig(path, dpi=150)
    plt.close(figure)
