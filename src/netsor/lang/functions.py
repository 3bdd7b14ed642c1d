"""The coordinatewise functions of the language, by name.

To add a function, write `@register(facts)` or `@register_smooth(...)` on a function of arrays. The facts (see
`lang.facts`) are its derivative, kinks, growth and closed forms. `lang.parse` finds it by name, the front end
exports it, and the tests iterate over `FUNCTIONS` and check every fact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from netsor.lang import array_api
from netsor.lang.array_api import array_namespace
from netsor.lang.exp_terms import ExpTerm
from netsor.lang.facts import UNKNOWN, Facts, Growth, facts_of_pieces, smooth
from netsor.lang.ops import Function, IndexMap, Mixing, Op
from netsor.lang.piecewise_polynomials import PiecewisePolynomial

# Without abs: `from netsor import *` must not replace that of Python.
__all__ = ["cos", "elu", "erf", "erf_gate", "exp", "gaussian", "gelu", "hard_tanh", "identity", "leaky_relu"]
__all__ += ["log", "maximum", "minimum", "piecewise", "polynomial", "relu", "sigmoid", "sign", "silu", "sin"]
__all__ += ["softplus", "sqrt", "step", "tanh"]

FUNCTIONS: dict[str, Function] = {}
SQRT_PI = math.sqrt(math.pi)


def register(
    facts: Facts | Callable[..., Facts] = UNKNOWN, arity: int = 1, **defaults: Any
) -> Callable[[Callable[..., Any]], Function]:
    """Add a function to the language, under its own name; `facts` may depend on its options."""

    def enter(fn: Callable[..., Any]) -> Function:
        function = Function(fn.__name__.rstrip("_"), fn, arity, defaults=defaults, facts=facts)
        FUNCTIONS[function.name] = function
        return function

    return enter


def register_smooth(derivative: Callable[..., Any], **facts: Any) -> Callable[..., Function]:
    """Add a smooth function without options to the language; see `facts.smooth`."""
    return register(smooth(derivative, **facts))


def _library(name: str) -> Callable[..., Any]:
    """The function of this name in the library of its arguments."""

    def function(*arrays: Any) -> Any:
        return getattr(array_namespace(*arrays), name)(*arrays)

    function.__name__ = function.__qualname__ = name
    return function


def _cast(condition: Any, x: Any) -> Any:
    return array_namespace(x).astype(condition, x.dtype)


# Piecewise polynomials. Derivatives are valid everywhere but at kinks.


def _pieces(knots: tuple[float, ...], *pieces: tuple[float, ...], **changes: object) -> Facts:
    """Facts of a piecewise polynomial; its derivative is one, too."""
    f = PiecewisePolynomial(knots, pieces)

    def derivative(x: Any) -> Any:
        slope = f.differentiated()
        if not slope.knots:
            return polynomial(x, coefs=slope.pieces[0])
        return piecewise(x, knots=slope.knots, pieces=slope.pieces)

    return facts_of_pieces(f, **{"derivative": derivative, **changes})


@register(_pieces((), (0.0, 1.0), derivative=lambda x: 1.0))
def identity(x):
    return x


@register(_pieces((0.0,), (0.0,), (0.0, 1.0), derivative=lambda x: step(x)))
def relu(x):
    return x * _cast(x > 0, x)


@register(lambda slope: _pieces((0.0,), (0.0, slope), (0.0, 1.0)), slope=0.01)
def leaky_relu(x, slope):
    return array_namespace(x).where(x > 0, x, slope * x)


abs_ = register(_pieces((0.0,), (0.0, -1.0), (0.0, 1.0), derivative=lambda x: sign(x)))(_library("abs"))


@register(_pieces((0.0,), (0.0,), (1.0,), derivative=lambda x: 0.0))
def step(x):
    """1 for x > 0, else 0: the derivative of relu."""
    return _cast(x > 0, x)


# sign(x) = 1[x > 0] - 1[x < 0]; ties count 1/2 - 1/2 = 0.
_halves = (ExpTerm((1.0,), knot=0.0, tie=0.5), ExpTerm((-1.0,), knot=0.0, side=-1, tie=0.5))

sign = register(_pieces((0.0,), (-1.0,), (1.0,), derivative=lambda x: 0.0, terms=_halves))(_library("sign"))


def _hard_tanh(low: float, high: float) -> Facts:
    """The pieces low, x, high; an infinite end adds no knot."""
    below, above = ([end] if math.isfinite(end) else [] for end in (low, high))
    return _pieces((*below, *above), *((end,) for end in below), (0.0, 1.0), *((end,) for end in above))


@register(_hard_tanh, low=-1.0, high=1.0)
def hard_tanh(x, low, high):
    """Clip x to the interval from `low` to `high`."""
    if low > high:
        raise ValueError("low is above high")
    return array_namespace(x).clip(x, low, high)


@register(lambda coefs: _pieces((), tuple(coefs)), coefs=(0.0, 1.0))
def polynomial(x, coefs):
    """coefs[0] + coefs[1] x + coefs[2] x^2 + ..."""
    total = 0 * x + coefs[-1]  # Horner's rule
    for c in coefs[-2::-1]:
        total = total * x + c
    return total


@register(lambda knots, pieces: _pieces(knots, *pieces), knots=(0.0,), pieces=((0.0,), (0.0, 1.0)))
def piecewise(x, knots, pieces):
    """The polynomial `pieces[i]` (ascending coefficients) between `knots[i-1]` and `knots[i]`."""
    if any(b <= a for a, b in pairwise(knots)):
        raise ValueError("knots come in increasing order")
    xp = array_namespace(x)
    total = polynomial.fn(x, pieces[0])
    for knot, piece in zip(knots, pieces[1:], strict=True):
        total = xp.where(x > knot, polynomial.fn(x, piece), total)
    return total


# Functions with a closed form by Gaussian noise, exponentials and waves. A derivative that mentions its own
# function takes it from FUNCTIONS, because a type checker refuses a name inside its own decorator.


@register_smooth(
    lambda x: 2 / SQRT_PI * gaussian(x),
    range=(-1.0, 1.0),
    monotone=1,
    parity=-1,
    terms=(ExpTerm((2.0,), knot=0.0, noise=0.5), ExpTerm((-1.0,))),
)
def erf(x):
    return array_api.erf(x)


@register_smooth(
    lambda x: 1 / SQRT_PI * gaussian(x),
    range=(0.0, 1.0),
    monotone=1,
    terms=(ExpTerm((1.0,), knot=0.0, noise=0.5),),
)
def erf_gate(x):
    """(1 + erf(x)) / 2, the gate whose expectations are orthant probabilities."""
    return (1 + array_api.erf(x)) / 2


@register_smooth(
    lambda x: erf_gate(math.sqrt(0.5) * x) + 1 / math.sqrt(2 * math.pi) * (x * gaussian(x, rate=0.5)),
    range=(-0.16997120747990369, math.inf),
    growth=Growth.LINEAR,
    terms=(ExpTerm((0.0, 1.0), knot=0.0, noise=1.0),),
)
def gelu(x):
    """x times the standard normal distribution function (the exact gelu)."""
    return x * (1 + array_api.erf(x * math.sqrt(0.5))) / 2


exp = register_smooth(
    lambda x: exp(x),
    range=(0.0, math.inf),
    growth=Growth.EXPONENTIAL,
    monotone=1,
    terms=(ExpTerm((1.0,), rate=1.0),),
)(_library("exp"))


def _gaussian(rate: float) -> Facts:
    """Facts of exp(-rate x^2); only a rate >= 0 makes it bounded."""
    if rate == 0:
        return _pieces((), (1.0,))
    facts = {"parity": 1, "terms": (ExpTerm((1.0,), bend=rate),)}
    if rate > 0:
        facts["range"] = (0.0, 1.0)
    return smooth(lambda x: -2 * rate * (x * gaussian(x, rate=rate)), **facts)


@register(_gaussian, rate=1.0)
def gaussian(x, rate):
    """Compute exp(-rate x^2)."""
    return array_namespace(x).exp(-rate * x * x)


_wave = partial(register_smooth, range=(-1.0, 1.0))
sin = _wave(lambda x: cos(x), parity=-1, terms=(ExpTerm((-1j,), rate=1j),))(_library("sin"))
cos = _wave(lambda x: -sin(x), parity=1, terms=(ExpTerm((1.0,), rate=1j),))(_library("cos"))


def _elu(alpha: float) -> Facts:
    """elu' = 1 for x > 0 and alpha exp(x) = elu + alpha for x < 0."""
    linear, taylor = ExpTerm((0.0, 1.0), knot=0.0), (0.0, *(alpha / math.factorial(n) for n in range(1, 7)))
    below = (ExpTerm((alpha,), rate=1.0, knot=0.0, side=-1), ExpTerm((-alpha,), knot=0.0, side=-1))
    return Facts(
        derivative=lambda x: elu(x, alpha=alpha) - relu(x) + (1 - alpha) * step(x) + alpha,
        kinks=(0.0,),
        jumps=(),
        poles=(),
        range=(min(-alpha, 0.0), math.inf),
        growth=Growth.LINEAR,
        monotone=1 if alpha >= 0 else 0,
        terms=(linear, *below),
        near=(linear, ExpTerm(taylor, knot=0.0, side=-1)),
    )


