"""Check that nonlinearities are controlled: |phi(x)| <= exp(C |x|^(2 - eps) + c), as the paper requires.

This is undecidable in general, so we measure: on rays from the origin the exponent p in log |phi(r)| ~ r^p
must be below 2. Only exponentials, powers, quotients and users' functions can break the bound; all other
functions of the language grow at most polynomially (`Facts.growth`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from netsor.lang import ops
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, fold, refs, transform
from netsor.lang.facts import Growth
from netsor.lang.program import Assignment, Moment, Nonlin, Program
from netsor.lang.types import H, Type

# Radii up to 10^6. exp(x^2) overflows long before, but the slope uses only radii where phi is finite.
RADII = 2.0 ** np.arange(0, 20, 1 / 16)
RAYS = 8
Function = Nonlin | Moment


class Unwinder:
    """Replaces the variables that statements of these `kinds` define (the paper's unwound nonlinearity)."""

    def __init__(self, program: Program, kinds: tuple[type, ...] = (Nonlin,)) -> None:
        self.unwound: dict[str, Expr] = {}
        for s in program.statements:
            if isinstance(s, kinds) and isinstance(s, Assignment):
                self.unwound[s.name] = self(s.expr)

    def __call__(self, expr: Expr) -> Expr:
        return transform(expr, lambda ref: self.unwound.get(ref.name, ref))


def growth_problem(program: Program, types: Mapping[str, Type]) -> tuple[Function, str] | None:
    """Find the first nonlinearity that grows too fast along the rays; return it with the reason, or None."""
    steps = _suspects(program, types)
    last = {name: i for i, (s, _) in enumerate(steps) for name in refs(s.expr)}
    rng = np.random.default_rng(0)
    values: dict[str, Block] = {}
    for i, (s, steep) in enumerate(steps):
        names = refs(s.expr)
        values |= {name: _ray_values(name, program, types, rng) for name in names if name not in values}
        with np.errstate(all="ignore"):
            out = evaluate(s.expr, values)
        if steep:
            rows = np.broadcast_to(out.array, (*out.array.shape[:-1], RAYS * len(RADII)))
            order = max((_growth_order(row) for row in rows.reshape(-1, len(RADII))), default=0.0)
            if order > 1.99:  # the measured slope of a quadratic exponent is within 0.01 of 2
                return s, f"On a ray from the origin log |phi(r)| grows like r^{order:.2f}."
        if isinstance(s, Nonlin):
            values[s.name] = out
        for name in names:
            if last[name] == i:
                del values[name]
    return None


def _suspects(program: Program, types: Mapping[str, Type]) -> list[tuple[Function, bool]]:
    """The statements to evaluate along the rays, each with whether it may grow exponentially."""
    traits: dict[Expr, tuple[bool, bool]] = {}  # (contains a vector, may grow exponentially)
    steep: set[str] = set()

    def leaf(e: Ref | Const) -> tuple[bool, bool]:
        vector = isinstance(e, Ref) and isinstance(types.get(e.name), H)
        return vector, isinstance(e, Ref) and vector and e.name in steep

    def apply(e: Apply, parts: tuple[tuple[bool, bool], ...]) -> tuple[bool, bool]:
        explodes = isinstance(e.op, ops.Function) and e.op.about(e.options).growth >= Growth.EXPONENTIAL
        if e.op.name in ("pow", "div"):
            explodes = len(parts) > 1 and parts[1][0]
        return any(vector for vector, _ in parts), explodes or any(part for _, part in parts)

    for s in program.statements:
        if isinstance(s, Nonlin | Moment) and fold(s.expr, leaf, apply, traits)[1]:
            steep.add(s.name)
    needed = set(steep)
    suspects: list[tuple[Function, bool]] = []
    for s in reversed(program.statements if steep else ()):
        if isinstance(s, Nonlin | Moment) and s.name in needed:
            suspects.append((s, s.name in steep))
            needed.update(refs(s.expr))
    return suspects[::-1]


def _ray_values(name: str, program: Program, types: Mapping[str, Type], rng: np.random.Generator) -> Block:
    """Values of a variable along all rays, (index..., rays * radii); the first two rays are +-(1, ..., 1)."""
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
    """The exponent p in log |phi(r)| ~ r^p, from values (radii,) at the largest radii where phi is finite."""
    with np.errstate(all="ignore"):
        logs = np.log(np.abs(values))
    good = np.isfinite(logs) & (logs > 100)
    if good.sum() < 3:
        return 0.0
    r, y = RADII[good][-5:], np.log(logs[good][-5:])
    return float((y[-1] - y[0]) / np.log(r[-1] / r[0]))
