"""Progress of long work: a bar in a terminal or a notebook, a line every ten seconds in a log.

By default nothing is shown for work that takes less than two seconds. One thread watches all work under way,
so that a single long step is seen, too, and short work costs a few microseconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from html import escape
from typing import ClassVar

Advance = Callable[..., None]  # takes a note for the reader, and the work of the step


def bar(
    progress: bool | None,
    total: int,
    title: str,
    expected: Callable[[], float] | None = None,
    work: float | None = None,
) -> AbstractContextManager[Advance]:
    """Show progress in a block; it yields a function to call after each step.

    True shows it always, False never, None once the work takes longer than two seconds. `total` is the number
    of steps, or 0 if it is unknown; `expected` returns the seconds that the plan expects and is asked until
    the first step is done; `work` is that of all steps, if they differ, in any unit proportional to time.

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
    show: Callable[[], None] | None = None  # brings the screen up to date, once there is one
    screen: ExitStack = field(default_factory=ExitStack)
    lock: threading.Lock = field(default_factory=threading.Lock)
    quiet_seconds: ClassVar[float] = 2.0  # nobody needs to see shorter work
    line_seconds: ClassVar[float] = 10.0  # between the lines of a log

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
            if self.show is None and (self.always or self.elapsed > self.quiet_seconds):
                self.show = self.screen.enter_context(_screen(self))
            if self.show is not None:
                self.show()

    def __exit__(self, *_: object) -> None:
        _WATCH.work.pop(self, None)
        with self.lock:
            self.screen.close()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def told(self) -> str:
        """Title, steps, time passed, and time left at the speed so far, at first that of the plan."""
        steps = f"{self.done} of {self.total}" if self.total else f"{self.done} steps" if self.done else ""
        left = -1.0  # unknown
        if self.total and self.worked and self.work >= self.worked:
            left = self.elapsed / self.worked * (self.work - self.worked)
        elif self.expected is not None:
            left = self.expected() - self.elapsed
        parts = [steps, spoken(self.elapsed), f"{spoken(left)} left" if left >= 0 else "", self.note]
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


def _screen(work: _Work) -> AbstractContextManager[Callable[[], None]]:
    """Where this process shows progress, until the work is done; yields what brings it up to date."""
    if "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel"):
        return _notebook(work)
    return _terminal(work) if sys.stderr.isatty() else _log(work)


@contextmanager
def _terminal(work: _Work) -> Iterator[Callable[[], None]]:
    """A bar drawn by rich, which is imported here because most work is too short for a bar."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda: progress.update(
            task, completed=work.worked, total=work.work or None, description=work.told()
        )


@contextmanager
def _notebook(work: _Work) -> Iterator[Callable[[], None]]:
    """A bar of the browser, which is removed when the work is done."""
    from IPython.display import HTML, display  # type: ignore[import-not-found]

    handle = display(HTML(""), display_id=True)

    def show() -> None:
        value = f' value="{work.worked:g}" max="{work.work:g}"' if work.total else ""
        handle.update(HTML(f"<progress{value}></progress> {escape(work.told())}"))

    yield show
    handle.update(HTML(""))


@contextmanager
def _log(work: _Work) -> Iterator[Callable[[], None]]:
    """A line on the error stream every ten seconds, the first after ten seconds unless it is asked for."""
    lines: list[float] = []  # when they were written
    first = 0.0 if work.always else work.line_seconds

    def show() -> None:
        if work.elapsed >= (lines[-1] + work.line_seconds if lines else first):
            lines.append(work.elapsed)
            print(work.told(), file=sys.stderr, flush=True)

    yield show
    if lines:
        print(f"{work.title}: done in {spoken(work.elapsed)}", file=sys.stderr, flush=True)
