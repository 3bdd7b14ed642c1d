"""What has one value for each input: constants, the limits of C-vars, and the means of Gaussian forms.

constant(e)   numbers, data and C-vars
scalar(c)     the limit of a C-var: E of a Moment, or a function of other C-vars
mean(e)       E of a form (affine in G-vars): the form at the means of its G-vars
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import ARITHMETIC
from netsor.lang.libraries import is_traced
from netsor.lang.ops import IndexMap
from netsor.lang.program import Input, LinComb, Moment, Normal, Scalar
from netsor.lang.sampling import input_mean
from netsor.lang.show import shown_short
from netsor.lang.types import C
from netsor.limits.finite import sound_range
from netsor.limits.recursion.forms import replace_exprs
from netsor.limits.recursion.pairs import Pair, PerInput
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.tape.traced import array_namespace

__all__ = ["Variance", "constant", "mean", "scalar", "values_of"]

OWN = Pair(True, tied=True)
PLAIN = frozenset(ARITHMETIC.values())


def constant(r: Recorder, expr: Expr) -> Asking:
    """The limit of an expression of constants; at the means of its G-vars if it has any."""
    if isinstance(expr, Const):
        return PerInput(r.xp.full((1, 1), expr.value), 0)
    blocks = yield from values_of(r, refs(expr))
    if not blocks:
        value = evaluate(expr, {})
        array = np.asarray(value.array, float)
        return PerInput(r.xp.asarray(array[None, None, ...]), array.ndim)
    rank = r.rank(expr)
    if all(node.op in PLAIN or isinstance(node.op, IndexMap) for node in _nodes(expr)):
        return PerInput(evaluate(expr, blocks).array, rank)
    return PerInput(_as_one_step(r, expr, blocks), rank)


def values_of(r: Recorder, names: list[str]) -> Asking:
    """Data, the limits of C-vars and the means of G-vars by name."""
    found = {}
    for name in names:
        if name in r.data:
            value = r.data[name]
        elif isinstance(r.program.types[name], C):
            value = yield scalar, name
        else:
            value = yield mean, Ref(name)
        found[name] = value.block
    return found


def _nodes(expr: Expr) -> list[Apply]:
    return [node for node in subtrees(expr) if isinstance(node, Apply)]


def _as_one_step(r: Recorder, expr: Expr, blocks: Mapping[str, Block]) -> Any:
    """Functions that are not plain arithmetic see values, so they wait for them."""

    def run(*arrays: Any) -> Any:
        parts = zip(blocks.items(), arrays, strict=True)
        return evaluate(expr, {name: Block(array, b.rank, b.vector) for (name, b), array in parts}).array

    ones = {name: Block(np.ones(b.array.shape), b.rank) for name, b in blocks.items()}
    with np.errstate(all="ignore"):
        shape = evaluate(expr, ones).array.shape
    body = replace_exprs(expr, {Ref(n): Ref(f"@{k}") for k, n in enumerate(blocks)})
    kind = ("expression", body, tuple((b.rank, b.vector) for b in blocks.values()))
    return r.tape.call(run, tuple(b.array for b in blocks.values()), shape, kind=kind)


def scalar(r: Recorder, name: str) -> Asking:
    """The limit of a C-var."""
    source = r.program.definitions[name]
    assert isinstance(source, Moment | Scalar)
    value = yield r.rules.first if isinstance(source, Moment) else constant, source.expr
    array = r.tape.call(_Finite(name), (value.array,), value.array.shape, kind="finite")
    return PerInput(array, value.rank)


class Variance:
    """Var of a form: 0 where rounding made it negative, refused where products of two are no numbers."""

    def __init__(self, form: Expr, padded: bool) -> None:
        self.form, self.padded = form, padded

    def __call__(self, q: Any) -> Any:
        least, most = sound_range(str(q.dtype).rpartition(".")[2])
        if isinstance(q, np.ndarray) and q.size and least <= q.min() and q.max() <= most:
            return q
        xp = array_namespace(q)
        q = xp.where(q <= 0, xp.zeros_like(q), q)
        sound = (q == 0) | ((q >= least) & (q <= most))
        if self.padded or is_traced(q):  # nobody may read it: in the end what is read is finite
            return xp.where(sound, q, xp.full_like(q, float("nan")))
        if bool(xp.all(sound)):
            return q
        raise LimitError(
            f"the variance of `{shown_short(self.form, 1000)}` is not finite or out of range on these inputs",
            remedy=f"Variances are 0 or between {least:.0e} and {most:.0e}: scale the inputs. One that is "
            "not finite comes from a nonlinearity with a pole, or one that grows too fast.",
        )


class _Finite:
    """The value of a C-var, unless it has none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Any) -> Any:
        xp = array_namespace(value)
        if is_traced(value) or bool(xp.all(xp.isfinite(value))):
            return value
        raise LimitError(
            f"the C-var `{self.name}` has no limit on these inputs: it is not finite",
            remedy="Most often a variance that it divides by is 0, as in the layernorm of a vector that is "
            "0. Add an eps or a bias, or leave out the input.",
        )


def mean(r: Recorder, form: Expr) -> Asking:
    """E of an affine expression."""
    if r.forms.is_centred(form) and not isinstance(form, Ref):
        return PerInput(r.zero, 0).widened(r.rank(form))
    if not isinstance(form, Ref) or r.forms.is_constant(form):
        return (yield constant, form)
    source, index = r.program.definitions[form.name], r.ref_index(form.name)
    match source:
        case LinComb():
            return (yield mean, source.expr)
        case Input(law=Normal()):
            return PerInput(r.xp.asarray(input_mean(source).reshape((1, 1, *index))), len(index))
    return PerInput(r.xp.zeros((1, 1, *index)), len(index))
