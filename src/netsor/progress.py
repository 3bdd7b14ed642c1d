"""How far long work is: a bar in a terminal or notebook, a line every ten seconds in a log.

By default nothing is shown of work that takes less than two seconds. One thread watches all work under way,
so that a single long step is seen, too, and short work pays a few microseconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

__all__ = ["bar", "time_left"]

QUIET_SECONDS = 2.0  # of work that nobody needs to see
LINE_SECONDS = 10.0  # between the lines of a log
TICK_SECONDS = 0.25


def bar(
    progress: bool | None,
    total: int,
    title: str,
    expected: Callable[[], float] | None = None,
    work: float | None = None,
):
    """A context that gives a function to call after each step; `progress` is always, never or None.

    The function takes a note for the reader, and the work of the step if steps differ.

    total     steps; 0 if nobody knows
    expected  seconds by the plan, for as long as no step is done
    work      of all steps, in a unit that is proportional to time; by default every step takes as long
    """
    if progress is False:
        return nullcontext(lambda note="", work=1.0: None)
    return _Work(total, title, bool(progress), expected, total if work is None else work)


class _Work:
    """Work under way, and who shows it."""

    def __init__(
        self, total: int, title: str, always: bool, expected: Callable[[], float] | None, work: float
    ) -> None:
        self.total, self.title, self.always, self.expected, self.work = total, title, always, expected, work
        self.done, self.worked, self.note, self.screen = 0, 0.0, "", None
        self.lock = threading.Lock()

    def __enter__(self) -> Callable[..., None]:
        self.start = time.monotonic()
        if self.always:
            self.tick()
        _WATCH.add(self)
        return self.advance

    def advance(self, note: str = "", work: float = 1.0) -> None:
        self.done, self.worked, self.note = self.done + 1, self.worked + work, note

    def tick(self) -> None:
        """Show how far it is, once it is long enough; called by the thread that watches."""
        with self.lock:
            if self.screen is None and (self.always or time.monotonic() - self.start > QUIET_SECONDS):
                self.screen = _screen()
            if self.screen is not None:
                self.screen.show(self)

    def __exit__(self, *_: object) -> None:
        _WATCH.remove(self)
        with self.lock:
            if self.screen is not None:
                self.screen.end(self)

    def told(self) -> str:
        """Title, steps and time left."""
        elapsed = time.monotonic() - self.start
        steps = f"{self.done} of {self.total}" if self.total else f"{self.done} steps" if self.done else ""
        left = time_left(self.worked, self.work, elapsed) if self.total else None
        if left is None and self.expected is not None and self.expected() > elapsed:
            left = self.expected() - elapsed
        parts = [steps, spoken(elapsed), f"{spoken(left)} left" if left is not None else "", self.note]
        return f"{self.title}: {', '.join(part for part in parts if part)}"


def time_left(done: float, total: float, elapsed: float) -> float | None:
    """Seconds that the rest of the work takes if it goes on as fast as before.

    >>> time_left(2, 10, 6.0), time_left(0, 10, 6.0)
    (24.0, None)
    """
    return elapsed / done * (total - done) if done and total >= done else None


def spoken(seconds: float) -> str:
    """A time in the unit that fits it.

    >>> spoken(5.2), spoken(150), spoken(7200)
    ('5 s', '2.5 min', '2.0 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


class _Watch:
    """The thread that looks at all work under way, as long as there is some."""

    def __init__(self) -> None:
        self.work: dict[_Work, None] = {}  # in the order in which they began
        self.awake = threading.Event()
        self.process = 0  # in which it runs: a forked process has none

    def add(self, work: _Work) -> None:
        self.work[work] = None
        if self.process != os.getpid():
            self.process = os.getpid()
            threading.Thread(target=self.run, daemon=True, name="netsor progress").start()
        if not self.awake.is_set():
            self.awake.set()

    def remove(self, work: _Work) -> None:
        self.work.pop(work, None)

    def run(self) -> None:
        while True:
            self.awake.wait()
            time.sleep(TICK_SECONDS)
            self.awake.clear()
            if self.work:  # asked after that: what comes between the two lines wakes it again
                self.awake.set()
            for work in list(self.work)[:1]:  # the outermost, which knows how far all of it is
                work.tick()


_WATCH = _Watch()


def _screen() -> Any:
    """What can be seen from here: a terminal, a notebook, or a log."""
    if "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel"):
        return _Notebook()
    return _Terminal() if sys.stderr.isatty() else _Log()


class _Terminal:
    """A bar by rich, which is loaded here, as most work is too short for it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task: Any = None

    def show(self, work: _Work) -> None:
        if self.task is None:
            self.task = self.bar.add_task(work.title, total=work.work or None)
        self.bar.update(self.task, completed=work.worked, description=work.told())

    def end(self, work: _Work) -> None:
        self.bar.stop()


class _Notebook:
    """A bar of the browser that goes when the work is done."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, work: _Work) -> None:
        from html import escape

        from IPython.display import HTML, display  # type: ignore[import-not-found]

        value = f' value="{work.worked:g}" max="{work.work:g}"' if work.total else ""
        shown = HTML(f"<progress{value}></progress> {escape(work.told())}")
        if self.handle is None:
            self.handle = display(shown, display_id=True)
        else:
            self.handle.update(shown)

    def end(self, work: _Work) -> None:
        from IPython.display import HTML  # type: ignore[import-not-found]

        if self.handle is not None:
            self.handle.update(HTML(""))


class _Log:
    """A line every ten seconds."""

    def __init__(self) -> None:
        self.last = -LINE_SECONDS

    def show(self, work: _Work) -> None:
        now = time.monotonic()
        if (work.always or now - work.start >= LINE_SECONDS) and now - self.last >= LINE_SECONDS:
            self.last = now
            print(work.told(), file=sys.stderr, flush=True)

    def end(self, work: _Work) -> None:
        if self.last > 0:
            print(
                f"{work.title}: done in {spoken(time.monotonic() - work.start)}", file=sys.stderr, flush=True
            )
