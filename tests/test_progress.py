"""Progress: nothing of short work, a line every ten seconds in a log, a bar in a terminal or notebook."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import netsor as ns
from netsor import progress
from netsor.limits.sampling import kernel
from netsor.progress import bar
from netsor.reproduce import Experiment


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds pass in a tenth of one."""
    monkeypatch.setattr(progress._Work, "quiet_seconds", 0.02)
    monkeypatch.setattr(progress._Work, "line_seconds", 0.1)
    monkeypatch.setattr(progress._Watch, "tick_seconds", 0.01)


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(None, 3, "short") as advance:
        advance()
    ns.kernel(ns.zoo.mlp(2))(np.eye(3))
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("quick")
def test_a_log_has_lines_with_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(None, 4, "long") as advance:
        for _ in range(4):
            time.sleep(0.12)
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6
    assert lines[0].startswith("long: ")
    assert any("left" in line and " of 4, " in line for line in lines)
    assert lines[-1].startswith("long: done in ")


@pytest.mark.usefixtures("quick")
def test_one_long_step_is_seen_with_the_time_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(None, 1, "one step", lambda: 60.0):
        time.sleep(0.3)
    assert "one step: 0 of 1, 0 s, 60 s left" in capsys.readouterr().err


def test_the_time_left_counts_the_work_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1, 2, ..., 8 units: the time left falls by the time that passes."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    work = progress._Work("growing", 8, 36.0)
    work.start, left = 0.0, []
    for k in range(1, 8):
        now[0] += 60.0 * k
        work.advance(work=float(k))
        left.append(work.told().split(", ")[2])
    assert left == ["35.0 min left", "33.0 min left", "30.0 min left", "26.0 min left", "21.0 min left",
                    "15.0 min left", "8.0 min left"]  # fmt: skip


def test_stages_of_samples_tell_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they report adds up to all work, and the last stage, which meets all others, has most of it."""
    told: list[float] = []
    totals: list[float] = []

    def watched(shown: object, total: int, title: str, expected: object, work: float):
        totals.append(work)
        return nullcontext(lambda note="", work=1.0: told.append(work))

    monkeypatch.setattr(kernel, "bar", watched)
    ns.kernel(ns.zoo.gru(), points=16, repeats=2)(np.ones((1, 8, 3)) + np.arange(8)[:, None])
    assert sum(told) == pytest.approx(sum(totals))
    assert max(told) >= 2 * np.median(told)


@pytest.mark.usefixtures("quick")
def test_never_is_never(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(False, 1, "hidden"):
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("quick")
def test_a_terminal_has_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bar(True, 2, "barred") as advance:
        advance()
        time.sleep(0.1)
    assert "barred: 1 of 2" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_a_notebook_has_a_bar_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda html: shown.append(html))

    def display(html: str, display_id: bool) -> SimpleNamespace:
        assert display_id
        shown.append(html)
        return handle

    package = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=True))
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    with bar(None, 2, "a <b>") as advance:
        advance()
        time.sleep(0.2)
    assert 'value="1" max="2"' in shown[-2]
    assert "a &lt;b&gt;: 1 of 2" in shown[-2]
    assert shown[-1] == ""


@pytest.mark.usefixtures("quick")
def test_of_nested_work_the_outermost_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(None, 2, "outer") as advance:
        with bar(None, 1, "inner"):
            time.sleep(0.3)
        advance("with a note")
        time.sleep(0.15)
    told = capsys.readouterr().err
    assert "outer: 1 of 2" in told
    assert "with a note" in told
    assert "inner" not in told


def test_one_thread_watches_all_work() -> None:
    for _ in range(50):
        with bar(None, 1, "work"), bar(None, 1, "inner"):
            pass
    watchers = [t for t in threading.enumerate() if t.name == "netsor progress"]
    assert len(watchers) == 1
    assert watchers[0].daemon
    assert not progress._WATCH.work


@pytest.mark.usefixtures("quick")
def test_kernels_and_simulations_tell(capsys: pytest.CaptureFixture[str]) -> None:
    ns.simulate(ns.zoo.mlp(2), np.eye(3), width=300, samples=200, seed=0, progress=True)
    ns.gp.fit(ns.kernel(ns.zoo.mlp(2), progress=True), np.eye(3), np.ones(3), noise=0.1)
    told = capsys.readouterr().err
    assert "simulating, width 300" in told
    assert "planning the kernel" in told
    assert "computing the kernel" in told
    assert "factorising 3 rows" in told


@pytest.mark.usefixtures("quick")
def test_figures_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Samples that are kept in a folder, in a log."""

    def draw(count: int, seed: np.random.SeedSequence) -> np.ndarray:
        time.sleep(0.1)
        return np.ones(count)

    Experiment(tmp_path).samples("net", "mark", 32, 6, draw, chunk=1)
    assert "drawing net, width 32: " in capsys.readouterr().err
