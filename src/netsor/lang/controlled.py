"""Is a nonlinearity controlled? (|phi(x)| <= exp(C |x|^(2 - eps) + c), the paper's Definition "controlled".)

No program can decide this for every function, so we measure: on rays from the origin the exponent p in
log |phi(r)| ~ r^p must stay below 2. Only an exponential (also as a power), a quotient or a user's function
can break the bound; all other functions of the language are known to grow like polynomials (`Facts.growth`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from netsor.lang import ops
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees, transform
from netsor.lang.facts import Growth
from netsor.lang.program import LinComb, Moment, Nonlin, Program, Scalar
from netsor.lang.types import H, Type

__all__ = ["Unwinder", "growth_problem"]

RADII = 2.0 ** np.arange(0, 20, 1 / 16)
RAYS = 8
Function = Nonlin | Moment


class Unwinder:
    """Expressions as functions of G-vars and C-vars only (the paper's unwound nonlinearity).

    kinds  the statements whose definitions are put in the place of their names
    """

    def __init__(self, program: Program, kinds: tuple[type, ...] = (Nonlin,)) -> None:
        self.definitions, self.kinds = program.definitions, kinds
        self.known: dict[str, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        path = self._missing(expr)
        while path:
            source = self.definitions[path[-1]]
            assert isinstance(source, LinComb | Nonlin | Scalar)
            first = self._missing(source.expr)
            if first:
                path += first
            else:
                self.known[path.pop()] = self._replace(source.expr)
        return self._replace(expr)

    def _missing(self, expr: Expr) -> list[str]:
        """The names to be unwound before an expression can be."""
        return [
            name
            for name in refs(expr)
            if name not in self.known and isinstance(self.definitions.get(name), self.kinds)
        ]

    def _replace(self, expr: Expr) -> Expr:
        return transform(expr, lambda ref: self.known.get(ref.name, ref))


def growth_problem(program: Program, types: Mapping[str, Type]) -> tuple[Function, str] | None:
    """The first nonlinearity that grows too fast, and what is wrong with it in words; or None.

    Nonlin statements are followed along the rays one after the other, each from the values of the ones
    before, and only those are that a function which may explode depends on, or that depend on it.
    """
    steps = _suspects(program, types)
    last = {name: i for i, (s, _) in enumerate(steps) for name in refs(s.expr)}
    rng = np.random.default_rng(0)
    values: dict[str, Block] = {}
    for i, (s, steep) in enumerate(steps):
        names = refs(s.expr)
        for name in names:
            if name not in values:
                values[name] = _ray_values(name, program, types, rng)
        with np.errstate(all="ignore"):
            out = evaluate(s.expr, values)
        if steep:
            rows = np.broadcast_to(out.array, (*out.array.shape[:-1], RAYS * len(RADII)))
            order = max((_growth_order(row) for row in rows.reshape(-1, len(RADII))), default=0.0)
            if order > 1.99:
                return s, f"On a ray from the origin log |phi(r)| grows like r^{order:.2f}."
        if isinstance(s, Nonlin):
            values[s.name] = out
        for name in names:
            if last[name] == i:
                del values[name]
    return None


def _suspects(program: Program, types: Mapping[str, Type]) -> list[tuple[Function, bool]]:
    """The functions to follow along the rays, and whether each contains something that may explode."""
    traits: dict[Expr, tuple[bool, bool]] = {}  # whether it has a vector, whether it may explode
    steep: set[str] = set()
    for s in program.statements:
        if isinstance(s, Nonlin | Moment):
            for node in subtrees(s.expr, traits):
                traits[node] = _traits(node, traits, types, steep)
            if traits[s.expr][1]:
                steep.add(s.name)
    needed: set[str] = set()
    found: list[tuple[Function, bool]] = []
    for s in reversed(program.statements if steep else ()):
        if isinstance(s, Nonlin | Moment) and (s.name in steep or s.name in needed):
            found.append((s, s.name in steep))
            needed.update(refs(s.expr))
    return found[::-1]


def _traits(
    node: Expr, traits: Mapping[Expr, tuple[bool, bool]], types: Mapping[str, Type], steep: set[str]
) -> tuple[bool, bool]:
    """Whether a node has a vector, and whether it may grow like an exponential."""
    if isinstance(node, Ref):
        vector = isinstance(types.get(node.name), H)
        return vector, vector and node.name in steep
    if not isinstance(node, Apply):
        return False, False
    parts = [traits[a] for a in node.args]
    own = isinstance(node.op, ops.Function) and node.op.about(node.options).growth >= Growth.EXPONENTIAL
    if node.op.name in ("pow", "div"):
        own = len(parts) > 1 and parts[1][0]
    return any(vector for vector, _ in parts), own or any(part for _, part in parts)


def _ray_values(name: str, program: Program, types: Mapping[str, Type], rng: np.random.Generator) -> Block:
    """Values of a variable along all rays; the first two are the diagonal and its opposite."""
    if name in program.data:
        return Block(program.data[name], program.data[name].ndim)
    type_ = types[name]
    index = type_.index
    if not isinstance(type_, H):
        return Block(np.ones(index), len(index))
    slopes = rng.standard_normal((*index, RAYS))
    slopes[..., :2] = 1.0, -1.0
    return Block((slopes[..., None] * RADII).reshape(*index, -1), len(index), True)


def _growth_order(values: np.ndarray) -> float:
    """The exponent p in log |phi(r)| ~ r^p at the largest radii where phi is finite."""
    with np.errstate(all="ignore"):
        logs = np.log(np.abs(values))
    good = np.isfinite(logs) & (logs > 100)
    if good.sum() < 3:
        return 0.0
    r, y = RADII[good][-5:], np.log(logs[good][-5:])
    return float((y[-1] - y[0]) / np.log(r[-1] / r[0]))
