"""How pictures look: colours, fonts, captions, and the object that a picture is."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from netsor.errors import DataError, NetsorError
from netsor.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
else:
    Axes = Any  # modules that draw take the type from here, because matplotlib is an extra

INK, RED = "#1f2430", "#e4003a"
# Okabe & Ito (2008), which colour-blind readers tell apart; then darker versions.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"),
    *("#5b6270", "#a58b00", "#003f63", "#7f4a00", "#00543d", "#6d2f55"),
)
SETTINGS = Path(__file__).with_name("pictures.mplstyle")


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture with its caption. A notebook shows it, and `save` writes it.

    Parameters
    ----------
    figure
        The figure of matplotlib, to change anything.
    caption
        What is drawn, in which units. The caption is part of the figure.
    """

    figure: Figure
    caption: str

    def save(self, path: str | Path) -> Path:
        """Write the picture; the same numbers give the same file.

        Parameters
        ----------
        path
            A file that ends in .png, .pdf or .svg.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        DataError
            If the path has another suffix.
        FileError
            If the file cannot be written.
        """
        target = Path(path)
        if target.suffix not in (".png", ".pdf", ".svg"):
            what = target.suffix or "a file without suffix"
            raise DataError(f"a picture cannot be {what}", remedy="Use .png, .pdf or .svg.")
        with replacing(target) as temporary:
            self._draw(temporary, target.suffix[1:])
        return target

    def _draw(self, target: Path | IO[bytes], kind: str, dpi: int = 200) -> None:
        from matplotlib.style import context

        # Files with a date or a version would differ each time.
        stamp = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}[kind]
        with context(SETTINGS):
            self.figure.savefig(
                target, format=kind, dpi=dpi, metadata={stamp: None}, bbox_inches="tight", pad_inches=0.12
            )

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self._draw(content, "png", dpi=100)  # notebooks store it
        return content.getvalue()

    def __repr__(self) -> str:
        return f"<picture: {self.caption}>"


def picture(draw: Callable[..., str], size: tuple[float, float], mosaic: str = "A", **layout: Any) -> Picture:
    """Make a picture, in inches, with a function that draws into axes and returns the caption.

    The function takes one pair of axes for each letter of the mosaic. `layout` and the mosaic are those of
    `Figure.subplot_mosaic`.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.style import context
    except ImportError:
        remedy = "Install it with: pip install 'netsor[plots]'"
        raise NetsorError("pictures need matplotlib", remedy=remedy) from None
    with context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        caption = minus(draw(*figure.subplot_mosaic(mosaic, **layout).values()))
        lines = textwrap.fill(caption, int(16.5 * size[0]))  # letters of 8 points in the width of the figure
        figure.supxlabel(lines, x=0.01, ha="left", fontsize=8, linespacing=1.4)
    return Picture(figure, caption)


def plain_axes(ax: Axes) -> None:
    """Draw a light grid behind everything, and no frame above and to the right."""
    ax.grid(color="#d8dbe2", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def colour_bar(image: ScalarMappable, axes: Axes | list[Axes], label: str, **options: Any) -> Any:
    """Draw the colour bar of an image beside its axes."""
    figure = (axes[0] if isinstance(axes, list) else axes).figure
    bar = figure.colorbar(image, ax=axes, **{"fraction": 0.046, "pad": 0.03, **options})
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_linewidth(0.5)
    return bar


def minus(text: str) -> str:
    """Write negative numbers with a proper minus sign."""
    return text.replace("-0.", "\u22120.")
