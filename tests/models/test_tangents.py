"""Tangent kernels of models as they are, against gradients that their own libraries compute.

In the standard parametrisation, over all parameters that are random when a model is made: gains and offsets
that begin as constants are constants of the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import netsor as ns

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax_models  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import Recurrent  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WIDTHS, SAMPLES = (256, 1024), 24
RNG = np.random.default_rng(3)


def gaussian(model: nn.Module) -> nn.Module:
    """With normal laws: a first layer of uniform numbers is no Gaussian one, at any width."""
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=(3 * p[0].numel()) ** -0.5)
        elif p.numel() > 1 and p.std() > 0:
            nn.init.normal_(p, std=0.5)
    return model


def mlp(n: int) -> nn.Module:
    return gaussian(nn.Sequential(nn.Linear(5, n), nn.ReLU(), nn.Linear(n, n), nn.GELU(), nn.Linear(n, 1)))


def cnn(n: int) -> nn.Module:
    layers = nn.Conv2d(3, n, 3, padding=1), nn.ReLU(), nn.Conv2d(n, n, 3, padding=1), nn.ReLU()
    return gaussian(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 1)))


def normalised(n: int) -> nn.Module:
    first = nn.Linear(5, n), nn.LayerNorm(n), nn.Tanh()
    return gaussian(nn.Sequential(*first, nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1)))


def gru(n: int) -> nn.Module:
    return gaussian(Recurrent(n, nn.GRU))


TORCH = {
    mlp: RNG.standard_normal((3, 5)),
    cnn: RNG.standard_normal((2, 3, 4, 4)),
    normalised: RNG.standard_normal((3, 5)),
    gru: RNG.standard_normal((2, 3, 5)),
}


def of_torch(make: Callable[[int], nn.Module], n: int, x: np.ndarray) -> Iterator[np.ndarray]:
    """Tangent kernels of real models: (outputs, outputs)."""
    for seed in range(SAMPLES):
        torch.manual_seed(seed)
        model = make(n).double().eval()
        moving = {name: p.detach() for name, p in model.named_parameters() if p.numel() == 1 or p.std() > 0}

        def outputs(weights: Any, xi: Any, model: nn.Module = model) -> Any:
            return torch.func.functional_call(model, weights, (xi[None],)).reshape(-1)

        slopes = [torch.func.jacrev(outputs)(moving, xi) for xi in torch.tensor(x)]
        rows = [torch.cat([s.reshape(len(s), -1) for s in one.values()], 1) for one in slopes]
        table = torch.cat(rows)
        yield (table @ table.T).detach().numpy()


def of_jax(net: Any, n: int, x: np.ndarray) -> Iterator[np.ndarray]:
    """The same for a model on JAX, on one input."""
    front = net.front
    (order,) = net.output_orders()
    given = jax.numpy.asarray(x, front.dtype)
    given = given[None] if front.batch else given

    def outputs(weights: Any) -> Any:
        found = jax.tree_util.tree_leaves(front.apply[0](weights, given))[0]
        return found.transpose(order).reshape(-1)

    slopes = jax.jit(jax.jacrev(outputs))
    for seed in range(SAMPLES):
        weights = front.init(jax.random.key(seed), n)
        pairs = zip(*map(jax.tree_util.tree_leaves, (weights, slopes(weights))), strict=True)
        rows = [np.asarray(s, float).reshape(len(s), -1) for w, s in pairs if np.std(w) > 0]
        table = np.concatenate(rows, axis=1)
        yield table @ table.T


def agrees(found: Any, real: list[np.ndarray], n: int) -> None:
    """Within standard errors, and what a width of n changes: of order 1/n."""
    mean, error = np.mean(real, axis=0), np.std(real, axis=0, ddof=1) / np.sqrt(len(real))
    scale = np.sqrt(np.outer(np.diag(mean), np.diag(mean)))
    z = np.abs(found.value - mean) / (error + found.error + 4 / n * scale)
    assert np.sqrt(np.mean(z**2)) < 2
    assert z.max() < 4


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("make", TORCH, ids=lambda make: make.__name__)
def test_gradients_of_torch(make: Callable[[int], nn.Module], n: int) -> None:
    x = TORCH[make]
    found = ns.ntk(ns.from_torch(make, n), rates=("standard", n)).evaluate(x)
    agrees(found, list(of_torch(make, n, x)), n)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("case", [jax_models.scanned_rnn, jax_models.plain_cnn], ids=lambda c: c.__name__)
def test_gradients_of_jax(case: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_models, "WIDTH", n)
    net, x = case()
    found = ns.ntk(net, rates=("standard", n)).evaluate([x])
    agrees(found, list(of_jax(net, n, x)), n)
