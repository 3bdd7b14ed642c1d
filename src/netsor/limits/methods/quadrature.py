"""Quadrature for functions of up to four dependent variables, of a few inputs."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from netsor.expect.points.normal import normal_points
from netsor.expect.quadrature.planes import Planes
from netsor.expect.quadrature.space import gaussian_expectation
from netsor.lang.analysis import is_smooth
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref
from netsor.limits.methods.component import Component
from netsor.limits.methods.few_variables import entries, is_plain, over_entries
from netsor.limits.recursion.forms import replace_exprs
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["Quadrature"]

MOST_ENTRIES = {1: 2**20, 2: 2**16, 3: 2**12, 4: 2**6}  # beyond, sampling all of them at once is faster
WORST = 1e-6  # relative error of an entry that is not sampled
SAMPLED, REPEATS = 2**22, 16  # evaluations in a repeat, and repeats
STUDENT = 3.3  # standard errors of so many repeats that one in 200 is beyond
TOL, POINTS = 1e-8, 2**18  # asked for, and allowed per entry


class Quadrature:
    """Tensor rules in independent coordinates; entries where they do not settle are sampled one by one."""

    name = "quadrature"
    cost = 2**14
    otherwise = "scrambled Sobol points for the entries where it does not settle"

    def applies(self, r: Recorder, c: Component) -> bool:
        if r.traced or len(c.variables) > 4 or not all(is_plain(r, atom) for atom in c.atoms):
            return False
        return entries(r, c) <= MOST_ENTRIES[len(c.variables)]

    def value(self, r: Recorder, c: Component) -> Asking:
        names: dict[tuple[int, Expr], Expr] = {x: Ref(f"@{k}") for k, x in enumerate(c.variables)}
        bodies = []
        for side, atoms in enumerate((c.left, c.right)):
            own = {form: name for (s, form), name in names.items() if s == side}
            bodies += [replace_exprs(atom.expr, own) for atom in atoms]
        planes = Planes.none(len(names)) if all(map(is_smooth, bodies)) else None

        def integrand(z: np.ndarray) -> np.ndarray:
            values = {f"@{k}": Block(z[k], 0, True) for k in range(len(z))}
            with np.errstate(all="ignore"):
                return reduce(mul, (evaluate(body, values).array for body in bodies))

        def integral(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = gaussian_expectation(integrand, mean, cov, tol=TOL, max_points=POINTS, planes=planes)
            return _sampled_where_unsettled(integrand, mean, cov, *found)

        return (yield from over_entries(r, c, self.name, integral))


def _sampled_where_unsettled(
    integrand: Any, mean: np.ndarray, cov: np.ndarray, value: np.ndarray, error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values and errors, better ones for the entries whose error is large."""
    rough = np.isfinite(value) & (error > WORST * np.abs(value).max(initial=0.0))
    count, d = int(rough.sum()), mean.shape[-1]
    if not count:
        return value, error
    size = int(np.clip(2 ** int(np.log2(SAMPLED / count)), 2**8, 2**14))
    variances, axes = np.linalg.eigh(cov[rough])
    factor = axes * np.sqrt(np.maximum(variances, 0.0))[:, None, :]
    means = []
    for k in range(REPEATS):
        noise = normal_points(d, size, (0, k))
        z = mean[rough].T[..., None] + np.einsum("nij,jp->inp", factor, noise)
        means.append(integrand(z).mean(-1))
    spread = STUDENT * np.std(means, axis=0, ddof=1) / np.sqrt(REPEATS)
    better = spread < error[rough]
    value[rough] = np.where(better, np.mean(means, axis=0), value[rough])
    error[rough] = np.where(better, spread, error[rough])
    return value, error
