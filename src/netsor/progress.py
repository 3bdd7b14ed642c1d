"""A progress bar for long work: by default in a terminal only, and only once a run takes long."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

from rich.progress import Progress

__all__ = ["bar"]

QUIET_SECONDS = 2.0


def bar(progress: bool | None, total: int, title: str):
    """A context that gives a function to call after each step; `progress` is always, never or None."""
    if progress is False:
        return nullcontext(lambda: None)
    return _Bar(total, title, always=bool(progress))


class _Bar:
    def __init__(self, total: int, title: str, always: bool) -> None:
        self.bar = Progress(transient=True)
        self.total, self.title = total, title
        self.shown, self.done = always, 0
        self.silent = not always and not self.bar.console.is_terminal

    def __enter__(self) -> Callable[[], None]:
        self.start = time.monotonic()
        if self.shown:
            self.open()
        return self.advance

    def open(self) -> None:
        self.bar.start()
        self.task = self.bar.add_task(self.title, total=self.total, completed=self.done)
        self.shown = True

    def advance(self) -> None:
        self.done += 1
        if self.silent:
            return
        if not self.shown and time.monotonic() - self.start > QUIET_SECONDS:
            self.open()
        elif self.shown:
            self.bar.update(self.task, completed=self.done)

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.bar.stop()
