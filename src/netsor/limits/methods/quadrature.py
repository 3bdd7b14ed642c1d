"""Quadrature for products of functions of up to two variables on either side, for a small number of entries.

Each side becomes a series over independent coordinates in its plane. Entries that do not settle are sampled,
one entry at a time. No rule settles for functions with kinks on curves, so these go to the next method. Equal
entries are integrated once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from operator import mul
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.hermite.two_variables import PlanarFunction, planar_expectation
from netsor.expect.points.sobol import normal_points
from netsor.expect.quadrature.kink_lines import Lines
from netsor.expect.quadrature.kinks import find_kinks
from netsor.lang import functions as fn
from netsor.lang.analysis import about, has_user_function, is_smooth_node
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees
from netsor.lang.ops import Function
from netsor.limits.methods.component import Component, Method, Variable, over_entries
from netsor.limits.rules.atoms import HOLE, Atom, replace_exprs
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.setting import Setting
from netsor.threads import one_blas_thread

Array = np.ndarray


class Quadrature(Method):
    """Plane rules and Hermite series in independent coordinates; samples where these do not settle."""

    name = "quadrature"
    cost = 2**14
    otherwise = "scrambled Sobol points for the entries where it does not settle"

    def applies(self, x: Setting, c: Component) -> bool:
        if x.traced or max(Counter(side for side, _ in c.variables).values(), default=0) > 2:
            return False
        if not all(_is_plain(x.forms, atom) and not _has_curved_kinks(atom) for atom in c.atoms):
            return False
        # By the number of variables: with more entries than this, it is faster to sample all of them jointly.
        most = {1: 2**20, 2: 2**16, 3: 2**12, 4: 2**6}
        return _entries(x, c) <= most[len(set(_variables(x.forms, c).values()))]

    def value(self, r: Recorder, c: Component) -> Asking:
        # An input with itself has fewer variables than a pair, so its integral is more exact.
        r.notes.diagonal = True
        identified = _variables(r.forms, c)
        variables = tuple(dict.fromkeys(identified.values()))
        places = {variable: variables.index(x) for variable, x in identified.items()}
        (f, left), (g, right) = [_plane(r, c, side, places) for side in (0, 1)]
        product, cache = Product(c.what, f, g, left, right), {}

        def integral(mean: Array, cov: Array) -> tuple[Array, Array]:
            means, covs = mean.reshape(-1, *mean.shape[-1:]), cov.reshape(-1, *cov.shape[-2:])
            value, error = _once(product, means, covs, cache)
            return value.reshape(mean.shape[:-1]), error.reshape(mean.shape[:-1])

        return (yield from over_entries(r, c, variables, self.name, integral))


def _is_plain(forms: Forms, atom: Atom) -> bool:
    """Return whether an atom is a function of its forms alone that acts entry by entry."""
    body = replace_exprs(atom.expr, dict.fromkeys(atom.forms, HOLE))
    return set(refs(body)) == {HOLE.name} and not forms.mixes(atom.expr, atom.forms)


def _entries(x: Setting, c: Component) -> int:
    """Return the number of entries of the block of this product over all inputs."""
    sides = (c.left, c.right)
    inputs = [max((x.inputs_of(atom.expr) for atom in side), default=1) for side in sides]
    index = [max((prod(x.forms.index(atom.expr)) for atom in side), default=1) for side in sides]
    return (max(inputs) if c.pair.same else prod(inputs)) * (max(index) if c.pair.tied else prod(index))


@dataclass(frozen=True)
class Product:
    """The product of the atoms of both sides: f(z[left]) g(z[right]) for all variables z.

    `left` and `right` are the positions of two variables each; -1 stands for one that the function lacks.
    """

    what: str
    f: PlanarFunction
    g: PlanarFunction
    left: list[int]
    right: list[int]

    def __call__(self, z: Array) -> Array:
        """Return the product at z `(d, entries, points)`."""
        return self.f.fn(z[self.left]) * self.g.fn(z[self.right])

    def expectation(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Return values and errors `(entries,)` from mean `(entries, d)` and cov `(entries, d, d)`."""
        # Column -1 is the padding, a variable of mean and variance 0.
        means, covs = np.pad(mean, ((0, 0), (0, 1))), np.pad(cov, ((0, 0), (0, 1), (0, 1)))
        four = self.left + self.right
        law = means[:, four], covs[:, four][:, :, four]
        with one_blas_thread():
            value, error, size = planar_expectation(self.f, self.g, *law, tol=1e-8)
        by_samples = 3e-5 * size  # the typical error of samples: below it, sampling gains nothing
        return _sampled_where_unsettled(self.what, self, mean, cov, value, error, by_samples)


