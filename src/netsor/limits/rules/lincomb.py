"""LinComb: mean and covariance of affine combinations of G-vars, which are Gaussian.

    mu(sum_i a_i g_i) = sum_i a_i mu(g_i)
    Sigma(sum_i a_i g_i, sum_j b_j k_j) = sum_ij a_i b_j Sigma(g_i, k_j)

    cov(e, f)     Sigma of affine expressions of the left and of the right input; None is a structural zero
    variance(e)   Sigma(e, e) for every input
    mean(e)       mu of an affine expression

Index maps are linear too. `combined` and `mapped` hold for any bilinear quantity, so E[e f] uses them as
well.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.array_api import is_traced
from netsor.lang.blocks import Block
from netsor.lang.expr import Apply, Expr, Ref
from netsor.lang.functions import add, div, mul, neg, sub
from netsor.lang.index_maps import SELECTIONS, concat, contract, stack, windows
from netsor.lang.input_laws import input_mean
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
    """Return Cov(e, f) of two affine expressions; None is a structural zero.

    Expand sums and factors first, then index maps. Fuse sums over independent matrices before expanding them
    as index maps: their covariance is one sum, not two.
    """
    forms = r.forms
    # Forms without a common matrix or input are independent.
    if not forms.sources(e) & forms.sources(f):
        return None
    # Cov(e, f) of (x, x') is Cov(f, e) of (x', x): reuse a block that the recorder has.
    back = r.known(cov, f, e, pair.flipped)
    if back is not None:
        return back.swapped
    e, f = written_out(forms, e), written_out(forms, f)
    side = sum_side(forms, e, f)
    if side is not None:
        return (yield from combined(r, side, e, f, pair, cov))
    both = fusion(forms, e, f)
    # Sums over independent matrices: without fusion, each map would expand to all pairs of matrices.
    if both is not None:
        return (yield from fused(r, e, f, both, pair))
    if isinstance(e, Apply):
        return (yield from mapped(r, e, f, pair, cov))
    if isinstance(f, Apply):
        turned = yield cov, f, e, pair.flipped
        return None if turned is None else turned.swapped
    assert isinstance(e, Ref)
    assert isinstance(f, Ref)
    return (yield from leaf(r, e, f, pair))


def sum_side(forms: Forms, e: Expr, f: Expr) -> int | None:
    """Return the side to take apart first: 0 or 1, a sum or a multiple; None if neither is one.

    Of two sums, that is the one with more independent parts. A long sum then meets parts of itself only, so a
    state that grows by a term per layer takes a few new covariances per layer.
    """
    is_sum = [isinstance(x, Apply) and x.op in (add, sub, neg, mul, div) for x in (e, f)]
    if all(is_sum):
        return int(len(forms.sources(f)) > len(forms.sources(e)))
    return is_sum.index(True) if any(is_sum) else None


def written_out(forms: Forms, e: Expr) -> Expr:
    """Return the expression of a LinComb, through all LinCombs that it names."""
    while isinstance(e, Ref) and isinstance(source := forms.program.definitions.get(e.name), LinComb):
        e = source.expr
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


def combined(r: Recorder, side: int, e: Expr, f: Expr, pair: Pair, rule: Any) -> Asking:
    """Apply a bilinear `rule` to (e, f) where e (side 0) or f (side 1) is a sum or a multiple."""
    head = (e, f)[side]
    assert isinstance(head, Apply)
    parts, factor = summands(r.forms, head)
    blocks = []
    for part in parts:
        blocks.append((yield (rule, part, f, pair) if side == 0 else (rule, e, part, pair)))
    if factor is not None and blocks[0] is not None:
        scale = yield constant, factor
        by = pair.side(side, scale)
        blocks = [blocks[0] / by if head.op is div else blocks[0] * by]
    if head.op is neg or (head.op is sub and None in blocks):
        blocks[-1] = None if blocks[-1] is None else -blocks[-1]
    there = [block for block in blocks if block is not None]
    if not there:
        return None
    if len(there) == 1:
        return there[0].widened(r.rank(e), r.rank(f))
    one, two = there
    return (one - two if head.op is sub else one + two).widened(r.rank(e), r.rank(f))


def summands(forms: Forms, e: Apply) -> tuple[tuple[Expr, ...], Expr | None]:
    """Return the vectors of a sum or a multiple, and the constant that scales a single one."""
    if e.op in (add, sub, neg):
        return e.args, None
    a, b = e.args
    return ((b,), a) if forms.is_constant(a) else ((a,), b)


def mapped(r: Recorder, e: Apply, f: Expr, pair: Pair, rule: Any) -> Asking:
    """Apply a bilinear `rule` to (map(args), f), by mapping the blocks of (args, f).

    If a tied pair selects the same entries on both sides, select these entries of the tied blocks.
    """
    arguments, blocks = mapped_arguments(r.forms, e, f, pair), []
    for argument in arguments:
        blocks.append((yield rule, *argument))
    if all(block is None for block in blocks):
        return None
    # A map such as concat keeps zeros, so they need a shape.
    for k, (a, b, inner) in enumerate(arguments):
        if blocks[k] is None:
            blocks[k] = zero(r, inner, r.rank(a), r.rank(b))
    lefts = [r.index(a) for a, _, _ in arguments]
    if _selects_alike(r.forms, e, f, pair):
        tied = zip(blocks, lefts, strict=True)
        parts = [Block(block.spread(index, index), len(index)) for block, index in tied]
        image = e.op.run(*parts, **e.options)
        return PerPair(image.array, pair, image.rank, image.rank)
    matrix = None
    if e.op is contract:
        value: PerInput = yield constant, e.args[0]
        matrix = Block(pair.left(value).array, value.rank)
    image = mapped_left(e.op, blocks, lefts, r.index(f), e.options, matrix)
    return image.diagonal if pair.tied else image


def mapped_arguments(forms: Forms, e: Apply, f: Expr, pair: Pair) -> list[tuple[Expr, Expr, Pair]]:
    """Return the arguments of the map e, each with the expression and the pair for its block."""
    if _selects_alike(forms, e, f, pair):
        assert isinstance(f, Apply)
        return [(a, b, pair) for a, b in zip(e.args, f.args, strict=True)]
    return [(a, f, pair.free) for a in (e.args[1:] if e.op is contract else e.args)]


def _selects_alike(forms: Forms, e: Apply, f: Expr, pair: Pair) -> bool:
    """Return whether both sides of a tied pair select the same entries of blocks of equal shapes."""
    if not (pair.tied and isinstance(f, Apply)) or (e.op, e.attrs) != (f.op, f.attrs):
        return False
    selects = e.op in (*SELECTIONS, windows, stack, concat)
    return selects and [forms.index(a) for a in e.args] == [forms.index(a) for a in f.args]
