"""The errors of netsor: each says what is wrong, where, why by which rule, and what to do."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

__all__ = [
    "BuildError",
    "DataError",
    "FileError",
    "FunctionError",
    "LimitError",
    "LoweringError",
    "NetsorError",
    "NetsorWarning",
    "ParseError",
    "Place",
    "SimulationError",
    "TangentError",
    "TypeCheckError",
]


LONGEST_LINE = 200  # of a source text in a message


@dataclass(frozen=True)
class Place:
    """A position in a source text: a line of a program, or a line of the user's Python."""

    line: int
    text: str
    start: int = 0
    end: int = 0
    file: str | None = None

    @property
    def title(self) -> str:
        return f"line {self.line}" if self.file is None else f"{self.file}, line {self.line}"

    def picture(self) -> str:
        """The line with its number, and carets under the columns `start` to `end`."""
        if not self.text.strip():  # the source is not at hand, as in an interactive session
            return ""
        gutter = f"  {self.line} | "
        text, start, end = self._window()
        shift = len(text) - len(text.lstrip())
        rows = [gutter + text.strip()]
        if end > start:
            rows.append(" " * (len(gutter) + start - shift) + "^" * (end - start))
        return "\n".join(rows)

    def _window(self) -> tuple[str, int, int]:
        """The line and its columns; of a long line, the part around them."""
        if len(self.text) <= LONGEST_LINE:
            return self.text, self.start, self.end
        first = max(0, self.start - LONGEST_LINE // 2)
        last = min(len(self.text), first + LONGEST_LINE)
        before, after = "..." if first else "", "..." if last < len(self.text) else ""
        start = self.start - first + len(before)
        end = min(self.end, last) - first + len(before)
        return f"{before}{self.text[first:last]}{after}", start, end


class NetsorError(Exception):
    """Base of all errors raised on purpose by netsor.

    `what` is one line; `place` points at the source; `remedy` says why and what to do.
    """

    def __init__(self, what: str, *, place: Place | None = None, remedy: str = "") -> None:
        self.what, self.place, self.remedy = what, place, remedy
        super().__init__(what)

    def __str__(self) -> str:
        head = f"{self.place.title}: {self.what}" if self.place else self.what
        picture = self.place.picture() if self.place else ""
        return "\n".join(part for part in (head, picture, self.remedy) if part)

    def __reduce__(self):
        return _rebuild, (type(self), self.what, self.place, self.remedy)


def _rebuild(kind: type[NetsorError], what: str, place: Place | None, remedy: str) -> NetsorError:
    return kind(what, place=place, remedy=remedy)


class ParseError(NetsorError):
    """The text is not a sentence of the grammar."""


class TypeCheckError(NetsorError):
    """A statement breaks a typing rule of the language."""


class BuildError(NetsorError):
    """A Python network asks for something that no Netsor program can say."""


class DataError(NetsorError):
    """The data handed in cannot be used: NaN, infinity, a wrong shape."""


class FileError(DataError, OSError):
    """A file cannot be written: the disk is full, its name is too long, or permission is missing."""


class FunctionError(NetsorError):
    """A nonlinearity is not coordinatewise, changes shape, or is not controlled."""


class LoweringError(NetsorError):
    """A program cannot be written in the variant asked for."""


class LimitError(NetsorError):
    """A limit does not exist, has no method of the kind asked for, or misses its tolerance."""


class SimulationError(NetsorError):
    """A finite-width run cannot be made, or has no finite value."""


class TangentError(NetsorError):
    """A program has no tangent kernel: a derivative does not exist, or is too large to be averaged."""


class NetsorWarning(UserWarning):
    """A result is correct, but may not be what the user meant."""


def warn(what: str, remedy: str) -> None:
    """Warn at the user's line that led here: what happened, then why and what to do."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "netsor":
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{what}\n{remedy}", NetsorWarning, stacklevel=level)
