"""The scripts in examples/gp run, on small instances, and their own formulas are right."""

from __future__ import annotations

import importlib
import struct
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import netsor as ns

FOLDER = Path(__file__).parents[2] / "examples" / "gp"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """A module of the folder, imported as if the script were run there."""
    monkeypatch.syspath_prepend(str(FOLDER))
    known = {path.stem for path in FOLDER.glob("*.py")}

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in known:
        sys.modules.pop(name, None)


def test_choice_on_matrices_is_inference(script) -> None:
    """The examples' formulas against ns.gp: likelihood up to a constant, mean and variance."""
    matrices = script("matrices")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
    train, test = np.arange(12), np.arange(12, 20)
    networks = [ns.zoo.mlp(2, var_b=b) for b in (0.1, 1.0)]
    found = matrices.choose([ns.kernel(net)(x) for net in networks], y, train, test)
    scores = {}
    for k, net in enumerate(networks):
        scale = np.mean(np.diagonal(ns.kernel(net)(x)))
        for ratio in matrices.RATIOS:
            unit = ns.gp.fit(ns.kernel(net), x[:12], y[:12], noise=ratio * scale)
            signal = np.sum(unit.y * unit.alpha) / unit.y.size  # the best factor on kernel and noise
            moved = ns.gp.fit(
                ns.kernel(net), x[:12], y[:12], noise=signal * ratio * scale, params={"v": float(signal)}
            )
            scores[k, ratio] = (moved.log_marginal_likelihood(), moved)
    best = max(scores, key=lambda key: scores[key][0])
    assert best == (found.member, found.ratio)
    want = scores[best][1].predict(x[12:], observed=True)
    np.testing.assert_allclose(found.mean, want.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(found.variance), want.std, rtol=1e-6)


def test_mackey_glass_solves_its_equation(script) -> None:
    """Half the step moves the series by the error of a rule of order two; the delay is in it."""
    reservoir = script("reservoir")
    coarse, fine = (reservoir.mackey_glass(60, step=step, skip=0) for step in (0.1, 0.05))
    finer = reservoir.mackey_glass(60, step=0.025, skip=0)
    first, second = np.abs(coarse - fine).max(), np.abs(fine - finer).max()
    assert first < 1e-2
    assert 3 < first / second < 5
    long = reservoir.mackey_glass(400)
    assert abs(long.mean()) < 1e-12
    assert np.abs(np.diff(long)).max() < 0.6


def test_reservoir_runs(script, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--widths", "20", "--seeds", "2", "--window", "6", "--sizes", "60", "20", "40"]
    script("reservoir").main(arguments)
    printed = capsys.readouterr().out
    assert "echo state, width 20" in printed
    assert "infinite width" in printed


@pytest.mark.slow
def test_real_data_runs(script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("real_data").main(["--splits", "2", "--images", "30", "--rows", "30", "--out", str(tmp_path)])
    assert "accuracy minus that of RBF" in capsys.readouterr().out
    assert (tmp_path / "real_data.png").stat().st_size > 10_000


def test_lee2018_runs(script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On made-up images of ten classes, which differ in which pixels are bright."""
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 80), ("t10k", 30)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 60, (count, 4, 5))
        images[np.arange(count), labels % 4, labels // 4] = 255
        for kind, array in (("images", images), ("labels", labels)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            name = f"{prefix}-{kind}-idx{array.ndim}-ubyte"
            (tmp_path / name).write_bytes(head + array.astype("u1").tobytes())
    script("lee2018").main(["--mnist", str(tmp_path), "--train", "60", "--depth", "2", "--seeds", "2"])
    accuracy = float(capsys.readouterr().out.split("accuracy ")[1].split()[0])
    assert accuracy > 0.8


def test_lee2018_network_has_a_bias_on_its_output(script) -> None:
    """K = var_b + var_w E[relu relu] at every layer, by the recursion of the paper."""
    net = script("lee2018").deep_network(3, ns.relu, 1.45, 0.28)
    x = np.random.default_rng(1).standard_normal((2, 5))
    matrix = 1.45 * x @ x.T / 5 + 0.28
    for _ in range(3):
        scale = np.sqrt(np.outer(np.diagonal(matrix), np.diagonal(matrix)))
        angle = np.arccos(np.clip(matrix / scale, -1, 1))
        matrix = 0.28 + 1.45 * scale * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    np.testing.assert_allclose(ns.kernel(net)(x), matrix, rtol=1e-7)
