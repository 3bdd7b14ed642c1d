"""Modules that write into tensors: the model's own weights give its own output, or the model is refused."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mutating_models import EQUAL, REFUSED, Body, X, parameter_in_part  # noqa: E402
from torch import nn  # noqa: E402

import netsor as ns  # noqa: E402
from netsor.errors import BuildError  # noqa: E402

WIDTH, SAMPLES = 64, 400
TRUTHS = [
    *("add_to_a_token", "write_tokens_into_zeros", "fill_tokens", "zero_half_of_the_width"),
    *("rotate_every_two", "both_names_after_a_relu", "ones_like"),
]


def test_there_are_at_least_forty():
    assert len(EQUAL) + len(REFUSED) >= 40


@pytest.mark.parametrize("name", EQUAL)
def test_own_weights_give_own_output(name):
    net = ns.from_torch(lambda n: Body(n, EQUAL[name]), width=16)
    assert ns.program(net, X).outputs
    assert net.checked == {(X.shape,)}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name):
    match, middle = REFUSED[name]
    with pytest.raises(ns.NetsorError, match=match):
        ns.program(ns.from_torch(lambda n: Body(n, middle), width=16), X)


def test_a_write_into_a_parameter_is_read_or_refused():
    net = ns.from_torch(lambda n: Body(n, parameter_in_part), width=16)
    with suppress(BuildError):  # PyTorch 2.8 cannot export it
        ns.program(net, X)
        assert net.checked == {(X.shape,)}


@pytest.mark.parametrize("name", TRUTHS)
def test_the_kernel_is_that_of_many_initialisations(name):
    """In standard errors: for Gaussian outputs Var(o_i o_j) = K_ii K_jj + K_ij^2; a width adds 4/n."""
    net = ns.from_torch(lambda n: Body(n, EQUAL[name]), width=WIDTH)
    K = ns.kernel(net).evaluate([X])
    inputs, outputs = torch.as_tensor(X, dtype=torch.float32)[None], []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for _ in range(SAMPLES):
            outputs.append(Body(WIDTH, EQUAL[name])(inputs).reshape(-1).double().numpy())
    size = np.outer(np.diag(K.value), np.diag(K.value))
    error = np.sqrt((size + K.value**2) / SAMPLES + K.error**2) + 4 / WIDTH * np.sqrt(size)
    moments = np.transpose(outputs) @ outputs / SAMPLES
    z = np.abs(moments - K.value) / np.where(error > 0, error, 1.0)
    assert z.max() < 4


def test_dropout_in_place_in_training_mode():
    """The kernel is that of dropout that makes a new tensor."""

    def make(inplace):
        layers = nn.ReLU(inplace), nn.Dropout2d(0.3, inplace), nn.Flatten(), nn.Dropout(0.5, inplace)
        return lambda n: nn.Sequential(nn.Conv2d(3, n, 2), *layers, nn.Linear(4 * n, 1))

    x = np.random.default_rng(0).standard_normal((2, 3, 3, 3))
    one, two = (ns.kernel(ns.from_torch(make(flag), train=True))(x) for flag in (True, False))
    np.testing.assert_allclose(one, two, rtol=1e-12)
