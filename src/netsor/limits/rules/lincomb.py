"""LinComb: mean and covariance of affine combinations of G-vars, which are Gaussian.

    mu(sum_i a_i g_i) = sum_i a_i mu(g_i)
    Sigma(sum_i a_i g_i, sum_j b_j k_j) = sum_ij a_i b_j Sigma(g_i, k_j)

    cov(e, f)     Sigma of affine expressions of the left and of the right input; None is a structural zero
    variance(e)   Sigma(e, e) for every input
    mean(e)       mu of an affine expression

Index maps are linear too. `linear` holds for any bilinear quantity, so E[e f] uses it as well.
"""

from __future__ import annotations

import operator
from functools import partial, reduce
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.array_api import is_traced
from netsor.lang.blocks import Block
from netsor.lang.expr import Apply, Expr, Ref
from netsor.lang.functions import add, div, mul, neg, sub
from netsor.lang.index_maps import SELECTIONS, concat, contract, stack, windows
from netsor.lang.input_laws import input_mean
from netsor.lang.ops import IndexMap
from netsor.lang.program import Input, LinComb, Normal
from netsor.lang.show import shown_short
from netsor.limits.error_probes import non_negative
from netsor.limits.finite import sound_range
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.matmul import fused, fusion, leaf
from netsor.limits.rules.moment import OWN, constant
from netsor.limits.rules.pairs import Pair, PerInput, PerPair, mapped_left
from netsor.limits.rules.recorder import Asking, Recorder, zero
from netsor.limits.tape.traced import array_namespace


