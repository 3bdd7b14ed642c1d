"""How pictures look: colours, fonts, captions, and the object that a picture is."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsor.errors import DataError, NetsorError
from netsor.files import replacing

__all__ = [
    "COLOURS",
    "INK",
    "MARKERS",
    "PAPER",
    "RED",
    "Picture",
    "caption",
    "minus",
    "picture",
    "plain_axes",
    "save",
    "style",
]

INK, PAPER, RED = "#1f2430", "#ffffff", "#e4003a"
# Okabe & Ito (2008), which colour-blind readers tell apart; then the same darker, with markers of their own.
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#56b4e9",
    "#cc79a7",
    "#5b6270",
    "#a58b00",
    "#003f63",
    "#7f4a00",
    "#00543d",
    "#6d2f55",
)
MARKERS = "osD^vP*Xdph<"


SETTINGS: dict[Any, Any] = {
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


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture with its caption: the last line of a notebook's cell shows it, `save` writes it.

    figure   matplotlib's, to change anything
    caption  what it shows, in which units; part of the picture
    """

    figure: Any
    caption: str

    def save(self, path: str | Path) -> Path:
        """Write it, as .png, .pdf or .svg; the same numbers give the same file."""
        target = Path(path)
        if target.suffix not in STAMPS:
            what = target.suffix or "a file without suffix"
            raise DataError(f"a picture cannot be {what}", remedy="Use .png, .pdf or .svg.")
        with replacing(target) as temporary:
            self._draw(temporary, target.suffix[1:])
        return target

    def _draw(self, target: Any, kind: str, dpi: int = 200) -> None:
        options = {"format": kind, "bbox_inches": "tight", "pad_inches": 0.12, "dpi": dpi}
        with _matplotlib().rc_context({**SETTINGS, "svg.hashsalt": "netsor", "svg.fonttype": "none"}):
            self.figure.savefig(target, metadata=STAMPS[f".{kind}"], **options)

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self._draw(drawn, "png", dpi=100)  # notebooks keep it
        return drawn.getvalue()

    def __repr__(self) -> str:
        return f"<picture: {self.caption}>"


STAMPS = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def picture(draw: Callable[..., str], size: tuple[float, float], columns: int = 1) -> Picture:
    """A picture from a function that draws into axes and returns the caption."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        axes = [figure.add_subplot(1, columns, k + 1) for k in range(columns)]
        told = minus(draw(*axes))
        figure.supxlabel(
            textwrap.fill(told, int(16.5 * size[0])), x=0.01, ha="left", fontsize=8, linespacing=1.4
        )
    return Picture(figure, told)


def plain_axes(ax: Any) -> None:
    """A light grid behind what is drawn, and no frame above and to the right."""
    ax.grid(color="#d8dbe2", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise NetsorError(
            "pictures need matplotlib", remedy="Install it with: pip install 'netsor[plots]'"
        ) from None
    return matplotlib


def style() -> Any:
    """matplotlib's pyplot with our settings, drawing to files only."""
    _matplotlib().use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(SETTINGS)
    return pyplot


def minus(text: str) -> str:
    """Numbers with a proper minus sign."""
    return text.replace("-0.", "\u22120.")


def caption(figure: Any, text: str, columns: int = 190) -> None:
    """A caption below the whole figure."""
    lines = textwrap.fill(minus(text), columns)
    figure.text(0.01, -0.012, lines, ha="left", va="top", fontsize=9, linespacing=1.45)


def save(figure: Any, stem: Path) -> list[Path]:
    """PNG and PDF of a figure; returns the files. The same numbers give the same files."""
    paths = [stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.pdf")]
    for path in paths:
        stamp = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
        with replacing(path) as temporary:
            figure.savefig(temporary, bbox_inches="tight", pad_inches=0.15, metadata=stamp)
    return paths
