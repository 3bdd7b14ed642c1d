"""Kernels of imported models against many initialisations of the real models, in standard errors."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from library_models import TORCHVISION, TRANSFORMERS, declare_torchvision_operators  # noqa: E402
from torch_models import CASES, Case  # noqa: E402

import netsor as ns  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def needs(library: str):
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


def real_outputs(case: Case, width: int, samples: int) -> np.ndarray:
    """Outputs (samples, outputs) of the model itself, rows of the readout first as netsor has them."""
    parts = case.x if isinstance(case.x, tuple) else (case.x,)
    tokens, batch = case.options.get("tokens", False), case.options.get("batch", True)
    kind = torch.long if tokens else torch.get_default_dtype()
    inputs = [torch.as_tensor(np.asarray(x)).to(kind) for x in parts]
    inputs = [x[None] if batch else x for x in inputs]
    rows = []
    with torch.no_grad(), torch.random.fork_rng():
        for seed in range(samples):
            torch.manual_seed(seed)
            model = case.make(width).train(case.options.get("train", False))
            out: Any = model(*inputs)
            rows.append(
                out.reshape(-1).double().numpy() if out.dim() < 4 else out[0].reshape(-1).double().numpy()
            )
    return np.array(rows)


def compare(case: Case, width: int, samples: int) -> tuple[float, float]:
    """The root mean square and the largest distance between kernel and second moments, in standard errors.

    For Gaussian outputs Var(o_i o_j) = K_ii K_jj + K_ij^2.
    """
    net = ns.from_torch(case.make, width=width, **case.options)
    result = ns.kernel(net).evaluate([case.x])
    outputs = real_outputs(case, width, samples)
    diagonal = np.diag(result.value)
    error = np.sqrt((np.outer(diagonal, diagonal) + result.value**2) / samples + result.error**2)
    z = (outputs.T @ outputs / samples - result.value) / error
    return float(np.sqrt((z**2).mean())), float(np.abs(z).max())


ALL = [
    *(pytest.param(case, id=name) for name, case in CASES.items()),
    *(pytest.param(case, id=name, marks=needs("torchvision")) for name, case in TORCHVISION.items()),
    *(pytest.param(case, id=name, marks=needs("transformers")) for name, case in TRANSFORMERS.items()),
]


@pytest.mark.parametrize("case", ALL)
def test_the_kernel_is_that_of_many_initialisations(case):
    declare_torchvision_operators()
    rms, largest = compare(case, width=128, samples=400)
    assert rms < 3
    assert largest < 5