@register(_elu, alpha=1.0)
def elu(x, alpha):
    xp = array_namespace(x)
    # `where` evaluates both branches: expm1 of large positive x would overflow.
    return xp.where(x > 0, x, alpha * xp.expm1(x * _cast(x < 0, x)))


# Functions without closed forms.


_tanh = register_smooth(lambda x: 1 - tanh(x) ** 2, range=(-1.0, 1.0), monotone=1, parity=-1)
tanh = _tanh(_library("tanh"))


@register_smooth(lambda x: FUNCTIONS["sigmoid"](x) * FUNCTIONS["sigmoid"](-x), range=(0.0, 1.0), monotone=1)
def sigmoid(x):
    return array_api.expit(x)


@register_smooth(lambda x: sigmoid(x), range=(0.0, math.inf), growth=Growth.LINEAR, monotone=1)
def softplus(x):
    """log(1 + exp(x))."""
    xp = array_namespace(x)
    # relu(x) + log(1 + exp(-|x|)) does not overflow.
    return relu.fn(x) + xp.log1p(xp.exp(-xp.abs(x)))


@register_smooth(
    lambda x: sigmoid(x) * (1 + x * sigmoid(-x)), range=(-0.27846454276107379, math.inf), growth=Growth.LINEAR
)
def silu(x):
    return x * array_api.expit(x)


