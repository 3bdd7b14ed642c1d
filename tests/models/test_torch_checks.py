"""Every import is checked by the model's own weights, without being asked, unless it is told not to."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_models import CASES, VECTOR  # noqa: E402

import netsor as ns  # noqa: E402
from netsor.errors import SimulationError  # noqa: E402
from netsor.models.pytorch.graph import RULES  # noqa: E402

RELU = RULES["relu"]


def mlp(n):
    return nn.Sequential(nn.Linear(5, n), nn.ReLU(), nn.Linear(n, 1))


def halved(reader, self, result):
    return RULES["mul"](reader, RELU(reader, self, result), (0.5, 0.5), result)


def test_a_wrong_rule_is_an_error(monkeypatch):
    monkeypatch.setitem(RULES, "relu", halved)
    for read in (ns.program, lambda net, x: ns.kernel(net)([x]), lambda net, x: ns.ntk(net)([x])):
        with pytest.raises(SimulationError, match=r"differs from the model by \d"):
            read(ns.from_torch(mlp, width=16), VECTOR)


def test_the_check_can_be_switched_off(monkeypatch):
    monkeypatch.setitem(RULES, "relu", halved)
    net = ns.from_torch(mlp, width=16, check=False)
    assert ns.kernel(net)([VECTOR]).shape == (1, 1)
    assert not net.checked
    with pytest.raises(SimulationError, match="differs from the model"):
        ns.check_import(net, VECTOR)


def test_every_shape_is_checked_once(monkeypatch):
    case = CASES["encoder layer, norm first"]
    net = ns.from_torch(case.make, width=16, **case.options)
    runs = []
    monkeypatch.setattr(net.front, "run", lambda *a, run=net.front.run: runs.append(1) or run(*a))
    K = ns.kernel(net)
    K([case.x, case.x[:2], case.x + 1])
    K([case.x[:2]])
    assert net.checked == {(case.x.shape,), (case.x[:2].shape,)}
    assert len(runs) == 2


class Cancelling(nn.Module):
    """In float32 five digits of the hidden layer are lost."""

    def __init__(self, n):
        super().__init__()
        self.embed, self.head = nn.Linear(5, n), nn.Linear(n, 1, bias=False)

    def forward(self, x):
        h = self.embed(x)
        return self.head(torch.tanh((h + 1e5) - 1e5))


def test_float64_where_float32_cancels():
    check = ns.check_import(ns.from_torch(Cancelling, width=16), VECTOR)
    assert check.tolerance == 1e-5
    assert check.difference < 1e-9
    with torch.no_grad():
        model = Cancelling(16)
        x = torch.as_tensor(VECTOR, dtype=torch.float32)
        assert abs(model(x) - model.double()(x.double())) > 1e-5  # so float32 alone would be an alarm


class InSingle(Cancelling):
    """It cannot run in float64."""

    def forward(self, x):
        return super().forward(x.float())


def test_a_model_that_cannot_run_in_float64_is_an_alarm():
    with pytest.raises(SimulationError, match="differs from the model by"):
        ns.program(ns.from_torch(InSingle, width=16), VECTOR)


def test_nothing_of_pytorch_is_changed():
    state, dtype = torch.random.get_rng_state(), torch.get_default_dtype()
    ns.program(ns.from_torch(CASES["dropout"].make, width=16, train=True), CASES["dropout"].x)
    ns.program(ns.from_torch(Cancelling, width=16), VECTOR)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_default_dtype() == dtype


class Shifted(nn.Module):
    """Its outputs have a mean, which is left out with a note."""

    def __init__(self, n):
        super().__init__()
        self.layers = mlp(n)

    def forward(self, x):
        return 2 * (self.layers(x) + 1.5)


def test_what_is_left_out_is_no_alarm():
    net = ns.from_torch(Shifted, width=16)
    ns.program(net, VECTOR)
    assert any("left out" in note for note in net.notes)


def test_a_law_that_the_user_gives_is_no_alarm():
    net = ns.from_torch(mlp, width=16, laws={"0.bias": ns.Vector(0.0, 0.5), "2.weight": ns.Matrix(2.0)})
    ns.program(net, VECTOR)
    assert net.checked


def test_an_input_of_zeros_is_no_excuse(monkeypatch):
    def bias_free(n):
        return nn.Sequential(nn.Linear(5, n, bias=False), nn.ReLU(), nn.Linear(n, 1, bias=False))

    monkeypatch.setitem(RULES, "relu", halved)
    with pytest.raises(SimulationError, match="differs from the model"):
        ns.program(ns.from_torch(bias_free, width=16), np.zeros(5))


class Failing(Cancelling):
    """It runs while it is traced, and fails on numbers."""

    def forward(self, x):
        if not torch.compiler.is_exporting():
            raise OSError("no such file")
        return super().forward(x)


def test_a_model_that_fails_is_named():
    with pytest.raises(SimulationError, match="`Failing` cannot be run on the input: no such file"):
        ns.program(ns.from_torch(Failing, width=16), VECTOR)


# Names


class Named(nn.Module):
    def __init__(self, n, name):
        super().__init__()
        self.name, self.v = name, nn.Linear(n, 1)
        self.u = nn.Linear(5, n)
        self.register_parameter(name, nn.Parameter(torch.randn(n)))

    def forward(self, x):
        return self.v(torch.relu(self.u(x) + getattr(self, self.name)))


NAMES = [
    "x",
    "x1",
    "x_0",
    "k1",
    "Input",
    "Output",
    "Data",
    "MatMul",
    "None",
    "sum",
    "ones",
    "mask1",
    "h1",
    "n",
]


@pytest.mark.parametrize("name", [*NAMES, "u_weightx", "relu"])
def test_names_that_programs_use(name):
    """The kernel, and the tangent kernel with this parameter frozen, are those of another name."""
    np.testing.assert_allclose(kernels_of(name), kernels_of("shift"), rtol=1e-12)


@cache
def kernels_of(name: str) -> list[np.ndarray]:
    net = ns.from_torch(lambda n: Named(n, name), width=16)
    (parameter,) = [p for p in net.parameters(VECTOR) if p.name and p.name.endswith(name)]
    frozen = ns.ntk(net, rates={parameter.name: 0.0})
    return [ns.kernel(net)([VECTOR, -VECTOR]), frozen([VECTOR, -VECTOR])]


# What the tangent kernel leaves out


class Normed(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.u, self.batch, self.layer = nn.Linear(5, n), nn.BatchNorm1d(n), nn.LayerNorm(n)
        self.v, self.fixed = nn.Linear(n, 1), nn.Parameter(torch.randn(n), requires_grad=False)
        nn.init.zeros_(self.u.bias)

    def forward(self, x):
        return self.v(torch.relu(self.layer(self.batch(self.u(x)))) * self.fixed)


def test_parameters_that_the_tangent_kernel_leaves_out_are_named():
    net = ns.from_torch(Normed, width=16)
    remarks = [
        "The tangent kernel leaves out u.bias, batch.weight, batch.bias, layer.weight, layer.bias: trained "
        "parameters that begin as constants (gains of 1, biases of 0) are constants of the limit.",
        "The tangent kernel trains fixed, frozen in the model: a rate of 0 freezes a parameter.",
    ]
    plan = str(ns.ntk(net).plan([VECTOR]))
    assert list(ns.report_laws(net).notes[-2:]) == remarks
    assert all(remark in plan for remark in remarks)
    assert "tangent" not in str(ns.kernel(net).plan([VECTOR]))
    assert "tangent" not in str(ns.report_laws(ns.from_torch(mlp, width=16)))
