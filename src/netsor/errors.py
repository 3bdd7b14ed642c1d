"""The errors of netsor: each says what is wrong, where, why by which rule, and what to do."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from functools import partial

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


@dataclass(frozen=True)
class Place:
    """A position in a source text: a line of a program, or a line of the user's Python.

    Parameters
    ----------
    line
        Number of the line, from 1.
    text
        The line itself, or an empty string where the source is not available.
    start, end
        Columns that the message marks with carets.
    file
        Name of the Python file, or None for a program.
    """

    line: int
    text: str
    start: int = 0
    end: int = 0
    file: str | None = None

    @property
    def title(self) -> str:
        """The line in words, with its file."""
        return f"line {self.line}" if self.file is None else f"{self.file}, line {self.line}"

    def picture(self) -> str:
        """Draw the line with its number, and carets under the columns `start` to `end`."""
        text, start, end = self.text, self.start, self.end
        if not text.strip():  # the source is not at hand, as in an interactive session
            return ""
        if len(text) > 200:  # show 200 characters around the columns
            first = max(0, start - 100)
            before, last = "..." if first else "", min(len(text), first + 200)
            text = before + text[first:last] + ("..." if last < len(text) else "")
            start, end = (min(column, last) - first + len(before) for column in (start, end))
        gutter = f"  {self.line} | "
        shift = len(gutter) - len(text) + len(text.lstrip())
        carets = "\n" + " " * (start + shift) + "^" * (end - start) if end > start else ""
        return gutter + text.strip() + carets


class NetsorError(Exception):
    """Base of all errors that netsor raises on purpose.

    Parameters
    ----------
    what
        What is wrong, in one line.
    place
        Where in the source, if it is known.
    remedy
        Why, by which rule, and what to do.
    """

    def __init__(self, what: str, *, place: Place | None = None, remedy: str = "") -> None:
        self.what, self.place, self.remedy = what, place, remedy
        super().__init__(what)

    def __str__(self) -> str:
        head = f"{self.place.title}: {self.what}" if self.place else self.what
        picture = self.place.picture() if self.place else ""
        return "\n".join(part for part in (head, picture, self.remedy) if part)

    def __reduce__(self):
        return partial(type(self), place=self.place, remedy=self.remedy), (self.what,)


class ParseError(NetsorError):
    """Raised by `parse` where the text does not follow the grammar."""


class TypeCheckError(NetsorError):
    """Raised when a program is checked and a statement breaks a typing rule of the language."""


class BuildError(NetsorError):
    """Raised when a Python network does something that no Netsor program can express."""


class DataError(NetsorError):
    """Raised for data or arguments that cannot be used: NaN, infinity, a wrong shape."""


class FileError(DataError, OSError):
    """Raised when a file cannot be written: the disk is full, its name too long, or permission missing."""


class FunctionError(NetsorError):
    """Raised for a nonlinearity that is not coordinatewise, changes shapes, or grows too fast."""


class LoweringError(NetsorError):
    """Raised by `Program.lower` when the program cannot be written in the variant asked for."""


class LimitError(NetsorError):
    """Raised when a limit does not exist, has no method of the kind asked for, or misses its tolerance."""


class SimulationError(NetsorError):
    """Raised when a network of finite width cannot be simulated, or its values are not finite."""


class TangentError(NetsorError):
    """Raised when a program has no tangent kernel: a derivative does not exist or grows too fast."""


class NetsorWarning(UserWarning):
    """Issued when a result is correct but may not be what the user meant."""


def warn(what: str, remedy: str) -> None:
    """Issue a `NetsorWarning` at the line of the user's code that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "netsor":
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{what}\n{remedy}", NetsorWarning, stacklevel=level)
