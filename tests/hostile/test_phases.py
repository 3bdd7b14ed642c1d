"""Phase diagrams move variances by what parameters do, not by names; the truth is mean-field theory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import netsor as ns
from netsor.cli import app
from netsor.errors import DataError

VARIANCES = (0.5, 4.0)  # of tanh networks with var_b = 0.3: one is ordered, one is chaotic


def _truth(var_w: float, var_b: float) -> float:
    """var_w E[tanh'^2] at the fixed point of the variance, by quadrature."""
    z, weight = np.polynomial.hermite_e.hermegauss(100)
    weight, q = weight / weight.sum(), 1.0
    for _ in range(500):
        q = var_w * weight @ np.tanh(np.sqrt(q) * z) ** 2 + var_b
    return float(var_w * weight @ (1 - np.tanh(np.sqrt(q) * z) ** 2) ** 2)


class Layer:
    """A layer of a user's own, with names of its own."""

    def __init__(self) -> None:
        self.kernel, self.offset = ns.Matrix(1.0), ns.Vector(0.1)

    def __call__(self, x: Any) -> Any:
        return ns.tanh(self.kernel @ x + self.offset)


def in_blocks(depth: int) -> ns.Network:
    blocks, readout = [Layer() for _ in range(depth)], ns.Matrix(rows=1)

    @ns.network
    def net(x):
        for block in blocks:
            x = block(x)
        return readout @ x

    return net


def in_dense_layers(depth: int) -> ns.Network:
    layers, readout = [ns.Dense(var_b=0.1) for _ in range(depth)], ns.Dense(rows=1, var_b=2.0)

    @ns.network
    def net(x):
        for layer in layers:
            x = ns.tanh(layer(x))
        return readout(x)

    return net


def with_misleading_names(depth: int) -> ns.Network:
    matrices = [ns.Matrix(1.0, name=f"b{k}") for k in range(depth)]
    vectors = [ns.Vector(0.1, name=f"W{k}") for k in range(depth)]
    readout = ns.Matrix(3.0, rows=1, name="W_out")

    @ns.network
    def net(x):
        for matrix, vector in zip(matrices, vectors, strict=True):
            x = ns.tanh(matrix @ x + vector)
        return readout @ x

    return net


def with_one_matrix(depth: int) -> ns.Network:
    """The same weights in every layer, after an embedding."""
    embedding, again, shift, readout = ns.Matrix(), ns.Matrix(), ns.Vector(0.1), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        x = embedding @ x
        for _ in range(depth):
            x = ns.tanh(again @ x + shift)
        return readout @ x

    return net


def with_a_gain(depth: int) -> ns.Network:
    """A vector of mean 1 that multiplies is no bias."""
    layers, readout = [Layer() for _ in range(depth)], ns.Matrix(rows=1)
    gain = ns.Vector(0.0, mean=1.0)

    @ns.network
    def net(x):
        for layer in layers:
            x = gain * layer(x)
        return readout @ x

    return net


MAKERS = (in_blocks, in_dense_layers, with_misleading_names, with_one_matrix, with_a_gain)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_chi_is_that_of_theory_whatever_parameters_are_called(make: Callable[[int], ns.Network]) -> None:
    found = ns.plots.sensitivity(make, VARIANCES, 0.3, depth=10)
    assert np.abs(found / [_truth(w, 0.3) for w in VARIANCES] - 1).max() < 5e-3


def test_an_embedding_and_the_bias_of_an_output_stay() -> None:
    """Only what is repeated moves: as if all of it were named."""
    found = ns.plots.sensitivity(ns.zoo.resnet, VARIANCES, 0.3, depth=3, relative=True)
    named = ns.plots.sensitivity(
        ns.zoo.resnet, VARIANCES, 0.3, depth=3, relative=True, tied=[["W?"], ["b1", "b2", "b3"]]
    )
    assert np.array_equal(found, named)
    found = ns.plots.sensitivity(in_dense_layers, VARIANCES, 0.3, depth=3, relative=True)
    named = ns.plots.sensitivity(
        in_dense_layers, VARIANCES, 0.3, depth=3, relative=True, tied=[["layers_*_W"], ["layers_*_b"]]
    )
    assert np.array_equal(found, named)


def test_tied_to_var_w_alone_leaves_the_biases() -> None:
    tied = {"var_w": ["W*"]}
    found = ns.plots.sensitivity(lambda d: ns.zoo.mlp(d, ns.tanh, var_b=0.3), 4.0, depth=10, tied=tied)
    assert abs(found / _truth(4.0, 0.3) - 1) < 5e-3


def without_biases(depth: int) -> ns.Network:
    return ns.zoo.mlp(depth, var_b=0.0)


def without_layers(depth: int) -> ns.Network:
    embedding, readout = ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        return readout @ ns.tanh(embedding @ x)

    return net


@pytest.mark.parametrize(
    ("make", "var_b", "tied", "what"),
    [
        (without_biases, 0.3, None, "var_b moves nothing"),
        (without_layers, 0.0, None, "var_w moves nothing"),
        (ns.zoo.mlp, 0.3, [["W*"]], "var_b moves nothing"),
        (ns.zoo.mlp, 0.3, {"var_b": ["b*"]}, "var_w moves nothing"),
        (ns.zoo.mlp, 0.3, [["W*", "U"], ["b*"]], "no variance `U`"),
        (ns.zoo.mlp, 0.3, [["W*"], ["b*"], ["v"]], "tied="),
        (ns.zoo.mlp, 0.3, "W", "tied="),
        (ns.zoo.mlp, 0.3, {"var_v": ["v"]}, "var_v"),
    ],
)
def test_a_variance_that_moves_nothing_is_refused(make: Any, var_b: float, tied: Any, what: str) -> None:
    with pytest.raises(DataError, match=what):
        ns.plots.sensitivity(make, [1.0, 2.0], var_b, depth=3, tied=tied)


def test_tied_on_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "nets.py").write_text("import netsor as ns\nmake = lambda depth: ns.zoo.mlp(depth, ns.erf)\n")
    words = ["plot", f"{tmp_path}/nets.py:make", "--kind", "phase", "--depth", "2", "-o", f"{tmp_path}/p.svg"]
    pictures = []
    for more in ([], ["--tied", "W1,W2", "--tied", "b?"]):
        done = CliRunner().invoke(app, words + more)
        assert done.exit_code == 0, done.output
        pictures.append((tmp_path / "p.svg").read_bytes())
    assert pictures[0] == pictures[1]
    done = CliRunner().invoke(app, [*words, "--tied", "Q*"])
    assert done.exit_code == 1
    assert "no variance `Q*`" in done.output
