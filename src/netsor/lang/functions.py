"""The coordinatewise functions of the language, by name.

A new function is one entry: `@register` on a function of arrays. `lang.parse` finds it by name, the
front end exports it, and the tests iterate over `FUNCTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from array_api_compat import array_namespace

from netsor.lang import special
from netsor.lang.ops import Function, Mixing, Op

__all__ = [
    "ARITHMETIC",
    "FUNCTIONS",
    "MIXINGS",
    "abs_",
    "add",
    "cos",
    "div",
    "elu",
    "erf",
    "erf_gate",
    "exp",
    "gaussian",
    "gelu",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log",
    "maximum",
    "minimum",
    "mul",
    "named",
    "neg",
    "piecewise",
    "polynomial",
    "pow_",
    "register",
    "relu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "step",
    "sub",
    "tanh",
]

FUNCTIONS: dict[str, Function] = {}


def register(arity: int = 1, **defaults: Any) -> Callable[[Callable[..., Any]], Function]:
    """Enter a function of real numbers into the language under its own name; keywords are its options."""

    def enter(fn: Callable[..., Any]) -> Function:
        function = Function(fn.__name__.rstrip("_"), fn, arity, defaults=defaults)
        FUNCTIONS[function.name] = function
        return function

    return enter


def _cast(condition: Any, x: Any) -> Any:
    return array_namespace(x).astype(condition, x.dtype)


@register()
def identity(x):
    return x


@register()
def relu(x):
    return x * _cast(x > 0, x)


@register(slope=0.01)
def leaky_relu(x, slope):
    return array_namespace(x).where(x > 0, x, slope * x)


@register()
def abs_(x):
    return array_namespace(x).abs(x)


@register()
def step(x):
    """1 for x > 0, else 0: the derivative of relu."""
    return _cast(x > 0, x)


@register()
def sign(x):
    return array_namespace(x).sign(x)


@register()
def erf(x):
    return special.erf(x)


@register()
def erf_gate(x):
    """(1 + erf(x)) / 2, the gate whose expectations are orthant probabilities."""
    return (1 + special.erf(x)) / 2


@register()
def exp(x):
    return array_namespace(x).exp(x)


@register()
def sin(x):
    return array_namespace(x).sin(x)


@register()
def cos(x):
    return array_namespace(x).cos(x)


@register(rate=1.0)
def gaussian(x, rate):
    """exp(-rate x^2)."""
    return array_namespace(x).exp(-rate * x * x)


@register()
def gelu(x):
    """x times the standard normal distribution function (the exact gelu)."""
    return x * (1 + special.erf(x * math.sqrt(0.5))) / 2


@register(alpha=1.0)
def elu(x, alpha):
    xp = array_namespace(x)
    return xp.where(x > 0, x, alpha * xp.expm1(x * _cast(x < 0, x)))


@register(low=-1.0, high=1.0)
def hard_tanh(x, low, high):
    """x between `low` and `high`, else the nearer of the two."""
    if low > high:
        raise ValueError("low is above high")
    return array_namespace(x).clip(x, low, high)


@register(coefs=(0.0, 1.0))
def polynomial(x, coefs):
    """coefs[0] + coefs[1] x + coefs[2] x^2 + ..."""
    total = 0 * x + coefs[-1]
    for c in coefs[-2::-1]:
        total = total * x + c
    return total


@register(knots=(0.0,), pieces=((0.0,), (0.0, 1.0)))
def piecewise(x, knots, pieces):
    """The polynomial `pieces[i]` (ascending coefficients) between `knots[i-1]` and `knots[i]`."""
    if any(b <= a for a, b in pairwise(knots)):
        raise ValueError("knots come in increasing order")
    xp = array_namespace(x)
    total = polynomial.fn(x, pieces[0])
    for knot, piece in zip(knots, pieces[1:], strict=True):
        total = xp.where(x > knot, polynomial.fn(x, piece), total)
    return total


@register()
def tanh(x):
    return array_namespace(x).tanh(x)


@register()
def sigmoid(x):
    return special.expit(x)


@register()
def softplus(x):
    """log(1 + exp(x))."""
    xp = array_namespace(x)
    return relu.fn(x) + xp.log1p(xp.exp(-xp.abs(x)))


@register()
def silu(x):
    return x * special.expit(x)


@register()
def sqrt(x):
    return array_namespace(x).sqrt(x)


@register()
def log(x):
    return array_namespace(x).log(x)


@register(arity=2)
def maximum(x, y):
    return array_namespace(x, y).maximum(x, y)


@register(arity=2)
def minimum(x, y):
    return array_namespace(x, y).minimum(x, y)


# Arithmetic: functions like the others, written between their arguments.

add = Function("add", lambda x, y: x + y, 2, slots=(("G", "G"),), infix="+")
sub = Function("sub", lambda x, y: x - y, 2, slots=(("G", "G"),), infix="-")
mul = Function("mul", lambda x, y: x * y, 2, slots=(("K", "G"), ("G", "K")), infix="*")
div = Function("div", lambda x, y: x / y, 2, slots=(("G", "K"),), infix="/")
neg = Function("neg", lambda x: -x, 1, slots=(("G",),), infix="-")
pow_ = Function("pow", lambda x, y: x**y, 2, infix="^")
ARITHMETIC = {op.name: op for op in (add, sub, mul, div, neg, pow_)}


# Functions of several members of a block.


def _max(members):
    return array_namespace(members).max(members, axis=0)


def _min(members):
    return array_namespace(members).min(members, axis=0)


def _batchnorm(members, eps=0.0):
    """(h - mean) / standard deviation over the members; the paper's batchnorm has eps = 0."""
    xp = array_namespace(members)
    centred = members - xp.mean(members, axis=0, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred * centred, axis=0, keepdims=True) + eps)


def _softmax(members, mask=None):
    """exp(x_i) / sum_j exp(x_j) over the members that count; the others get 0."""
    xp = array_namespace(members)
    if mask is not None:
        members = xp.where(mask > 0, members, xp.asarray(-xp.inf, dtype=members.dtype))
    weights = xp.exp(members - xp.max(members, axis=0, keepdims=True))
    return weights / xp.sum(weights, axis=0, keepdims=True)


MIXINGS = {
    op.name: op
    for op in (
        Mixing("max", _max, reduces=True),
        Mixing("min", _min, reduces=True),
        Mixing("batchnorm", _batchnorm),
        Mixing("softmax", _softmax, masked=True),
    )
}


def named(functions: dict[str, Op] | None = None) -> dict[str, Op]:
    """Every operation that a text may call by name, with the user's own added."""
    from netsor.lang import index_maps

    maps = (getattr(index_maps, name) for name in index_maps.__all__ if "_" not in name.rstrip("_"))
    return {**{m.name: m for m in maps}, **ARITHMETIC, **FUNCTIONS, **MIXINGS, **(functions or {})}
