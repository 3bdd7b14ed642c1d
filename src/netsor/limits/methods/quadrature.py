"""Quadrature for functions of up to four dependent variables, of a few inputs."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.points.normal import normal_points
from netsor.expect.quadrature.planes import Planes
from netsor.expect.quadrature.space import gaussian_expectation
from netsor.lang.analysis import is_smooth
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref
from netsor.limits.methods.component import Component
from netsor.limits.methods.few_variables import Variable, entries, is_plain, over_entries
from netsor.limits.recursion.forms import replace_exprs
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["Quadrature"]

MOST_ENTRIES = {1: 2**20, 2: 2**16, 3: 2**12, 4: 2**6}  # beyond, sampling all of them at once is faster
WORST = 1e-6  # relative error of an entry that is not sampled
SAMPLED, REPEATS = 2**22, 16  # evaluations in a repeat, and repeats
HEAVIEST = 0.01  # of a sum over samples: what one of them may carry
STUDENT = 3.3  # standard errors of so many repeats that one in 200 is beyond
TOL, POINTS = 1e-8, 2**18  # asked for, and allowed per entry


class Quadrature:
    """Tensor rules in independent coordinates; entries where they do not settle are sampled one by one."""

    name = "quadrature"
    cost = 2**14
    otherwise = "scrambled Sobol points for the entries where it does not settle"

    def applies(self, r: Recorder, c: Component) -> bool:
        count = len(set(_variables(r, c).values()))
        if r.traced or count > 4 or not all(is_plain(r, atom) for atom in c.atoms):
            return False
        return entries(r, c) <= MOST_ENTRIES[count]

    def value(self, r: Recorder, c: Component) -> Asking:
        r.notes.diagonal = True
        known, bodies = _variables(r, c), []
        variables = tuple(dict.fromkeys(known.values()))
        names = {x: Ref(f"@{k}") for k, x in enumerate(variables)}
        for side, atoms in enumerate((c.left, c.right)):
            own: dict[Expr, Expr] = {form: names[x] for (s, form), x in known.items() if s == side}
            bodies += [replace_exprs(atom.expr, own) for atom in atoms]
        planes = Planes.none(len(names)) if all(map(is_smooth, bodies)) else None

        def integrand(z: np.ndarray) -> np.ndarray:
            values = {f"@{k}": Block(z[k], 0, True) for k in range(len(z))}
            with np.errstate(all="ignore"):
                return reduce(mul, (evaluate(body, values).array for body in bodies))

        def integral(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = gaussian_expectation(integrand, mean, cov, tol=TOL, max_points=POINTS, planes=planes)
            return _sampled_where_unsettled(c.what, integrand, mean, cov, *found)

        return (yield from over_entries(r, c, variables, self.name, integral))


def _variables(r: Recorder, c: Component) -> dict[Variable, Variable]:
    """The variables, and which of them each is: of an input with itself the sides have the same ones."""

    def side_of(side: int, form: Expr) -> int:
        return 0 if c.pair.same and (c.pair.tied or not r.rank(form)) else side

    return {(side, form): (side_of(side, form), form) for side, form in c.variables}


def _sampled_where_unsettled(
    what: str, integrand: Any, mean: np.ndarray, cov: np.ndarray, value: np.ndarray, error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values and errors, better ones for the entries whose error is large.

    A few points that carry the sum, or none that differ from 0, say nothing about how far off it is; if then
    the error of the quadrature is larger than all values, there may be no such moment, as of a / b.
    """
    rough = np.isfinite(value) & (error > WORST * np.abs(value).max(initial=0.0))
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
