"""The user's source line, for error messages."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from types import CodeType, FrameType

from netsor.errors import BuildError, NetsorError, Place

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@dataclass(frozen=True)
class Spot:
    """An instruction in the user's code; `place` finds line and columns when an error needs them."""

    code: CodeType
    line: int
    instruction: int
    file: str  # code objects of different files may be equal

    @cache  # noqa: B019 -- loops create few distinct spots
    def place(self) -> Place:
        text = linecache.getline(self.file, self.line).rstrip("\n")
        nowhere = (None, None, None, None)
        spots = islice(self.code.co_positions(), self.instruction // 2, None)
        first, last, start, end = next(spots, nowhere)
        if not text or start is None or end is None or first != self.line:
            start = end = 0
        elif last != first:  # a call over several lines: mark its first line
            end = len(text.encode())
        marks = (len(text.encode()[:byte].decode(errors="replace")) for byte in (start, end))
        return Place(self.line, text, *marks, file=os.path.basename(self.file))


# Loops visit few distinct spots, so equal ones share an object and its cached place.
_spot = lru_cache(maxsize=10_000)(Spot)


def here() -> Spot | None:
    """Find the innermost call in code outside this package; None on the command line."""
    frame = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        if frame.f_globals.get("__name__", "").startswith("netsor.cli"):
            return None
        frame = frame.f_back
    return frame and _spot(frame.f_code, frame.f_lineno, frame.f_lasti, frame.f_code.co_filename)


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of netsor, or generated or wrapper code on its behalf."""
    file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
    generated = file == "<string>" and module.startswith("netsor.")
    return generated or file.startswith(PACKAGE) or module in ("contextlib", "functools")


def fail(
    what: str, remedy: str, kind: type[NetsorError] = BuildError, place: Place | None = None
) -> NetsorError:
    """Create an error that points at a place, by default the user's source line."""
    spot = None if place else here()
    return kind(what, place=spot.place() if spot else place, remedy=remedy)
