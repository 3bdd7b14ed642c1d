"""Every zoo network at finite width against a plain NumPy forward pass from the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import plain_zoo as plain
import pytest
from plain_zoo import assert_close

import netsor as ns
from netsor import zoo
from netsor.simulation import draw, forward


@dataclass(frozen=True)
class Case:
    """A zoo network, its plain counterpart with the same options, and an input."""

    name: str
    x: Any
    options: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def net(self) -> ns.Network:
        return getattr(zoo, self.name)(**self.options, **self.extra)

    @property
    def plain(self) -> Callable[..., np.ndarray]:
        return partial(getattr(plain, self.name), **self.options)

    def __str__(self) -> str:
        shown = {**self.options, **self.extra}
        return "-".join([self.name, *(f"{k}={v}" for k, v in shown.items()), *filter(None, [self.label])])


RNG = np.random.default_rng(7)
VECTOR = RNG.standard_normal(4)
TOKENS = RNG.standard_normal((5, 4))
BATCH = RNG.standard_normal((6, 4))
IMAGE = RNG.standard_normal((6, 5, 3))
GRAPH = (BATCH, ns.normalized_adjacency(RNG.random((6, 6)) < 0.4))
REPEATED = TOKENS[[0, 1, 0, 0, 1]]

DENSE = [
    *(Case("mlp", VECTOR, {"depth": d}) for d in (1, 3)),
    Case("mlp", VECTOR, {"depth": 2}, {"var_b": 0.0, "var_w": [2.0, 0.5]}),
    *(Case("resnet", VECTOR, {"depth": d}) for d in (1, 3)),
    *(Case("densenet", VECTOR, {"depth": d}) for d in (1, 2, 4)),
    *(
        Case("layernorm_mlp", VECTOR, {"depth": d, "order": order})
        for d in (1, 3)
        for order in ("norm-phi", "phi-norm")
    ),
    *(Case("batchnorm_mlp", BATCH, {"depth": d}) for d in (1, 3)),
    *(
        Case("graph_conv", GRAPH, {"depth": d, "readout": readout})
        for d in (1, 3)
        for readout in ("node", "mean")
    ),
]

RECURRENT = [
    Case("simple_rnn", TOKENS),
    Case("gru", TOKENS),
    Case("gru", TOKENS, extra={"var_h0": 0.7}),
    Case("gru", TOKENS, extra={"mean_b": [1.0, -1.0, 0.5], "var_b": [1.0, 0.0, 0.2]}),
    Case("lstm", TOKENS),
    Case("lstm", TOKENS, extra={"mean_b": [0.0, 1.0, 0.0, -1.0]}),
]

CONVOLUTIONAL = [
    *(
        Case("cnn", IMAGE, {"readout": readout, "padding": padding})
        for readout in ("gap", "flatten")
        for padding in ("same", "valid", "circular")
    ),
    *(Case("cnn", IMAGE, {"padding": p, "stride": 2}) for p in ("same", "circular")),
    Case("cnn", IMAGE, {"padding": "valid", "stride": 2, "depth": 1}),
    *(Case("cnn", IMAGE, {"padding": p, "dilation": 2}) for p in ("same", "circular")),
    Case("cnn", IMAGE, {"padding": "valid", "dilation": 2, "depth": 1, "readout": "flatten"}),
    *(
        Case("cnn", IMAGE, {"pool": pool, "readout": r})
        for pool in ("max", "mean")
        for r in ("gap", "flatten")
    ),
    Case("cnn", IMAGE, {"pool": "max", "depth": 3}),
    *(Case("cnn", IMAGE, {"padding": p}, {"kernel": (2, 3)}) for p in ("same", "valid", "circular")),
    Case("cnn", IMAGE, {"stride": 2, "dilation": 2, "padding": "circular", "readout": "flatten"}),
]

TRANSFORMERS = [
    *(
        Case("transformer", TOKENS, {"heads": heads, "tied": tied, "causal": causal, "skip": skip})
        for heads in (1, 4)
        for tied in (True, False)
        for causal in (True, False)
        for skip in ("paper", "identity")
    ),
    *(
        Case("transformer", TOKENS, {"depth": 2, "heads": heads, "tied": tied})
        for heads in (1, 4)
        for tied in (True, False)
    ),
]

DEGENERATE = [
    *(Case(name, TOKENS[:1], label="one token") for name in ("simple_rnn", "gru", "lstm", "transformer")),
    Case("gru", TOKENS[:1], extra={"var_h0": 0.7}, label="one token"),
    Case("transformer", TOKENS[:1], {"heads": 4, "tied": False}, label="one token"),
    *(Case(name, REPEATED, label="repeated tokens") for name in ("simple_rnn", "gru", "lstm", "transformer")),
    *(Case(name, 0 * VECTOR, label="zero input") for name in ("mlp", "resnet", "densenet")),
    *(Case(name, 0 * TOKENS, label="zero input") for name in ("simple_rnn", "gru", "lstm")),
    Case("mlp", 0 * VECTOR, {"depth": 2}, {"var_b": 0.0}, "zero input"),
    Case("batchnorm_mlp", REPEATED, {"depth": 2}, label="repeated members"),
    Case("cnn", IMAGE[:1, :1], label="1x1 image"),
    Case("cnn", IMAGE[:1, :1], {"readout": "flatten"}, label="1x1 image"),
    Case("cnn", IMAGE[:1, :1], {"padding": "circular"}, label="1x1 image"),
    Case("cnn", IMAGE[:1, :1], {"padding": "valid"}, {"kernel": 1}, "1x1 image"),
    Case("cnn", IMAGE[:1, :1], {"stride": 2, "dilation": 2}, label="1x1 image"),
    Case("cnn", IMAGE[:1], {"stride": 2}, label="one row"),
    Case("graph_conv", (BATCH[:1], np.ones((1, 1))), {"depth": 2}, label="one node"),
    Case("graph_conv", (BATCH, np.zeros((6, 6))), {"depth": 2}, label="no edges"),
]

CASES = DENSE + RECURRENT + CONVOLUTIONAL + TRANSFORMERS + DEGENERATE


def unequal_widths(program: ns.Program) -> dict[str, int]:
    """A different number for every width, so that no two dimensions can be confused."""
    return {name: 24 + 3 * i for i, name in enumerate(program.widths)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_is_the_plain_forward_pass(case: Case) -> None:
    program = ns.program(case.net, case.x)
    weights = draw(program, unequal_widths(program), np.random.default_rng(1))
    values = forward(program, weights)
    blocks = [values[term.operand] for out in program.outputs for term in out.terms]
    read = np.concatenate([block.array.reshape(-1, block.array.shape[-1]) for block in blocks])
    want = case.plain(weights, case.x)
    assert_close(read, want)
    assert_close(plain.outputs(weights["v"], read), plain.outputs(weights["v"], want))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_simulate_is_the_plain_forward_pass(case: Case) -> None:
    program = ns.program(case.net, case.x)
    widths = unequal_widths(program)
    (stream,) = np.random.SeedSequence(3).spawn(1)
    weights = draw(program, widths, np.random.default_rng(stream))
    (got,) = ns.simulate(case.net, [case.x], widths, seed=3)
    assert_close(got, plain.outputs(weights["v"], case.plain(weights, case.x)))


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (zoo.layernorm_mlp(var_b=0.0), 0 * VECTOR),
        (zoo.batchnorm_mlp(), TOKENS[[0, 0, 0]]),
        (zoo.batchnorm_mlp(), TOKENS[:1]),
    ],
    ids=["layernorm of zero", "batchnorm of equal members", "batchnorm of one member"],
)
def test_division_by_zero_is_an_error(net: ns.Network, x: np.ndarray) -> None:
    for run in (ns.simulate, ns.empirical_kernel):
        with pytest.raises(ns.NetsorError, match="not finite"):
            run(net, [x], 30, seed=0)
