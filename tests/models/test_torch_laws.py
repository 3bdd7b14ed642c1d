"""Laws of PyTorch parameters, as their initialisers run, against the formulas in PyTorch's documents."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scipy.integrate import quad  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import CASES, VECTOR, Recurrent  # noqa: E402

import netsor as ns  # noqa: E402
from netsor.errors import BuildError  # noqa: E402
from netsor.models.pytorch.laws import built  # noqa: E402

N = 48


def truncated_variance(std: float, a: float, b: float) -> float:
    """Of a normal law with this standard deviation, cut off at a and b."""
    density = lambda x: math.exp(-((x / std) ** 2) / 2)  # noqa: E731
    mass = quad(density, a, b)[0]
    return quad(lambda x: x * x * density(x), a, b)[0] / mass


INITIALISERS = {
    "uniform_": (lambda w: nn.init.uniform_(w, -0.5, 0.5), 1 / 12),
    "normal_": (lambda w: nn.init.normal_(w, std=0.02), 0.02**2),
    "xavier_uniform_": (nn.init.xavier_uniform_, 2 / (N + N)),
    "xavier_normal_": (nn.init.xavier_normal_, 2 / (N + N)),
    "kaiming_uniform_": (lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu"), 2 / N),
    "kaiming_normal_": (lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"), 2 / N),
    "trunc_normal_": (
        lambda w: nn.init.trunc_normal_(w, std=0.5, a=-0.6, b=0.6),
        truncated_variance(0.5, -0.6, 0.6),
    ),
    "zeros_": (nn.init.zeros_, 0.0),
    "constant_": (lambda w: nn.init.constant_(w, 0.0), 0.0),
    "data * 0.1": (lambda w: w.data.normal_().mul_(0.1), 0.01),
}


def one_layer(initialise):
    def make(n):
        layer = nn.Linear(n, n, bias=False)
        with torch.no_grad():
            initialise(layer.weight)
        return layer

    return make


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialisers(name):
    initialise, var = INITIALISERS[name]
    _, laws = built(one_layer(initialise), N)
    law = laws["weight"]
    assert law.mean == 0
    assert law.var[0] == pytest.approx(var, rel=1e-6, abs=0)
    assert law.source != "measured"


def test_new_tensors_and_changes_of_precision():
    class Plain(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.a = nn.Parameter(torch.randn(n, n) / math.sqrt(n))
            self.b = nn.Parameter(3.0 + 0.5 * torch.rand(n))
            self.c = nn.Parameter(torch.full((n,), 0.25))

    _, laws = built(lambda n: Plain(n).double(), N)
    assert laws["a"].var[0] == pytest.approx(1 / N)
    assert (laws["b"].mean, laws["b"].var[0]) == (pytest.approx(3.25), pytest.approx(0.25 / 12))
    assert (laws["c"].mean, laws["c"].var) == (0.25, (0.0, 0.0))
    assert all(law.source != "measured" for law in laws.values())


def test_what_no_initialiser_tells_is_measured():
    _, laws = built(one_layer(nn.init.orthogonal_), N)
    law = laws["weight"]
    assert law.source == "measured"
    assert law.var[0] == pytest.approx(1 / N, rel=0.05)


def forget_gates(n):
    model = Recurrent(n, nn.LSTM)
    with torch.no_grad():
        model.rnn.bias_ih_l0[n : 2 * n].fill_(1.0)
    return model


def test_an_array_with_several_laws_needs_one():
    x = np.ones((2, 5))
    with pytest.raises(BuildError, match=r"rnn\.bias_ih_l0.*different laws"):
        ns.program(ns.from_torch(forget_gates, width=16), x)
    net = ns.from_torch(forget_gates, width=16, laws={"rnn.bias_ih_l0": ns.Vector(0.0, 1.0)})
    ns.program(net, x)


def test_a_padding_row_is_zero_in_the_limit():
    """Averages over positions with token 0 have no contribution of it but its position."""
    net = ns.from_torch(
        lambda n: nn.Sequential(nn.Embedding(5, n, padding_idx=0), nn.Flatten(), nn.Linear(n, 1, bias=False)),
        tokens=True,
        laws={"2.weight": ns.Matrix(1.0)},
    )
    K = ns.kernel(net)([np.array([0]), np.array([1]), np.array([2])])
    assert pytest.approx(np.diag([0.0, 1.0, 1.0])) == K


def test_given_laws():
    net = ns.from_torch(
        CASES["sequential mlp"].make,
        width=16,
        laws={"*.weight": ns.Matrix(2.0), "*.bias": ns.Vector(0.0), "4.weight": ns.Matrix(1.0)},
    )
    K = ns.kernel(net)([VECTOR])
    a, b, v = ns.Matrix(2.0), ns.Matrix(2.0), ns.Matrix(1.0, rows=2)
    by_hand = ns.network(lambda x: v @ ns.gelu(b @ ns.relu(a @ x)))
    assert pytest.approx(ns.kernel(by_hand)([VECTOR]), rel=1e-9) == K
    with pytest.raises(BuildError, match="no parameter has this name"):
        ns.from_torch(CASES["sequential mlp"].make, laws={"5.weight": ns.Matrix(1.0)})
    with pytest.raises(BuildError, match=r"laws has 2\.0"):
        ns.from_torch(CASES["sequential mlp"].make, laws={"0.weight": 2.0})


def test_a_matrix_that_does_not_shrink_is_refused_or_read_at_its_width():
    def make(n):
        layers = nn.Sequential(
            nn.Linear(5, n, bias=False), nn.ReLU(), nn.Linear(n, n, bias=False), nn.Linear(n, 1)
        )
        nn.init.normal_(layers[2].weight, std=0.1)
        return layers

    with pytest.raises(BuildError, match=r"`2\.weight` does not shrink"):
        ns.program(ns.from_torch(make, width=16), VECTOR)
    net = ns.from_torch(make, width=16, laws={"2.weight": "width"})
    assert "Matrix(0.16)" in str(_read(net))


def test_powers_of_n_cancel():
    """Entries of variance 1 and a factor 1/sqrt(n), before the product or after it."""

    class Ntk(nn.Module):
        def __init__(self, n, before):
            super().__init__()
            self.u, self.w, self.v = (nn.Parameter(torch.randn(*s)) for s in ((n, 5), (n, n), (1, n)))
            self.before, self.n = before, n

        def forward(self, x):
            h = torch.relu(nn.functional.linear(x, self.u))
            if self.before:
                h = torch.relu(nn.functional.linear(h, self.w / math.sqrt(self.n)))
            else:
                h = torch.relu(nn.functional.linear(h, self.w) / math.sqrt(self.n))
            return nn.functional.linear(h, self.v) / math.sqrt(self.n)

    u, w, v = ns.Matrix(5.0), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)
    by_hand = ns.network(lambda x: v @ ns.relu(w @ ns.relu(u @ x)))
    expected = ns.kernel(by_hand)([VECTOR, -VECTOR])
    for before in (True, False):
        net = ns.from_torch(lambda n, before=before: Ntk(n, before), width=16, scales="strict")
        ns.check_import(net, VECTOR)
        assert ns.kernel(net)([VECTOR, -VECTOR]) == pytest.approx(expected, rel=1e-9)
        assert net.notes == []


def _read(net):
    ns.program(net, VECTOR)
    return ns.report_laws(net)


def test_the_table_of_laws():
    net = ns.from_torch(CASES["sequential mlp"].make, width=16)
    assert [row[3] for row in ns.report_laws(net).rows] == ["not read yet"] * 6
    report = _read(net)
    assert report.rows[2] == ("2.weight", "(n, n)", "uniform, variance 0.3333/n", "hidden Matrix(0.333333)")
    assert report.rows[3][2:] == ("uniform, variance 0.3333/n", "Vector(0.0208333)")
    assert "have the limit of Gaussian ones" in str(report)
    assert any("2.bias" in note and "n = 16" in note for note in report.notes)
    assert any(note.startswith("0.weight, 0.bias: not Gaussian") for note in report.notes)


def test_a_first_layer_keeps_its_law():
    """E[tanh(a)^2] of a wide layer whose coordinates are sums of two uniform numbers is not Gaussian."""
    x, reports = np.array([2.0, 2.0]), []
    for fill in (nn.init.uniform_, nn.init.normal_):

        def make(n, fill=fill):
            first, last = nn.Linear(2, n, bias=False), nn.Linear(n, 1, bias=False)
            fill(first.weight, *((-np.sqrt(3), np.sqrt(3)) if fill is nn.init.uniform_ else (0.0, 1.0)))
            nn.init.normal_(last.weight, std=n**-0.5)
            return nn.Sequential(first, nn.Tanh(), last)

        torch.manual_seed(0)
        layer = make(2**18)[0].weight.detach().numpy()
        second = np.tanh(layer @ x) ** 2
        net = ns.from_torch(make, width=16)
        kernel, error = ns.kernel(net)([x])[0, 0], second.std() / np.sqrt(len(second))
        assert (abs(second.mean() - kernel) < 5 * error) == (fill is nn.init.normal_)
        reports.append(str(ns.report_laws(net)))
    assert "0.weight: not Gaussian" in reports[0]
    assert "0.weight: not Gaussian" not in reports[1]


def test_strict_scales():
    with pytest.raises(BuildError, match=r"law of `2\.bias`"):
        ns.program(ns.from_torch(CASES["sequential mlp"].make, scales="strict"), VECTOR)
    with pytest.raises(BuildError, match="scales='loose'"):
        ns.from_torch(CASES["sequential mlp"].make, scales="loose")


def test_tokens_outside_the_table_are_refused():
    def make(n):
        return nn.Sequential(nn.Embedding(5, n), nn.Flatten(), nn.Linear(n, 1, bias=False))

    net = ns.from_torch(make, tokens=True)
    with pytest.raises(ns.NetsorError, match="the token 99 is looked up in a table of 5 rows"):
        ns.kernel(net)([np.array([99])])
    with pytest.raises(ns.NetsorError, match="no limit on these inputs"):
        ns.kernel(net)([np.array([1]), np.array([99])])
