"""The coordinatewise functions of models, for nodes and numbers, with their degrees of homogeneity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.lang import functions as fns


@dataclass(frozen=True)
class Coordinatewise:
    """`fn` acts on nodes and on numbers alike; `degree` k: f(c x) = c^k f(x) for c > 0."""

    fn: Callable[..., Any]
    degree: float | None = None


def _gelu_tanh(x):
    """The usual approximation of gelu: x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    return 0.5 * x * (1.0 + fns.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


def _hard_gate(x):
    return fns.hard_tanh(x + 3.0, low=0.0, high=6.0) * (1 / 6)


def _softplus(x, beta=1.0):
    return fns.softplus(x * beta) * (1 / beta) if beta != 1.0 else fns.softplus(x)


COORDINATEWISE: dict[str, Coordinatewise] = {
    "abs": Coordinatewise(fns.abs_, 1),
    "cos": Coordinatewise(fns.cos),
    "elu": Coordinatewise(fns.elu),
    "erf": Coordinatewise(fns.erf),
    "erfc": Coordinatewise(lambda x: 1.0 - fns.erf(x)),
    "exp": Coordinatewise(fns.exp),
    "exp2": Coordinatewise(lambda x: fns.exp(x * math.log(2))),
    "expm1": Coordinatewise(lambda x: fns.exp(x) - 1.0),
    "gelu": Coordinatewise(fns.gelu),
    "gelu_tanh": Coordinatewise(_gelu_tanh),
    "hard_sigmoid": Coordinatewise(_hard_gate),
    "hard_swish": Coordinatewise(lambda x: x * _hard_gate(x)),
    "hard_tanh": Coordinatewise(fns.hard_tanh),
    "leaky_relu": Coordinatewise(fns.leaky_relu, 1),
    "log": Coordinatewise(fns.log),
    "log1p": Coordinatewise(lambda x: fns.log(1.0 + x)),
    "log_sigmoid": Coordinatewise(lambda x: -fns.softplus(-x)),
    "mish": Coordinatewise(lambda x: x * fns.tanh(fns.softplus(x))),
    "neg": Coordinatewise(lambda x: -x, 1),
    "relu": Coordinatewise(fns.relu, 1),
    "rsqrt": Coordinatewise(lambda x: 1.0 / fns.sqrt(x), -0.5),
    "sigmoid": Coordinatewise(fns.sigmoid),
    "sign": Coordinatewise(fns.sign, 0),
    "silu": Coordinatewise(fns.silu),
    "sin": Coordinatewise(fns.sin),
    "softplus": Coordinatewise(_softplus),
    "sqrt": Coordinatewise(fns.sqrt, 0.5),
    "square": Coordinatewise(lambda x: x * x, 2),
    "step": Coordinatewise(fns.step, 0),
    "tanh": Coordinatewise(fns.tanh),
}


def of_number(name: str, x: float, **options: Any) -> float:
    """The function of one number."""
    return float(COORDINATEWISE[name].fn(np.float64(x), **options))
