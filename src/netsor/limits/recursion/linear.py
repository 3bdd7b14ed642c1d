"""Sums, multiples and index maps: any bilinear quantity of such an expression, from those of its parts.

`rule` is the bilinear quantity: `cov` or `second`.
"""

from __future__ import annotations

from typing import Any

from netsor.lang.blocks import Block
from netsor.lang.expr import Apply, Expr
from netsor.lang.functions import add, div, neg, sub
from netsor.lang.index_maps import at, concat, contract, reshape, stack, take, transpose, windows
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair, mapped_left
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.recursion.values import constant

__all__ = ["SELECTIONS", "combined", "longer_first", "mapped", "selected"]

SELECTIONS = (at, take, reshape, transpose, windows)


def longer_first(left: frozenset[str], right: frozenset[str]) -> tuple[int, int]:
    """The sides, that with more independent parts first: a long sum then meets parts of itself only.

    So the second moment of a state that grows by a term per layer takes a few new products per layer, and not
    one for each pair of layers.
    """
    return (0, 1) if len(left) >= len(right) else (1, 0)


def combined(r: Recorder, side: int, e: Expr, f: Expr, pair: Pair, rule: Any) -> Asking:
    """Of (e, f) where e (side 0) or f (side 1) is a sum or a multiple."""
    x = (e, f)[side]
    assert isinstance(x, Apply)
    parts, factor = x.args, None
    if x.op not in (add, sub, neg):
        a, b = x.args
        vector, factor = (b, a) if r.forms.is_constant(a) else (a, b)
        parts = (vector,)
    blocks = []
    for part in parts:
        blocks.append((yield (rule, part, f, pair) if side == 0 else (rule, e, part, pair)))
    if factor is not None and blocks[0] is not None:
        scale = yield constant, factor
        by = pair.side(side, scale)
        blocks = [blocks[0] / by if x.op is div else blocks[0] * by]
    if x.op is neg or (x.op is sub and None in blocks):
        blocks[-1] = None if blocks[-1] is None else -blocks[-1]
    there = [block for block in blocks if block is not None]
    if not there:
        return None
    if len(there) == 1:
        return there[0].widened(r.rank(e), r.rank(f))
    one, two = there
    return (one - two if x.op is sub else one + two).widened(r.rank(e), r.rank(f))


def mapped(r: Recorder, e: Apply, f: Expr, pair: Pair, rule: Any) -> Asking:
    """Of (map(args), f), from those of (args, f); of the same members of two blocks, those members."""
    if pair.tied and isinstance(f, Apply) and _selects_alike(r, e, f):
        parts = []
        for a, b in zip(e.args, f.args, strict=True):
            parts.append((yield rule, a, b, pair))
        return selected(r, e, parts)
    vectors = e.args[1:] if e.op is contract else e.args
    blocks = []
    for a in vectors:
        blocks.append((yield rule, a, f, pair.free))
    if all(block is None for block in blocks):
        return None
    like = next(block for block in blocks if block is not None)
    for k, a in enumerate(vectors):
        if blocks[k] is None:
            blocks[k] = _zero(r, like, r.rank(a), r.rank(f))
    matrix = None
    if e.op is contract:
        value: PerInput = yield constant, e.args[0]
        matrix = Block(pair.left(value).array, value.rank)
    lefts = [r.index(a) for a in vectors]
    made = mapped_left(e.op, blocks, lefts, r.index(f), e.options, matrix)
    return made.diagonal if pair.tied else made


def _selects_alike(r: Recorder, e: Apply, f: Apply) -> bool:
    alike = e.op in (*SELECTIONS, stack, concat) and (e.op, e.attrs) == (f.op, f.attrs)
    return alike and [r.index(a) for a in e.args] == [r.index(a) for a in f.args]


def selected(r: Recorder, e: Apply, parts: list[PerPair | None]) -> PerPair | None:
    """A tied block of members of blocks, from those of all."""
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    blocks = []
    for a, part in zip(e.args, parts, strict=True):
        index = r.index(a)
        there = _zero(r, like, len(index), len(index)) if part is None else part
        blocks.append(Block(there.spread(index, index), len(index)))
    made = e.op.run(*blocks, **e.options)
    return PerPair(made.array, like.pair, made.rank, made.rank)


def _zero(r: Recorder, like: PerPair, left: int, right: int) -> PerPair:
    ranks = max(left, right) if like.pair.tied else left + right
    zeros = r.xp.zeros((1,) * (like.pair.batch + ranks), dtype=like.array.dtype)
    return PerPair(like.pair.shared(zeros), like.pair, left, right)
