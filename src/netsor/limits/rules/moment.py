"""Moment: the limits of C-vars, and of expressions of them.

c = Moment(e)    converges to E[e]

scalar(c)     the limit of a C-var: E of a Moment, or a function of other C-vars
constant(e)   the value of an expression of numbers, data and C-vars
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.array_api import is_traced
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import ARITHMETIC
from netsor.lang.ops import IndexMap
from netsor.lang.program import Moment, Scalar
from netsor.lang.types import C
from netsor.limits.rules.atoms import replace_exprs
from netsor.limits.rules.pairs import Pair, PerInput
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.tape.traced import array_namespace

OWN = Pair(True, tied=True)


def constant(r: Recorder, expr: Expr) -> Asking:
    """Return the limit of an expression of constants; G-vars count with their means."""
    if isinstance(expr, Const):
        return PerInput(r.xp.full((1, 1), expr.value), 0)
    blocks = yield from values_of(r, refs(expr))
    if not blocks:
        value = evaluate(expr, {})
        array = np.asarray(value.array, float)
        return PerInput(r.xp.asarray(array[None, None, ...]), array.ndim)
    # Plain arithmetic can be recorded operation by operation, which lets equal steps merge.
    operations = [node.op for node in subtrees(expr) if isinstance(node, Apply)]
    is_plain = all(op in ARITHMETIC.values() or isinstance(op, IndexMap) for op in operations)
    array = evaluate(expr, blocks).array if is_plain else _as_one_step(r, expr, blocks)
    return PerInput(array, r.rank(expr))


def values_of(r: Recorder, names: list[str]) -> Asking:
    """Return data, limits of C-vars and means of G-vars, as blocks by name."""
    asked = {
        name: (scalar, name) if isinstance(r.program.types[name], C) else (r.rules.mean, Ref(name))
        for name in names
        if name not in r.program.data
    }
    limits = dict(zip(asked, (yield [*asked.values()]), strict=True))
    return {name: (limits[name] if name in limits else r.data[name]).block for name in names}


def _as_one_step(r: Recorder, expr: Expr, blocks: Mapping[str, Block]) -> Any:
    """Record an expression as one step: its functions need values, which a tape does not have yet."""

    def run(*arrays: Any) -> Any:
        parts = zip(blocks.items(), arrays, strict=True)
        return evaluate(expr, {name: Block(array, b.rank, b.vector) for (name, b), array in parts}).array

    # Only shapes matter here, so any values do.
    ones = {name: Block(np.ones(b.array.shape), b.rank) for name, b in blocks.items()}
    with np.errstate(all="ignore"):
        shape = evaluate(expr, ones).array.shape
    body = replace_exprs(expr, {Ref(n): Ref(f"@{k}") for k, n in enumerate(blocks)})
    kind = ("expression", body, tuple((b.rank, b.vector) for b in blocks.values()))
    return r.tape.call(run, tuple(b.array for b in blocks.values()), shape, kind=kind)


def scalar(r: Recorder, name: str) -> Asking:
    """Return the limit of a C-var."""
    source = r.program.definitions[name]
    assert isinstance(source, Moment | Scalar)
    value = yield r.rules.first if isinstance(source, Moment) else constant, source.expr
    array = r.tape.call(partial(_finite, name), (value.array,), value.array.shape, kind="finite")
    return PerInput(array, value.rank)


def _finite(name: str, value: Any) -> Any:
    """Pass on the value of a C-var, or raise LimitError if it is not finite."""
    xp = array_namespace(value)
    if is_traced(value) or bool(xp.all(xp.isfinite(value))):
        return value
    raise LimitError(
        f"the C-var `{name}` has no limit on these inputs: it is not finite",
        remedy="Most often a variance that it divides by is 0, as in the layernorm of a vector that is 0. "
        "Add an eps or a bias, or leave out the input.",
    )