_half_line = (0.0, math.inf)
_of_positive = partial(
    Facts, kinks=(), jumps=(), poles=(0.0,), domain=_half_line, growth=Growth.LINEAR, monotone=1
)
sqrt = register(_of_positive(lambda x: 0.5 / sqrt(x), range=_half_line))(_library("sqrt"))
log = register(_of_positive(lambda x: 1 / x))(_library("log"))


# Functions of two arguments. If both are equal, each gets half of the derivative.


def _larger(x: Any, y: Any) -> Any:
    return 0.5 + 0.5 * sign(x - y)


_extreme = partial(Facts, jumps=(), poles=(), growth=Growth.LINEAR)
_of_larger = _extreme(lambda x, y: (_larger(x, y), _larger(y, x)))
_of_smaller = _extreme(lambda x, y: (_larger(y, x), _larger(x, y)))
maximum = register(_of_larger, arity=2)(_library("maximum"))
minimum = register(_of_smaller, arity=2)(_library("minimum"))


# Arithmetic. `slots` are the kinds of arguments for which the result is linear in G-vars.


_linear = partial(smooth, growth=Growth.LINEAR)
_product = smooth(lambda x, y: (y, x), growth=Growth.POLYNOMIAL)
_quotient = Facts(lambda x, y: (1 / y, -x / y**2))
_opposite = _pieces((), (0.0, -1.0), derivative=lambda x: -1.0)
_power = Facts(lambda x, y: (y * x ** (y - 1), log(x) * x**y))

