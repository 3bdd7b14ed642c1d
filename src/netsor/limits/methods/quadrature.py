"""Quadrature for functions of up to four dependent variables, of a few inputs.

Three or four variables, at most two of them on either side, are taken by Hermite series in the plane; what
these leave, and all others, by tensor rules with a budget of points; and what does not settle then is
sampled, entry by entry. Functions of three or four variables with kinks on curves are left to the next
method: no rule settles there. Equal entries are integrated once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import mul
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.hermite.planar import PlanarFunction, planar_expectation
from netsor.expect.points.normal import normal_points
from netsor.expect.quadrature.kinks import find_kinks
from netsor.expect.quadrature.planes import Planes
from netsor.expect.quadrature.space import gaussian_expectation
from netsor.lang import functions as fn
from netsor.lang.analysis import about, has_user_function, is_smooth_node
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees
from netsor.lang.ops import Function
from netsor.limits.methods.component import Component
from netsor.limits.methods.few_variables import Variable, entries, is_plain, over_entries
from netsor.limits.recursion.forms import Atom, replace_exprs
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.threads import one_blas_thread

__all__ = ["Quadrature"]

MOST_ENTRIES = {1: 2**20, 2: 2**16, 3: 2**12, 4: 2**6}  # beyond, sampling all of them at once is faster
WORST = 1e-6  # relative error of an entry that is not sampled
SAMPLED, REPEATS = 2**22, 16  # evaluations in a repeat, and repeats
HEAVIEST = 0.01  # of a sum over samples: what one of them may carry
STUDENT = 3.3  # standard errors of so many repeats that one in 200 is beyond
TOL, POINTS = 1e-8, 2**18  # asked for, and allowed per entry
BUDGET, FEWEST = 2**25, 2**13  # allowed for all entries, if more than so many remain for each
FEW = 2**15  # allowed where a series was not enough: for those of lower rank
BY_SAMPLES = 3e-5  # of sqrt(E[f^2] E[g^2]): about what samples are off by
MOST_SEEN = 2**14  # entries whose values are remembered


class Quadrature:
    """Series and rules in independent coordinates; entries where they do not settle are sampled alone."""

    name = "quadrature"
    cost = 2**14
    otherwise = "scrambled Sobol points for the entries where it does not settle"

    def applies(self, r: Recorder, c: Component) -> bool:
        count = len(set(_variables(r, c).values()))
        if r.traced or count > 4 or not all(is_plain(r, atom) for atom in c.atoms):
            return False
        if count > 2 and any(map(_has_curved_kinks, c.atoms)):
            return False
        return entries(r, c) <= MOST_ENTRIES[count]

    def value(self, r: Recorder, c: Component) -> Asking:
        r.notes.diagonal = True
        known = _variables(r, c)
        variables = tuple(dict.fromkeys(known.values()))
        product = Product(c.what, tuple(_side(r, c, k, known, variables) for k in (0, 1)))
        seen: dict[bytes, Any] = {}

        def integral(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            means, covs = mean.reshape(-1, *mean.shape[-1:]), cov.reshape(-1, *cov.shape[-2:])
            value, error = _once(product, means, covs, seen)
            return value.reshape(mean.shape[:-1]), error.reshape(mean.shape[:-1])

        return (yield from over_entries(r, c, variables, self.name, integral))


@dataclass(frozen=True)
class Side:
    """The product of the atoms of one side, as a function of its own variables @0, @1, ..."""

    bodies: tuple[Expr, ...]
    columns: tuple[int, ...]  # which these are of all variables
    plane: PlanarFunction  # the same function, with its kinks

    def __call__(self, z: np.ndarray) -> np.ndarray:
        return _product(self.bodies, z[list(self.columns)])


@dataclass(frozen=True)
class Product:
    """The product of two sides, a function of z (d, entries, points)."""

    what: str
    sides: tuple[Side, ...]

    def __call__(self, z: np.ndarray) -> np.ndarray:
        return self.sides[0](z) * self.sides[1](z)

    def expectation(self, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The value and the error of entries with mean (entries, d) and cov (entries, d, d).

        A series takes three or four variables of two sides; what it leaves is integrated, and then sampled.
        """
        value, error, size = np.zeros(len(mean)), np.full(len(mean), np.inf), np.zeros(len(mean))
        tried = mean.shape[1] > 2 and max(len(side.columns) for side in self.sides) <= 2
        if tried:
            value, error, size = self._series(mean, cov)
        left = np.flatnonzero(~(error <= WORST * size))
        if not len(left):
            return value, error
        known = tried or all(side.plane.known for side in self.sides)
        planes = self._planes(mean.shape[1]) if known else None
        limit = FEW if tried else int(np.clip(BUDGET // len(left), FEWEST, POINTS))
        found = gaussian_expectation(self, mean[left], cov[left], tol=TOL, max_points=limit, planes=planes)
        better = ~(error[left] < found[1])
        for old, new in zip((value, error), found, strict=True):
            old[left] = np.where(better, new, old[left])
        return _sampled_where_unsettled(self.what, self, mean, cov, value, error, BY_SAMPLES * size)

    def _series(self, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """With a constant for each variable that a side has less than two."""
        places = [k for side in self.sides for k in (*side.columns, -1, -1)[:2]]
        mean, cov = np.pad(mean, ((0, 0), (0, 1))), np.pad(cov, ((0, 0), (0, 1), (0, 1)))
        f, g = (side.plane for side in self.sides)
        with one_blas_thread():
            return planar_expectation(f, g, mean[:, places], cov[:, places][:, :, places], TOL)

    def _planes(self, d: int) -> Planes:
        """Those of the sides, as planes of all variables."""
        found = [side.plane.planes for side in self.sides]
        normals = [np.zeros((len(own), d)) for own in found]
        for side, own, n in zip(self.sides, found, normals, strict=True):
            n[:, side.columns] = own.normals[:, : len(side.columns)]
        offsets, slack = (
            np.concatenate([getattr(own, name) for own in found]) for name in ("offsets", "slack")
        )
        return Planes(np.concatenate(normals), offsets, slack, any(own.curved for own in found))


def _once(product: Product, mean: np.ndarray, cov: np.ndarray, seen: dict[bytes, Any]) -> Any:
    """The values and errors of entries, of equal ones and of those seen before without integrals."""
    if len(mean) > MOST_SEEN:
        return product.expectation(mean, cov)
    keys = [m.tobytes() + C.tobytes() for m, C in zip(mean, cov, strict=True)]
    known = {key: seen.get(key) for key in keys}
    new = {key: i for i, key in enumerate(keys) if known[key] is None}
    if new:
        at = list(new.values())
        known.update(zip(new, zip(*product.expectation(mean[at], cov[at]), strict=True), strict=True))
        if len(seen) + len(new) > MOST_SEEN:
            seen.clear()
        seen.update((key, known[key]) for key in new)
    return np.array([known[key] for key in keys]).reshape(-1, 2).T


def _side(
    r: Recorder, c: Component, side: int, known: Mapping[Variable, Variable], variables: Sequence[Variable]
) -> Side:
    place = {form: variables.index(x) for (s, form), x in known.items() if s == side}
    columns = tuple(sorted(set(place.values())))
    own: dict[Expr, Expr] = {form: Ref(f"@{columns.index(k)}") for form, k in place.items()}
    bodies = tuple(replace_exprs(atom.expr, own) for atom in (c.left, c.right)[side])
    key = Side, bodies
    if key not in r.facts:
        r.facts[key] = PlanarFunction(partial(_product, bodies), _known_planes(bodies, max(2, len(columns))))
    return Side(bodies, columns, r.facts[key])


def _has_curved_kinks(atom: Atom) -> bool:
    """Whether a function with kinks has several variables that it does not meet in straight pieces."""
    names: dict[Expr, Expr] = {form: Ref(f"@{k}") for k, form in enumerate(atom.forms)}
    nodes = [
        n for n in subtrees(replace_exprs(atom.expr, names)) if isinstance(n, Apply) and len(refs(n)) > 1
    ]
    kinked = [n for n in nodes if not is_smooth_node(n) and not has_user_function(n)]
    seen: set[Expr] = set()
    for n in kinked:
        parts = list(subtrees(n, seen))
        if not all(map(_is_straight, parts)):
            return True
        seen.update(parts)
    return False


def _is_straight(node: Expr) -> bool:
    """Whether the function of a node is linear between kinks."""
    match node:
        case Apply(op, args) if op is fn.mul or op is fn.div:
            return sum(bool(refs(arg)) for arg in args) < 2
        case Apply(op) if op in (fn.add, fn.sub, fn.neg, fn.maximum, fn.minimum):
            return True
        case Apply(op, (_,)) if isinstance(op, Function):
            pieces = op.about(node.options).pieces
            return pieces is not None and max(map(len, pieces.pieces)) <= 2
    return not isinstance(node, Apply)


def _known_planes(bodies: Sequence[Expr], d: int) -> Planes | None:
    """The planes with kinks, where these are all kinks of functions of one variable; None if not."""
    found: dict[tuple[int, float], None] = {}
    nodes, seen = list(bodies), set(bodies)
    while nodes:
        node = nodes.pop()
        names = refs(node)
        if len(names) == 1 and not has_user_function(node):
            found |= dict.fromkeys((int(names[0][1:]), kink) for kink in _kinks(node, names[0]))
        elif isinstance(node, Apply) and names:
            if not is_smooth_node(node):
                return None
            nodes += [arg for arg in node.args if arg not in seen]
            seen.update(node.args)
    offsets = np.array([kink for _, kink in found])
    return Planes(np.eye(d)[[k for k, _ in found]].reshape(-1, d), offsets, 0 * offsets)


def _kinks(expr: Expr, name: str) -> tuple[float, ...]:
    """Where a function of one variable is not smooth."""
    known = about(expr, name).kinks
    return find_kinks(lambda x: evaluate(expr, {name: Block(x, 0, True)}).array) if known is None else known


def _product(bodies: Sequence[Expr], z: np.ndarray) -> np.ndarray:
    values = {f"@{k}": Block(z[k], 0, True) for k in range(len(z))}
    with np.errstate(all="ignore"):
        return reduce(mul, (evaluate(body, values).array for body in bodies), np.ones(z.shape[1:]))


def _variables(r: Recorder, c: Component) -> dict[Variable, Variable]:
    """The variables, and which of them each is: of an input with itself the sides have the same ones."""

    def side_of(side: int, form: Expr) -> int:
        return 0 if c.pair.same and (c.pair.tied or not r.rank(form)) else side

    return {(side, form): (side_of(side, form), form) for side, form in c.variables}


def _sampled_where_unsettled(
    what: str,
    integrand: Any,
    mean: np.ndarray,
    cov: np.ndarray,
    value: np.ndarray,
    error: np.ndarray,
    least: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Values and errors, better ones for the entries whose error is large, and more than `least`.

    A few points that carry the sum, or none that differ from 0, say nothing about how far off it is; if then
    the error of the quadrature is larger than all values, there may be no such moment, as of a / b.
    """
    rough = np.isfinite(value) & (error > np.maximum(least, WORST * np.abs(value).max(initial=0.0)))
    count, d = int(rough.sum()), mean.shape[-1]
    if not count:
        return value, error
    size = int(np.clip(2 ** int(np.log2(SAMPLED / count)), 2**8, 2**14))
    variances, axes = np.linalg.eigh(cov[rough])
    factor = axes * np.sqrt(np.maximum(variances, 0.0))[:, None, :]
    means, sizes, largest = [], np.zeros(count), np.zeros(count)
    for k in range(REPEATS):
        noise = normal_points(d, size, (0, k))
        found = integrand(mean[rough].T[..., None] + np.einsum("nij,jp->inp", factor, noise))
        means.append(found.mean(-1))
        sizes += np.abs(found).sum(-1)
        largest = np.maximum(largest, np.abs(found).max(-1))
    sampled = np.mean(means, axis=0)
    spread = STUDENT * np.std(means, axis=0, ddof=1) / np.sqrt(REPEATS)
    trusted = (sizes > 0) & (largest <= HEAVIEST * sizes)
    better = trusted & (spread < error[rough])
    error[rough] = np.where(
        better, spread, np.maximum(error[rough], np.where(trusted, 0.0, np.abs(sampled - value[rough])))
    )
    value[rough] = np.where(better, sampled, value[rough])
    if np.any(~trusted & (error[rough] > np.abs(value).max())):
        raise LimitError(
            f"too few points carry {what}: a rare event, or a heavy tail",
            remedy="Make the event more frequent, or the function grow more slowly: where E[f^2] is infinite "
            "there is no limit.",
        )
    return value, error
