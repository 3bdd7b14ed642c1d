"""The page for users of neural-tangents has every name of its version 0.6.5; rows work, or say why not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns

PAGE = (Path(__file__).parents[2] / "docs" / "neural_tangents.md").read_text()
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE, re.M))
STAX = """
parallel serial repeat ABRelu Abs Cos Elementwise ElementwiseNumerical Erf Exp ExpNormalized Gabor
Gaussian Gelu Hermite LeakyRelu Monomial Polynomial Rbf RectifiedMonomial Relu Sigmoid_like Sign Sin Aggregate
AvgPool Conv ConvLocal ConvTranspose Dense Identity Index DotGeneral Dropout Flatten GlobalAvgPool
GlobalSelfAttention GlobalSumPool ImageResize LayerNorm SumPool Slice FanInConcat FanInProd FanInSum
FanOut AggregateImplementation AttentionMechanism Padding PositionalEmbedding Bool Diagonal
MaskedArray layer requires supports_masking unmask_fn
"""
PREDICT = """
gradient_descent gradient_descent_mse gradient_descent_mse_ensemble gp_inference max_learning_rate ODEState
Gaussian
"""
TOP = """
batch empirical_kernel_fn empirical_nngp_fn empirical_ntk_fn empirical_ntk_vp_fn linearize NtkImplementation
taylor_expand monte_carlo_kernel_fn Kernel
"""


def test_every_name_has_a_row() -> None:
    expected = (
        {f"stax.{n}" for n in STAX.split()} | {f"predict.{n}" for n in PREDICT.split()} | set(TOP.split())
    )
    assert set(ROWS) == expected


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.S)[0], found)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_every_row_works_or_says_why_not(name: str, names: dict[str, Any]) -> None:
    told = ROWS[name]
    if told.startswith("not here: "):
        assert len(told) > 25
        return
    spans = re.findall(r"`([^`]+)`", told)
    assert spans
    code, own = spans[0], dict(names)
    if re.match(r"\w+ = ", code):  # a layer is made, then called
        exec(code, own)
        code = spans[1]
    if not re.search(r"\b[gh]\b", code):
        assert eval(code, own) is not None
        return
    own["v"], own["U0"] = ns.Matrix(rows=1), ns.Matrix()
    body = "g" if re.search(r"\bg\b", code) else "h"
    make = f"lambda x: (lambda {body}: v @ ({code}))(U0 @ x)"
    net = ns.network(eval(make, own))
    data = names["image"] if body == "g" else np.random.default_rng(0).standard_normal((4, 3))
    K = ns.kernel(net, points=256)([data])
    assert np.isfinite(K).all()
    assert (np.linalg.eigvalsh(K) > -1e-6).all()


def test_the_rows_are_the_functions_that_they_are_beside() -> None:
    """Values of the elementwise rows, by the formulas in the documents of neural-tangents."""
    z = np.array([-1.3, 0.2, 0.9])
    formulas = {
        "ABRelu": -0.5 * np.minimum(z, 0) + 2 * np.maximum(z, 0),
        "LeakyRelu": np.where(z > 0, z, 0.1 * z),
        "Sin": 2 * np.sin(0.5 * z + 1),
        "Cos": 2 * np.cos(0.5 * z + 1),
        "Rbf": np.sqrt(2) * np.sin(np.sqrt(2) * z + np.pi / 4),
        "Gaussian": np.exp(-(z**2)),
        "Gabor": np.exp(-(z**2)) * np.sin(z),
        "Exp": 2 * np.exp(0.5 * z),
        "Hermite": (z**2 - 1) / np.sqrt(2),
        "Monomial": z**3,
        "RectifiedMonomial": np.maximum(z, 0) ** 2,
        "Polynomial": 1 + 3 * z**2,
        "Relu": np.maximum(z, 0),
        "Abs": np.abs(z),
        "Sign": np.sign(z),
    }
    for name, expected in formulas.items():
        code = re.findall(r"`([^`]+)`", ROWS[f"stax.{name}"])[0]
        assert np.allclose(eval(code, {"ns": ns, "np": np, "h": z}), expected), name
