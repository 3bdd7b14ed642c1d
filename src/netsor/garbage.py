"""Python's search for garbage in cycles, put off while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["search_put_off"]

_lock, _waiting, _enabled = Lock(), 0, True


@contextmanager
def search_put_off() -> Iterator[None]:
    """A program of ten thousand layers is millions of objects, and every search would visit all of them."""
    global _waiting, _enabled
    with _lock:
        if _waiting == 0:
            _enabled = gc.isenabled()
            gc.disable()
        _waiting += 1
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            if _waiting == 0 and _enabled:
                _make_old()
                gc.enable()


def _make_old() -> None:
    """Count all that is there as old, as it will be after three searches, each of which visits all of it."""
    if gc.get_freeze_count() == 0:  # else somebody keeps objects frozen, and they shall stay so
        gc.freeze()
        gc.unfreeze()
