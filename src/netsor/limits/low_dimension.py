"""Expectations over up to four dependent variables: orthant probabilities for erf gates, else quadrature.

The variables of a product of atoms are the forms of its left atoms and those of its right atoms. Each entry
of the block has its own mean and covariance of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.expect.quadrature.planes import Planes
from netsor.expect.quadrature.space import gaussian_expectation
from netsor.lang import functions as fn
from netsor.lang.analysis import is_smooth
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs
from netsor.lang.libraries import is_traced
from netsor.limits.fit import Fit
from netsor.limits.forms import HOLE, Atom, replace_exprs
from netsor.limits.pairs import Pair
from netsor.limits.traced import tape_of

if TYPE_CHECKING:
    from netsor.limits.engine import Engine
    from netsor.limits.expectation import Expectations

__all__ = ["few_variables"]

Array = Any
Variable = tuple[int, Expr]  # left (0) or right (1), and the form
Gate = tuple[float, float, float]
MOST_ENTRIES = {1: 2**20, 2: 2**16, 3: 2**12, 4: 2**6}  # beyond, sampling all of them at once is faster
WORST = 1e-6  # relative error of a quadrature; beyond, the integrand is left to sampling
TOL, POINTS = 1e-8, 2**18  # asked for, and allowed per entry


def few_variables(expectations: Expectations, left: list[Atom], right: list[Atom], fit: Fit) -> Array | None:
    """E of the product of all atoms by an exact method, or None if they have too many variables."""
    engine = expectations.engine
    sides = [(0, form) for form in _forms(left)] + [(1, form) for form in _forms(right)]
    atoms = left + right
    if len(sides) > 4 or not all(_is_plain(engine, atom) for atom in atoms):
        return None
    gates = [gate for gate in map(_gate, atoms) if gate]
    if len(gates) == len(sides) == len(atoms) and all(expectations.is_centred(form) for _, form in sides):
        return _over(expectations, sides, fit, _orthants(expectations, atoms, gates))
    if _entries(engine, left, right, fit.tie) > MOST_ENTRIES[len(sides)]:
        return None
    return _over(expectations, sides, fit, _quadrature(expectations, left, right))


def _entries(engine: Engine, left: list[Atom], right: list[Atom], tie: bool) -> int:
    """The number of entries of all blocks of this product."""
    inputs, index = [], []
    for side in (left, right):
        inputs.append(max((engine.inputs_of(atom.expr) for atom in side), default=1))
        index.append(max((prod(engine.index(atom.expr)) for atom in side), default=1))
    return prod(inputs) * (max(index) if tie else prod(index))


def _forms(atoms: list[Atom]) -> list[Expr]:
    return list(dict.fromkeys(form for atom in atoms for form in atom.forms))


def _is_plain(engine: Engine, atom: Atom) -> bool:
    """A function of its forms alone that acts entry by entry."""
    body = replace_exprs(atom.expr, dict.fromkeys(atom.forms, HOLE))
    return set(refs(body)) == {HOLE.name} and not engine.forms.mixes(atom.expr, atom.forms)


def _over(expectations: Expectations, sides: list[Variable], fit: Fit, integral: Callable[..., Any]) -> Array:
    """The integral at the means and covariances of the variables, entry by entry."""
    engine, arrays, places = expectations.engine, [], []
    for i, (side, form) in enumerate(sides):
        arrays.append(fit.one(side, engine.mean(form), len(engine.index(form))))
        places.append((i,))
        for j in range(i + 1):
            cov = _covariance(expectations, sides[i], sides[j], fit)
            if cov is not None:
                arrays.append(cov)
                places.append((i, j))
    shape = np.broadcast_shapes(*(a.shape for a in arrays))

    def total(*values: Array) -> Array:
        d = len(sides)
        mean, cov = np.zeros((*shape, d)), np.zeros((*shape, d, d))
        for place, value in zip(places, values, strict=True):
            (mean if len(place) == 1 else cov)[(..., *place)] = np.asarray(value)
            if len(place) == 2:
                cov[(..., *place[::-1])] = np.asarray(value)
        value, error = integral(mean, cov)
        return value + expectations.nudge * error

    if is_traced(*arrays):
        return None
    expectations.record.inexact = True
    tape = tape_of(*arrays)
    return tape.call(total, tuple(arrays), shape) if tape else engine.xp.asarray(total(*arrays))


def _covariance(expectations: Expectations, first: Variable, second: Variable, fit: Fit) -> Array | None:
    engine, (side, e), (other, f) = expectations.engine, first, second
    ranks = (len(engine.index(e)), len(engine.index(f)))
    if side == other:
        cov = engine.variance_of(e) if e == f else engine.cov(e, f, Pair(True), True)
        return None if cov is None else fit.one(side, cov, max(ranks))
    if side == 1:
        return _covariance(expectations, second, first, fit)
    cov = engine.cov(e, f, fit.pair, fit.tie)
    return None if cov is None else fit.both(cov, *ranks)


def _quadrature(expectations: Expectations, left: list[Atom], right: list[Atom]) -> Callable[..., Any]:
    atoms, bodies, order = left + right, [], []
    for side, group in enumerate((left, right)):
        names: dict[Expr, Expr] = {form: Ref(f"@{side}{k}") for k, form in enumerate(_forms(group))}
        bodies += [replace_exprs(atom.expr, names) for atom in group]
        order += [f"@{side}{k}" for k in range(len(names))]

    planes = Planes.none(len(order)) if all(map(is_smooth, bodies)) else None

    def integrand(z: np.ndarray) -> np.ndarray:
        values = {name: Block(z[k], 0, True) for k, name in enumerate(order)}
        with np.errstate(all="ignore"):
            return reduce(mul, (evaluate(body, values).array for body in bodies))

    def integral(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, error = gaussian_expectation(integrand, mean, cov, tol=TOL, max_points=POINTS, planes=planes)
        worst = float(error.max(initial=0.0))
        expectations.record.note(expectations.names(atoms), f"{len(order)}-D quadrature", worst)
        if np.isfinite(value).all() and worst > WORST * np.abs(value).max(initial=0.0):
            raise expectations.needs_sampling(atoms)
        return value, error

    return integral


def _orthants(expectations: Expectations, atoms: list[Atom], gates: list[Gate]) -> Callable[..., Any]:
    from netsor.expect.orthants import erf_gates

    signs = np.array([sign for _, _, sign in gates])

    def integral(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, error = np.zeros(cov.shape[:-2]), np.zeros(cov.shape[:-2])
        turned = cov * np.outer(signs, signs)
        for chosen in product((False, True), repeat=len(gates)):
            weight = prod(b if taken else a for taken, (a, b, _) in zip(chosen, gates, strict=True))
            which = np.flatnonzero(chosen)
            if weight and len(which):
                part = erf_gates(turned[(..., *np.ix_(which, which))])
                value, error = value + weight * part[0], error + abs(weight) * part[1]
            else:
                value = value + weight
        worst = float(error.max(initial=0.0))
        expectations.record.note(expectations.names(atoms), "orthant probability", worst)
        return value, error

    return integral


def _gate(atom: Atom) -> Gate | None:
    """a, b, s with atom = a + b gate(s x), where gate(x) = (1 + erf(x)) / 2."""
    match atom.body:
        case Apply(op, (hole,), _, None) if op is fn.erf_gate and hole == HOLE:
            return 0.0, 1.0, 1.0
        case Apply(op, (hole,), _, None) if op is fn.erf and hole == HOLE:
            return -1.0, 2.0, 1.0
        case Apply(minus, (Const(1.0), Apply(op, (hole,), _, None))) if minus is fn.sub and op is fn.erf_gate:
            return (0.0, 1.0, -1.0) if hole == HOLE else None
    return None