def cov(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Return Cov(e, f) of two affine expressions, sums and factors first; None is a structural zero."""
    forms = r.forms
    # Forms without a common matrix or input are independent.
    if not forms.sources(e) & forms.sources(f):
        return None
    e, f = written_out(forms, e), written_out(forms, f)
    side = sum_side(forms, e, f)
    if side is not None:
        return (yield from linear(r, side, e, f, pair, cov))
    both = fusion(forms, e, f)
    # Sums over independent matrices: without fusion, each map would expand to all pairs of matrices.
    if both is not None and isinstance(e, Apply):
        return (yield from fused(r, e, *both, pair))
    if isinstance(e, Ref) and isinstance(f, Ref):
        return (yield from leaf(r, e, f, pair))
    return (yield from linear(r, 0 if isinstance(e, Apply) else 1, e, f, pair, cov))


def sum_side(forms: Forms, e: Expr, f: Expr) -> int | None:
    """Return the side to take apart first: 0 or 1, a sum or a multiple; None if neither is one.

    Of two sums, take the one with more independent parts: a long sum then meets parts of itself only.
    """
    operations = (add, sub, neg, mul, div)  # of forms: one factor of a product is constant
    left, right = (isinstance(x, Apply) and x.op in operations for x in (e, f))
    if left and right:
        return int(len(forms.sources(f)) > len(forms.sources(e)))
    return 0 if left else 1 if right else None


def written_out(forms: Forms, e: Expr) -> Expr:
    """Return the expression of a LinComb, through all LinCombs that it names."""
    while isinstance(e, Ref) and isinstance(source := forms.program.definitions.get(e.name), LinComb):
        e = source.expr
    return e


def _dependent(forms: Forms, e: Expr, f: Expr) -> Expr:
    """Return the only part of a sum that depends on f, or the sum if there are several."""
    e = written_out(forms, e)
    while isinstance(e, Apply) and e.op is add:
        parts = [a for a in e.args if forms.sources(a) & forms.sources(f)]
        if len(parts) != 1:
            break
        e = written_out(forms, parts[0])
    return e


def variance(r: Recorder, form: Expr) -> Asking:
    """Return the variance of a form for every input: (repeats, inputs, index...)."""
    block, rank = (yield cov, form, form, OWN), r.rank(form)
    if block is None:
        return PerInput(r.xp.zeros((1, 1, *(1,) * rank)), rank)
    array = block.ranked(rank, rank)
    if r.forms.may_cancel:
        array = r.tape.bounded(array, non_negative)
    sound = r.tape.call(partial(_sound, form, r.padded), (array,), array.shape, kind="variance")
    return PerInput(sound, rank)


def _sound(form: Expr, padded: bool, q: Any) -> Any:
    """Set a variance to 0 if rounding made it negative; refuse it if its products over- or underflow."""
    least, most = sound_range(str(q.dtype).rpartition(".")[2])
    # The usual case takes two passes over memory, and no copy.
    if isinstance(q, np.ndarray) and q.size and least <= q.min() and q.max() <= most:
        return q
    xp = array_namespace(q)
    q = xp.where(q <= 0, xp.zeros_like(q), q)
    sound = (q == 0) | ((q >= least) & (q <= most))
    if padded or is_traced(q):  # padding is never read, and a traced value cannot raise an error
        return xp.where(sound, q, xp.full_like(q, float("nan")))
    if bool(xp.all(sound)):
        return q
    raise LimitError(
        f"the variance of `{shown_short(form, 1000)}` is not finite or out of range on these inputs",
        remedy=f"Variances are 0 or between {least:.0e} and {most:.0e}: scale the inputs. One that is "
        "not finite comes from a nonlinearity with a pole, or one that grows too fast.",
    )


def mean(r: Recorder, form: Expr) -> Asking:
    """Return E of an affine expression: (repeats, inputs, index...)."""
    if r.forms.is_centred(form) and not isinstance(form, Ref):
        return PerInput(r.zero, 0).widened(r.rank(form))
    if not isinstance(form, Ref) or r.forms.is_constant(form):
        return (yield constant, form)
    source, index = r.program.definitions[form.name], r.index(form)
    match source:
        case LinComb():
            return (yield mean, source.expr)
        case Input(law=Normal()):
            return PerInput(r.xp.asarray(input_mean(source).reshape((1, 1, *index))), len(index))
    return PerInput(r.xp.zeros((1, 1, *index)), len(index))


def linear(r: Recorder, side: int, e: Expr, f: Expr, pair: Pair, rule: Any) -> Asking:
    """Apply a bilinear `rule` to (e, f) where e (side 0) or f (side 1) is a linear operation."""
    head = (e, f)[side]
    assert isinstance(head, Apply)
    if not isinstance(head.op, IndexMap):
        return (yield from _combined(r, side, e, f, pair, rule))
    if side == 0:
        return (yield from _mapped(r, head, f, pair, rule))
    # An index map acts on the left index; swap the sides to apply it to the right one.
    turned = yield from _mapped(r, head, e, pair.flipped, rule)
    return None if turned is None else turned.swapped


def _combined(r: Recorder, side: int, e: Expr, f: Expr, pair: Pair, rule: Any) -> Asking:
    """Apply a bilinear `rule` to (e, f) where e (side 0) or f (side 1) is a sum or a multiple."""
    forms, head, other = r.forms, (e, f)[side], (e, f)[1 - side]
    assert isinstance(head, Apply)
    factors = [a for a in head.args if head.op in (mul, div) and forms.is_constant(a)]
    parts = [a for a in head.args if a not in factors]
    sides = [(part, other) for part in parts]
    if rule is cov:
        parts = [part for part in parts if forms.sources(part) & forms.sources(other)]  # the others have none
        sides = [(_dependent(forms, part, other), _dependent(forms, other, part)) for part in parts]
    asked = [(rule, *(two if side == 0 else two[::-1]), pair) for two in sides]
    answers = yield [*asked, *((constant, factor) for factor in factors)]
    blocks = answers[: len(parts)]
    if factors and blocks[0] is not None:
        by = pair.side(side, answers[-1])
        blocks = [blocks[0] / by if head.op is div else blocks[0] * by]
    is_negative = head.op in (neg, sub) and head.args[-1] in parts
    if is_negative and blocks[-1] is not None and (len(parts) == 1 or blocks[0] is None):
        blocks[-1] = -blocks[-1]
    there = [block for block in blocks if block is not None]
    combine = operator.sub if head.op is sub else operator.add
    return reduce(combine, there).widened(r.rank(e), r.rank(f)) if there else None


def _mapped(r: Recorder, e: Apply, f: Expr, pair: Pair, rule: Any) -> Asking:
    """Apply a bilinear `rule` to (map(args), f): map the blocks of (args, f), tied if both select alike."""
    alike, split = _selects_alike(r.forms, e, f, pair), int(e.op is contract)
    matrix, args = e.args[:split], e.args[split:]
    inner = pair if alike or not r.rank(f) else pair.free
    others = f.args if alike and isinstance(f, Apply) else (f,) * len(args)
    asked = [(rule, a, b, inner) for a, b in zip(args, others, strict=True)]
    answers = yield [*asked, *((constant, a) for a in matrix)]
    blocks, matrices = answers[: len(args)], [Block(pair.left(x).array, x.rank) for x in answers[len(args) :]]
    if all(block is None for block in blocks):
        return None
    # A map such as concat keeps zeros, so they need a shape.
    for k, (a, b) in enumerate(zip(args, others, strict=True)):
        if blocks[k] is None:
            blocks[k] = zero(r, inner, r.rank(a), r.rank(b))
    lefts = [r.index(a) for a in args]
    if alike:
        tied = zip(blocks, lefts, strict=True)
        image = e.op.run(*(Block(block.spread(x, x), len(x)) for block, x in tied), **e.options)
        return PerPair(image.array, pair, image.rank, image.rank)
    image = mapped_left(e.op, matrices, blocks, lefts, r.index(f), e.options)
    return image.diagonal if pair is not inner else image


def _selects_alike(forms: Forms, e: Apply, f: Expr, pair: Pair) -> bool:
    """Return whether both sides of a tied pair select the same entries of blocks of equal shapes."""
    if not (pair.tied and isinstance(f, Apply)) or (e.op, e.attrs) != (f.op, f.attrs):
        return False
    selects = e.op in (*SELECTIONS, windows, stack, concat)
    return selects and [forms.index(a) for a in e.args] == [forms.index(a) for a in f.args]
