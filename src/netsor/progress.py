"""A progress bar for long work: by default in a terminal only, and only once a run takes long."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        self.total, self.title = total, title
        self.always, self.done = always, 0
        self.bar: Progress | None = None
        self.silent = False

    def __enter__(self) -> Callable[[], None]:
        self.start = time.monotonic()
        if self.always:
            self.open()
        return self.advance

    def open(self) -> None:
        """Show the bar if somebody can see it; rich is loaded here, as most work is too short for a bar."""
        from rich.progress import Progress

        made = Progress(transient=True)
        self.silent = not self.always and not made.console.is_terminal
        if not self.silent:
            made.start()
            self.task = made.add_task(self.title, total=self.total, completed=self.done)
            self.bar = made

    def advance(self) -> None:
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif not self.silent and time.monotonic() - self.start > QUIET_SECONDS:
            self.open()

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