add = Function(
    "add", lambda x, y: x + y, 2, slots=(("G", "G"),), infix="+", facts=_linear(lambda x, y: (1.0, 1.0))
)
sub = Function(
    "sub", lambda x, y: x - y, 2, slots=(("G", "G"),), infix="-", facts=_linear(lambda x, y: (1.0, -1.0))
)
mul = Function("mul", lambda x, y: x * y, 2, slots=(("K", "G"), ("G", "K")), infix="*", facts=_product)
div = Function("div", lambda x, y: x / y, 2, slots=(("G", "K"),), infix="/", facts=_quotient)
neg = Function("neg", lambda x: -x, 1, slots=(("G",),), infix="-", facts=_opposite)
pow_ = Function("pow", lambda x, y: x**y, 2, infix="^", facts=_power)
ARITHMETIC = {op.name: op for op in (add, sub, mul, div, neg, pow_)}


# Functions of several members of a block.


def _argmax(members):
    """1 for the largest member and 0 for the others; k equal largest members get 1/k. The gradient of max."""
    xp = array_namespace(members)
    largest = _cast(members == xp.max(members, axis=0, keepdims=True), members)
    return largest / xp.sum(largest, axis=0, keepdims=True)


def _mean(members):
    return array_namespace(members).mean(members, axis=0, keepdims=True)


def _deviation(members, eps=0.0):
    centred = members - _mean(members)
    return array_namespace(members).sqrt(_mean(centred * centred) + eps)


def _batchnorm(members, eps=0.0):
    """(h - mean) / standard deviation over the members; the paper's batchnorm has eps = 0."""
    return (members - _mean(members)) / _deviation(members, eps)


def _d_batchnorm(members, directions):
    """(t - y mean(y t)) / s for centred directions t, y = batchnorm(x) and standard deviation s of x."""
    y, moved = _batchnorm(members), directions - _mean(directions)
    return (moved - y * _mean(y * moved)) / _deviation(members)


def _softmax(members, mask=None):
    """exp(x_i) / sum_j exp(x_j) over the members with mask > 0; the others get 0."""
    xp = array_namespace(members)
    if mask is not None:
        members = xp.where(mask > 0, members, xp.asarray(-xp.inf, dtype=members.dtype))
    # Subtracting the maximum prevents overflow, and leaves the quotient unchanged.
    weights = xp.exp(members - xp.max(members, axis=0, keepdims=True))
    return weights / xp.sum(weights, axis=0, keepdims=True)


MIXINGS = {
    op.name: op
    for op in (
        Mixing("max", lambda members: array_namespace(members).max(members, axis=0), reduces=True),
        Mixing("min", lambda members: array_namespace(members).min(members, axis=0), reduces=True),
        Mixing("argmax", _argmax),
        Mixing("batchnorm", _batchnorm),
        Mixing("softmax", _softmax, masked=True),
    )
}
d_batchnorm = Mixing("d_batchnorm", _d_batchnorm, masked=True)


def named(functions: dict[str, Op] | None = None) -> dict[str, Op]:
    """Return all operations that a text may call, by name, including the user's functions."""
    from netsor.lang import index_maps

    maps = {m.name: m for m in vars(index_maps).values() if isinstance(m, IndexMap)}
    return {**maps, **ARITHMETIC, **FUNCTIONS, **MIXINGS, d_batchnorm.name: d_batchnorm, **(functions or {})}
