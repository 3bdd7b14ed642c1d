"""The benchmark harness on tiny inputs, without peers: the plain formulas, the processes, the reports."""

from __future__ import annotations

import csv
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

import netsor as ns

FOLDER = Path(__file__).parents[2] / "benchmarks"
VARIANCES: dict[str, Any] = {"var_w": 1.3, "var_u": 0.8, "var_b": 0.4, "var_v": 1.7}


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the harness, which is a folder of scripts."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module


def sequences(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((length, 5)) for length in lengths]


@pytest.mark.parametrize("lengths", [(4,), (3, 5, 1)])
def test_plain_rnn(harness: Any, lengths: tuple[int, ...]) -> None:
    x = sequences(*lengths)
    want = ns.kernel(ns.zoo.simple_rnn(**VARIANCES))(x)
    np.testing.assert_allclose(harness("plain").rnn(x, **VARIANCES), want, rtol=0, atol=1e-12)


def test_plain_transformer(harness: Any) -> None:
    x = sequences(3, 5, 1)
    want = ns.kernel(ns.zoo.transformer(depth=2, **VARIANCES))(x)
    np.testing.assert_allclose(
        harness("plain").transformer(x, depth=2, **VARIANCES), want, rtol=0, atol=1e-12
    )


def test_plain_batchnorm_converges_as_it_says(harness: Any) -> None:
    """The error of the trapezoid rule is about exp(-pi^2 / step), the other one stops as it is told to."""
    x = sequences(4, 6)
    want = ns.kernel(ns.zoo.batchnorm_mlp())(x)
    for step in (1.0, 0.6):
        gap = np.abs(harness("plain").batchnorm_trapezoid(x, step=step) - want).max()
        assert gap < 10 * np.exp(-(np.pi**2) / step)
    assert np.abs(harness("plain").batchnorm(x, error=1e-4) - want).max() < 1e-4


def test_plain_gru(harness: Any) -> None:
    """Each entry has at most t s terms, each with the error of its orthant probability."""
    x = sequences(2, 3)
    found = ns.kernel(ns.zoo.gru(**VARIANCES), tol=1e-4).evaluate(x)
    gap = np.abs(harness("plain").gru(x, **VARIANCES, error=1e-5) - found.value)
    assert (gap <= 5 * found.error + 9 * 1e-5 * VARIANCES["var_v"]).all()


def test_the_pairs_of_tokens_are_visited_once(harness: Any) -> None:
    x = sequences(2, 3)
    visited = [entry for step in (1, 2, 3) for entry in harness("plain").entries(x, step)]
    assert len(visited) == len(set(visited)) == 5 * 6 // 2
    assert all(max(t, s) <= max(u, v) for (_, _, t, s), (_, _, u, v) in pairwise(visited))


@pytest.mark.parametrize(("phi", "net"), [(np.tanh, ns.tanh), (erf, ns.erf)])
def test_plain_quadrature(harness: Any, phi: Any, net: Any) -> None:
    x = sequences(4)[0]
    want = ns.kernel(ns.zoo.mlp(2, net))(x)
    np.testing.assert_allclose(harness("plain").mlp_quadrature(x, phi, 2), want, rtol=0, atol=1e-11)


def test_the_exponent_of_a_power(harness: Any) -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    seconds = [5.0] + [0.1 * v**1.5 for v in values[1:]]
    assert harness("scaling").exponent(values, seconds) == pytest.approx(1.5)


def test_rows_have_the_names_and_targets_of_both_sizes(harness: Any) -> None:
    quick, full = (harness("cases").cases(quick=q) for q in (True, False))
    assert [(c.name, c.target) for c in quick] == [(c.name, c.target) for c in full]
    assert len({c.name for c in full}) == len(full)
    assert all(c.peer in (*harness("sides").SIDES, None) for c in full)


@pytest.mark.slow
def test_two_processes_agree_on_the_same_inputs(harness: Any) -> None:
    case = harness("cases").transformer(2, 3, 1)
    pythons = dict.fromkeys(("plain", "netsor"), Path(sys.executable))
    found = harness("measure").measure(pythons, case.specs(), case.inputs, rounds=2)
    assert harness("run").gap(found["netsor"].value, found["plain"].value) < 1e-12
    assert list(found) == ["plain", "netsor"]
    for side in found.values():
        assert min(side.first, side.steady) > 0
        assert side.cpu >= 0
        assert side.peak > 0


def test_peak_memory_sees_an_array(harness: Any) -> None:
    worker = harness("worker")
    base = worker.forget_peak()
    np.ones(2**24).sum()  # 128 MB, gone at once; less may come from memory that is there already
    assert 120 < worker.peak() - base < 192


def test_a_side_that_fails_says_why(harness: Any) -> None:
    measure = harness("measure")
    spec = {"netsor": {"kind": "mlp", "options": {"phi": "no_such"}}}
    with pytest.raises(measure.WorkerError, match="no_such"):
        measure.measure({"netsor": Path(sys.executable)}, spec, {"x": np.ones((2, 3))}, rounds=1)


def test_disagreement_is_seen(harness: Any) -> None:
    run = harness("run")
    ones = np.ones((2, 2))
    assert run.gap(ones * 1.5, ones) == 0.5
    assert run.gap(ones * np.nan, ones) == np.inf
    assert run.gap(np.ones((2, 3)), ones) == np.inf
    assert run.agrees([(1e-10, 1e-9), (None, 1e-6)]) is True
    assert run.agrees([(1e-10, 1e-9), (1e-5, 1e-6)]) is False
    assert run.agrees([(None, 1e-9)]) is None


def test_targets(harness: Any) -> None:
    run, case = harness("run"), harness("cases").cnn(2, 3, 1, "gap", target=5.0, memory=100.0)
    assert run.met(case, 6.0, 50.0) is True
    assert run.met(case, 4.0, 50.0) is False
    assert run.met(case, 6.0, 150.0) is False


@pytest.mark.slow
def test_the_command(harness: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run = harness("run")
    arguments = [
        "--quick",
        "--alone",
        "--only",
        "cnn-flatten,batchnorm",
        "--rounds",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert run.main(arguments) == 0
    assert "failures: none" in capsys.readouterr().out
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["cnn-flatten", "batchnorm"]
    assert rows[1]["agrees"] == "True"
    assert float(rows[1]["error"]) < 1e-6
    with (tmp_path / "scaling.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    report = (tmp_path / "report.md").read_text()
    assert "fitted exponent" in report
    assert str(tmp_path) not in report
    assert "batchnorm + relu" in report
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_the_steps_of_a_call_make_up_its_time(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, cases = harness("steps"), harness("cases")
    monkeypatch.setattr(steps, "ROUNDS", 3)
    found = steps.profile(cases.cnn(4, 6, 2, "flatten"))
    whole = found.pop("one call")
    assert whole == pytest.approx(sum(found.values()))
    assert found["sums over windows"] > 0
    assert found["the rest"] > 0


@pytest.mark.slow
def test_calls_and_recordings_are_counted(harness: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The first call enters more files than `evaluate` after it; a call runs each line of the table."""
    flow = harness("flow")
    first, later = (flow.counted(flow.ROOT, task) for task in ("mlp", "mlp-evaluate"))
    assert first["recordings"] == 1
    assert first["calls"] > first["switches"] > first["files"] > 10
    assert later["files"] < first["files"]
    assert flow.main(["--base", str(flow.ROOT)]) == 0
    assert "| MLP, first `K(x)` |" in capsys.readouterr().out
