"""Progress of long work: a bar in a terminal or a notebook, a line every ten seconds in a log.

By default nothing is shown for work that takes less than two seconds. One thread watches all work under way,
so that a single long step is seen, too, and short work costs a few microseconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

Advance = Callable[..., None]  # takes a note for the reader, and the work of the step


def bar(
    progress: bool | None,
    total: int,
    title: str,
    expected: Callable[[], float] | None = None,
    work: float | None = None,
) -> AbstractContextManager[Advance]:
    """Show progress in a block.

    Parameters
    ----------
    progress
        True shows it always, False never, None once the work takes longer than two seconds.
    total
        Number of steps, or 0 if it is unknown.
    title
        What is done.
    expected
        Returns the seconds that the plan expects; asked until the first step is done.
    work
        Work of all steps, in any unit proportional to time. By default every step takes equally long.

    Returns
    -------
    AbstractContextManager
        A context that yields a function to call after each step, with a note for the reader and, if steps
        differ, the work of the step.

    Examples
    --------
    >>> with bar(None, 3, "counting") as advance:
    ...     for _ in range(3):
    ...         advance()
    """
    if progress is False:
        return nullcontext(lambda note="", work=1.0: None)
    return _Work(title, total, total if work is None else work, expected, bool(progress))


@dataclass(eq=False)
class _Work:
    """Work under way: `done` of `total` steps, which are `worked` of `work`."""

    title: str
    total: int
    work: float
    expected: Callable[[], float] | None = None
    always: bool = False

    done: int = 0
    worked: float = 0.0
    note: str = ""
    start: float = 0.0
    screen: _Notebook | _Terminal | _Log | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    quiet_seconds: ClassVar[float] = 2.0  # nobody needs to see shorter work

    def __enter__(self) -> Advance:
        self.start = time.monotonic()
        if self.always:
            self.tick()
        _WATCH.add(self)
        return self.advance

    def advance(self, note: str = "", work: float = 1.0) -> None:
        self.done, self.worked, self.note = self.done + 1, self.worked + work, note

    def tick(self) -> None:
        """Show how far the work is, if it is long enough. The watching thread calls this."""
        with self.lock:
            if self.screen is None and (self.always or self.elapsed > self.quiet_seconds):
                self.screen = _screen()
            if self.screen is not None:
                self.screen.show(self)

    def __exit__(self, *_: object) -> None:
        _WATCH.work.pop(self, None)
        with self.lock:
            if self.screen is not None:
                self.screen.end(self)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def seconds_left(self) -> float | None:
        """Seconds for the remaining work at the speed so far; before the first step, those of the plan."""
        if self.total and self.worked and self.work >= self.worked:
            return self.elapsed / self.worked * (self.work - self.worked)
        if self.expected is not None and self.expected() > self.elapsed:
            return self.expected() - self.elapsed
        return None

    def told(self) -> str:
        """Title, steps, time passed and time left."""
        steps = f"{self.done} of {self.total}" if self.total else f"{self.done} steps" if self.done else ""
        left = self.seconds_left
        parts = [steps, spoken(self.elapsed), "" if left is None else f"{spoken(left)} left", self.note]
        return f"{self.title}: {', '.join(part for part in parts if part)}"


def spoken(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> spoken(5.2), spoken(150), spoken(7200)
    ('5 s', '2.5 min', '2.0 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


class _Watch:
    """The thread that looks at all work under way; it sleeps while there is none."""

    tick_seconds: ClassVar[float] = 0.25

    def __init__(self) -> None:
        self.work: dict[_Work, None] = {}  # in the order in which it began
        self.awake = threading.Event()
        self.process = 0  # where the thread runs: a forked process has none

    def add(self, work: _Work) -> None:
        self.work[work] = None
        if self.process != os.getpid():
            self.process = os.getpid()
            threading.Thread(target=self.run, daemon=True, name="netsor progress").start()
        self.awake.set()

    def run(self) -> None:
        while True:
            self.awake.wait()
            time.sleep(self.tick_seconds)
            self.awake.clear()
            if self.work:  # asked after clearing: work that is added between the two lines sets it again
                self.awake.set()
            for work in list(self.work)[:1]:  # the outermost, which knows how far all of it is
                work.tick()


_WATCH = _Watch()


def _screen() -> _Notebook | _Terminal | _Log:
    """Return where this process shows progress."""
    if "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel"):
        return _Notebook()
    return _Terminal() if sys.stderr.isatty() else _Log()


class _Terminal:
    """A bar drawn by rich, which is imported here because most work is too short for a bar."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task("")

    def show(self, work: _Work) -> None:
        self.bar.update(self.task, completed=work.worked, total=work.work or None, description=work.told())

    def end(self, work: _Work) -> None:
        self.bar.stop()


class _Notebook:
    """A bar of the browser, which is removed when the work is done."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, work: _Work) -> None:
        from html import escape

        value = f' value="{work.worked:g}" max="{work.work:g}"' if work.total else ""
        self._display(f"<progress{value}></progress> {escape(work.told())}")

    def end(self, work: _Work) -> None:
        self._display("")

    def _display(self, html: str) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        if self.handle is None:
            self.handle = display(HTML(html), display_id=True)
        else:
            self.handle.update(HTML(html))


class _Log:
    """A line on the error stream every ten seconds, the first after ten seconds unless it is asked for."""

    line_seconds: ClassVar[float] = 10.0

    def __init__(self) -> None:
        self.last: float | None = None

    def show(self, work: _Work) -> None:
        now = time.monotonic()
        if self.last is None:
            due = work.always or work.elapsed >= self.line_seconds
        else:
            due = now - self.last >= self.line_seconds
        if due:
            self.last = now
            print(work.told(), file=sys.stderr, flush=True)

    def end(self, work: _Work) -> None:
        if self.last is not None:
            print(f"{work.title}: done in {spoken(work.elapsed)}", file=sys.stderr, flush=True)
