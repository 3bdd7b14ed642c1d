"""How much work a call is, in numbers that no other job on the machine can change."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable


def calls(work: Callable[[], object]) -> int:
    """Calls of functions, in Python and in C, that `work` makes in this thread."""
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # a search for garbage calls weak references, and depends on what earlier tests left behind
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def peak(work: Callable[[], object]) -> int:
    """Bytes that `work` holds at once, at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
