"""Is a nonlinearity controlled? (|phi(x)| <= exp(C |x|^(2 - eps) + c), the paper's Definition "controlled".)

No program can decide this for every function, so we measure: on rays from the origin the exponent p in
log |phi(r)| ~ r^p must stay below 2. Only an exponential (also as a power), a quotient or a user's function
can break the bound; all other functions of the language are known to grow like polynomials (`Facts.growth`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees, transform
from netsor.lang.facts import Growth
from netsor.lang.ops import Function
from netsor.lang.program import LinComb, Nonlin, Program
from netsor.lang.types import H, Type

__all__ = ["growth_problem", "unwound"]

RADII = 2.0 ** np.arange(0, 20, 1 / 16)
RAYS = 8


def unwound(expr: Expr, program: Program, *, through_lincomb: bool = False) -> Expr:
    """The expression as a function of G-vars and C-vars only (the paper's unwound nonlinearity).

    `through_lincomb` goes on through linear combinations, down to inputs and matrix products.
    """
    kinds = (Nonlin, LinComb) if through_lincomb else (Nonlin,)

    def leaf(ref: Ref) -> Expr:
        source = program.definitions.get(ref.name)
        return transform(source.expr, leaf) if isinstance(source, kinds) else ref

    return transform(expr, leaf)


def growth_problem(expr: Expr, program: Program, types: Mapping[str, Type]) -> str | None:
    """What is wrong with the growth of a nonlinearity, in words, or None."""
    body = unwound(expr, program)
    steep = (n for n in subtrees(body) if isinstance(n, Apply) and _may_explode(n, types))
    if next(steep, None) is None:
        return None
    rng = np.random.default_rng(0)
    for ray in range(RAYS):
        values = {name: _ray_value(name, program, types, ray, rng) for name in refs(body)}
        with np.errstate(all="ignore"):
            out = np.asarray(evaluate(body, values).array)
        order = max((_growth_order(row) for row in out.reshape(-1, len(RADII))), default=0.0)
        if order > 1.99:
            return f"On a ray from the origin log |phi(r)| grows like r^{order:.2f}."
    return None


def _may_explode(node: Apply, types: Mapping[str, Type]) -> bool:
    if node.op.name in ("pow", "div"):
        return any(isinstance(types.get(name), H) for name in refs(node.args[1]))
    if isinstance(node.op, Function):
        return node.op.about(node.options).growth >= Growth.EXPONENTIAL
    return getattr(node.op, "user", False)


def _ray_value(
    name: str, program: Program, types: Mapping[str, Type], ray: int, rng: np.random.Generator
) -> Block:
    """Values of a variable along one ray; the first two rays are the diagonal and its opposite."""
    if name in program.data:
        return Block(program.data[name], program.data[name].ndim)
    type_ = types[name]
    index = type_.index
    if not isinstance(type_, H):
        return Block(np.ones(index), len(index))
    slope = np.full(index, 1.0 - 2.0 * ray) if ray < 2 else rng.standard_normal(index)
    return Block(slope[..., None] * RADII, len(index), True)


def _growth_order(values: np.ndarray) -> float:
    """The exponent p in log |phi(r)| ~ r^p at the largest radii where phi is finite."""
    with np.errstate(all="ignore"):
        logs = np.log(np.abs(values))
    good = np.isfinite(logs) & (logs > 100)
    if good.sum() < 3:
        return 0.0
    r, y = RADII[good][-5:], np.log(logs[good][-5:])
    return float((y[-1] - y[0]) / np.log(r[-1] / r[0]))