def _once(product: Product, mean: Array, cov: Array, cache: dict[bytes, Any]) -> Any:
    """Return values and errors; integrate equal entries, and those in the cache, only once."""
    most = 2**14  # entries to keep: their keys are bytes of means and covariances, and take memory
    if len(mean) > most:
        return product.expectation(mean, cov)
    keys = [m.tobytes() + C.tobytes() for m, C in zip(mean, cov, strict=True)]
    results = {key: cache.get(key) for key in keys}
    new = {key: i for i, key in enumerate(keys) if results[key] is None}
    if new:
        at = list(new.values())
        results.update(zip(new, zip(*product.expectation(mean[at], cov[at]), strict=True), strict=True))
        if len(cache) + len(new) > most:
            cache.clear()
        cache.update((key, results[key]) for key in new)
    return np.array([results[key] for key in keys]).reshape(-1, 2).T


def _plane(
    r: Recorder, c: Component, side: int, places: Mapping[Variable, int]
) -> tuple[PlanarFunction, list[int]]:
    """Return the product of atoms of one side, and the positions of its variables among all variables."""
    positions = {form: place for (at, form), place in places.items() if at == side}
    columns = sorted(positions.values())
    names: dict[Expr, Expr] = {form: Ref(f"@{columns.index(k)}") for form, k in positions.items()}
    bodies = tuple(replace_exprs(atom.expr, names) for atom in (c.left, c.right)[side])
    key = PlanarFunction, bodies
    if key not in r.facts:
        r.facts[key] = PlanarFunction(partial(_product, bodies), _known_lines(bodies))
    return r.facts[key], [*columns, -1, -1][:2]


def _has_curved_kinks(atom: Atom) -> bool:
    """Return whether kinks lie on curves: whether a kinked node of several variables is not linear."""
    names: dict[Expr, Expr] = {form: Ref(f"@{k}") for k, form in enumerate(atom.forms)}
    nodes = [
        n for n in subtrees(replace_exprs(atom.expr, names)) if isinstance(n, Apply) and len(refs(n)) > 1
    ]
    # The kinks of a node of one variable lie on straight lines; only nodes of several can curve them.
    kinked = [n for n in nodes if not is_smooth_node(n) and not has_user_function(n)]
    parts: set[Expr] = set()
    for n in kinked:
        parts.update(subtrees(n, parts))
    return not all(map(_is_straight, parts))


def _is_straight(node: Expr) -> bool:
    """Return whether the function of a node is linear between its kinks."""
    match node:
        case Apply(op, args) if op is fn.mul or op is fn.div:
            return sum(bool(refs(arg)) for arg in args) < 2
        case Apply(op) if op in (fn.add, fn.sub, fn.neg, fn.maximum, fn.minimum):
            return True
        case Apply(op, (_,)) if isinstance(op, Function):
            pieces = op.about(node.options).pieces
            return pieces is not None and max(map(len, pieces.pieces)) <= 2
    return not isinstance(node, Apply)


def _known_lines(bodies: Sequence[Expr]) -> Lines | None:
    """Return the lines of the kinks if all belong to functions of one variable; else None."""
    kinks: dict[tuple[int, float], None] = {}
    nodes, seen = list(bodies), set(bodies)
    while nodes:
        node = nodes.pop()
        names = refs(node)
        if len(names) == 1 and not has_user_function(node):
            kinks |= dict.fromkeys((int(names[0][1:]), kink) for kink in _kinks(node, names[0]))
        elif isinstance(node, Apply) and names:
            if not is_smooth_node(node):
                return None
            nodes += [arg for arg in node.args if arg not in seen]
            seen.update(node.args)
    offsets = np.array([kink for _, kink in kinks])
    return Lines(np.eye(2)[[k for k, _ in kinks]].reshape(-1, 2), offsets, 0 * offsets)


