"""A PyTorch model's own weights in its program give the model's own output."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from torch_models import CASES, VECTOR  # noqa: E402

import netsor as ns  # noqa: E402
from netsor.errors import BuildError, SimulationError  # noqa: E402


@contextmanager
def precision(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_own_weights_give_own_output(name, dtype):
    case = CASES[name]
    with precision(dtype):
        net = ns.from_torch(case.make, width=16, **case.options)
        check = ns.check_import(net, case.x)
    assert check.tolerance == (1e-5 if dtype == torch.float32 else 1e-12)
    assert check.difference <= check.tolerance
    assert abs(check.outputs).max() > 0


def test_the_check_can_fail():
    net = ns.from_torch(CASES["sequential mlp"].make, width=16)
    ns.check_import(net, VECTOR)
    numbers = net.front.numbers
    net.front.numbers = lambda: {k: a * (1.001 if k == "2.weight" else 1.0) for k, a in numbers().items()}
    with pytest.raises(SimulationError, match="differs from the model"):
        ns.check_import(net, VECTOR)


def test_only_imported_networks_are_checked():
    with pytest.raises(BuildError, match="not imported"):
        ns.check_import(ns.zoo.mlp(depth=1), VECTOR)
    with pytest.raises(BuildError, match="not imported"):
        ns.report_laws(ns.zoo.mlp(depth=1))


def test_inputs_of_different_shapes_share_their_matrices():
    """Two sentences of different lengths: the kernel between them is not 0."""
    case = CASES["encoder layer, norm first"]
    net = ns.from_torch(case.make, width=16, **case.options)
    K = ns.kernel(net)([case.x, case.x[:2]])
    assert K.shape == (5, 5)
    assert abs(K[0, 3]) > 0.1 * K[0, 0]
    outputs = ns.simulate(net, [case.x, case.x[:2]], width=64, samples=3, seed=0)
    assert outputs.shape == (3, 5)
