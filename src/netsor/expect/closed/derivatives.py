"""Derivatives of functions of the language that are again sums of its functions.

`DERIVATIVES[name](options)` lists (weight, name, options) of the terms of the derivative, for all x but the
kinks. It is None for a piecewise function with a jump. Functions without an entry have a derivative that is
not such a sum (gelu, gaussian, tanh, ...) or a jump (step, sign).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

__all__ = ["DERIVATIVES", "Derivative"]

Options = Mapping[str, Any]
Derivative = list[tuple[float, str, Options]]
Coefs = tuple[float, ...]


def _slopes(*slopes: float, knots: Coefs = (0.0,)) -> Derivative:
    """The step function with these values between the knots."""
    return [(1.0, "piecewise", {"knots": knots, "pieces": tuple((s,) for s in slopes)})]


def _polynomial(coefs: Coefs) -> Coefs:
    """p' of p = coefs[0] + coefs[1] x + ..."""
    return tuple(n * c for n, c in enumerate(coefs))[1:] or (0.0,)


def _piecewise(knots: Coefs, pieces: tuple[Coefs, ...]) -> Derivative | None:
    for knot, (before, after) in zip(knots, pairwise(pieces), strict=True):
        if not math.isclose(_value(before, knot), _value(after, knot), abs_tol=1e-12):
            return None
    return [(1.0, "piecewise", {"knots": knots, "pieces": tuple(map(_polynomial, pieces))})]


def _value(coefs: Coefs, x: float) -> float:
    return math.fsum(c * x**n for n, c in enumerate(coefs))


def _elu(alpha: float) -> Derivative:
    """1 for x > 0, alpha exp(x) for x < 0."""
    constant = {"coefs": (alpha,)}
    return [
        (1.0, "elu", {"alpha": alpha}),
        (-1.0, "relu", {}),
        (1 - alpha, "step", {}),
        (1.0, "polynomial", constant),
    ]


DERIVATIVES: dict[str, Callable[[Options], Derivative | None]] = {
    "identity": lambda options: [(1.0, "polynomial", {"coefs": (1.0,)})],
    "polynomial": lambda options: [(1.0, "polynomial", {"coefs": _polynomial(options["coefs"])})],
    "relu": lambda options: [(1.0, "step", {})],
    "leaky_relu": lambda options: _slopes(options["slope"], 1.0),
    "abs": lambda options: [(1.0, "sign", {})],
    "erf": lambda options: [(2 / math.sqrt(math.pi), "gaussian", {"rate": 1.0})],
    "erf_gate": lambda options: [(1 / math.sqrt(math.pi), "gaussian", {"rate": 1.0})],
    "exp": lambda options: [(1.0, "exp", {})],
    "sin": lambda options: [(1.0, "cos", {})],
    "cos": lambda options: [(-1.0, "sin", {})],
    "elu": lambda options: _elu(options["alpha"]),
    "hard_tanh": lambda options: _slopes(0.0, 1.0, 0.0, knots=(options["low"], options["high"])),
    "piecewise": lambda options: _piecewise(options["knots"], options["pieces"]),
    "softplus": lambda options: [(1.0, "sigmoid", {})],
}