def _kinks(expr: Expr, name: str) -> tuple[float, ...]:
    """Return where a function of one variable is not smooth."""
    kinks = about(expr, name).kinks
    return find_kinks(lambda x: evaluate(expr, {name: Block(x, 0, True)}).array) if kinks is None else kinks


def _product(bodies: Sequence[Expr], z: Array) -> Array:
    values = {f"@{k}": Block(z[k], 0, True) for k in range(len(z))}
    with np.errstate(all="ignore"):
        return reduce(mul, (evaluate(body, values).array for body in bodies), np.ones(z.shape[1:]))


def _variables(forms: Forms, c: Component) -> dict[Variable, Variable]:
    """Map each variable to the one that stands for it.

    Both sides of an input with itself have the same variables, unless index axes tell them apart.
    """

    def side_of(side: int, form: Expr) -> int:
        return 0 if c.pair.same and (c.pair.tied or not forms.rank(form)) else side

    return {(side, form): (side_of(side, form), form) for side, form in c.variables}


def _sampled_where_unsettled(
    what: str,
    product: Callable[[Array], Array],
    mean: Array,
    cov: Array,
    value: Array,
    error: Array,
    least: Array | float = 0.0,
) -> tuple[Array, Array]:
    """Replace entries whose error is large, and above `least`, by averages over Sobol points.

    Shapes: mean `(entries, d)`, cov `(entries, d, d)`, value and error `(entries,)`. If a few points carry
    the sum, or if all values are 0, the spread of the repeats is no error estimate. Such an entry keeps its
    quadrature value, with an error of at least the difference. If that error exceeds all values, the moment
    may not exist, as for a / b: refuse it.
    """
    rough = np.isfinite(value) & (error > np.maximum(least, 1e-6 * np.abs(value).max(initial=0.0)))
    count, d = int(rough.sum()), mean.shape[-1]
    if not count:
        return value, error
    repeats, evaluations = 16, 2**22  # of a repeat, for all entries
    # The entries share a fixed number of evaluations; fewer than 2^8 points would give no useful spread.
    points = int(np.clip(2 ** int(np.log2(evaluations / count)), 2**8, 2**14))
    variances, axes = np.linalg.eigh(cov[rough])
    # The eigenvectors scaled by standard deviations are a root of the covariance, which may be singular.
    factor = axes * np.sqrt(np.maximum(variances, 0.0))[:, None, :]
    means, sizes, largest = [], np.zeros(count), np.zeros(count)
    for k in range(repeats):
        noise = normal_points(d, points, (0, k))
        values = product(mean[rough].T[..., None] + np.einsum("nij,jp->inp", factor, noise))
        means.append(values.mean(-1))
        sizes += np.abs(values).sum(-1)
        largest = np.maximum(largest, np.abs(values).max(-1))
    sampled = np.mean(means, axis=0)
    # One in 200 means of 16 repeats is off by more than 3.3 standard errors (Student's distribution).
    spread = 3.3 * np.std(means, axis=0, ddof=1) / np.sqrt(repeats)
    # No point may hold more than 1% of the sum of |values|.
    trusted = (sizes > 0) & (largest <= 0.01 * sizes)
    better = trusted & (spread < error[rough])
    apart = np.where(trusted, 0.0, np.abs(sampled - value[rough]))
    error[rough] = np.where(better, spread, np.maximum(error[rough], apart))
    value[rough] = np.where(better, sampled, value[rough])
    if np.any(~trusted & (error[rough] > np.abs(value).max())):
        raise LimitError(
            f"too few points carry {what}: a rare event, or a heavy tail",
            remedy="Make the event more frequent, or the function grow more slowly: where E[f^2] is infinite "
            "there is no limit.",
        )
    return value, error
