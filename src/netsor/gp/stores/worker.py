"""A process that computes tiles, with its work on the standard input.

It ends when the process that started it does: then the pipe between them closes.
"""

from __future__ import annotations

import os
import pickle
import sys
from threading import Thread

from netsor.errors import NetsorError
from netsor.gp.stores.tiles import compute_tiles, opened

__all__ = ["main"]


def main() -> int:
    what, tiles = pickle.load(sys.stdin.buffer)
    Thread(target=_end_with_the_other, daemon=True).start()
    try:
        held = opened(what)
        for _ in compute_tiles(held, tiles):
            pass
    except NetsorError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _end_with_the_other() -> None:
    os.read(sys.stdin.fileno(), 1)  # not through Python's file, whose lock would be held at our own end
    os._exit(2)
