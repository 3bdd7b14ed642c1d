"""The user's own source line, for error messages."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import CodeType, FrameType

from netsor.errors import Place

__all__ = ["Spot", "here"]

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@dataclass(frozen=True)
class Spot:
    """An instruction in the user's code; it becomes a `Place` only when an error needs one."""

    code: CodeType
    line: int
    instruction: int
    file: str  # equal code may stand in two files

    @cache  # noqa: B019 -- a loop meets the same few spots again and again
    def place(self) -> Place:
        text = linecache.getline(self.file, self.line).rstrip("\n")
        nowhere = (None, None, None, None)
        spots = islice(self.code.co_positions(), self.instruction // 2, None)
        first, last, start, end = next(spots, nowhere)
        if not text or start is None or end is None or first != self.line:
            start = end = 0
        elif last != first:  # a call over several lines: mark what stands on its first
            end = len(text.encode())
        marks = (len(text.encode()[:byte].decode(errors="replace")) for byte in (start, end))
        return Place(self.line, text, *marks, file=os.path.basename(self.file))


_SPOTS: dict[
    tuple[int, int], Spot
] = {}  # a loop makes the same few again and again; each keeps its code alive


def here() -> Spot | None:
    """The innermost call that stands outside this package; on the command line there is none."""
    frame = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        if frame.f_globals.get("__name__", "").startswith("netsor.cli"):
            return None
        frame = frame.f_back
    if frame is None:
        return None
    key = (id(frame.f_code), frame.f_lasti)
    spot = _SPOTS.get(key)
    if spot is None:
        spot = Spot(frame.f_code, frame.f_lineno, frame.f_lasti, frame.f_code.co_filename)
        if len(_SPOTS) > 10_000:
            _SPOTS.clear()
        _SPOTS[key] = spot
    return spot


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of netsor, also code that a dataclass or a decorator runs for it."""
    file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
    generated = file == "<string>" and module.startswith("netsor.")
    return generated or file.startswith(PACKAGE) or module in ("contextlib", "functools")
