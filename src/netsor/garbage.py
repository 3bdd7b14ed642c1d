"""Put off Python's search for garbage in cycles while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock, _waiting, _enabled = Lock(), 0, True


@contextmanager
def search_put_off() -> Iterator[None]:
    """Disable the search for garbage in a block; blocks may be nested and run in several threads.

    A program of ten thousand layers has millions of objects, and every search would visit all of them.
    """
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
                # Move all objects to the oldest generation, where they would be after three searches. An
                # application that keeps objects frozen keeps them so.
                if gc.get_freeze_count() == 0:
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
