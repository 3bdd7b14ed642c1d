"""E[prod_i gate(s_i x_i)] for erf gates and x of mean zero: orthant probabilities.

gate(x) = (1 + erf(x)) / 2 is the probability that a Gaussian variable of variance 1/2 is below x. So a
product of gates is the probability that several Gaussian variables are positive together.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from netsor.expect.orthant_probabilities import erf_gates
from netsor.lang import functions as fn
from netsor.lang.expr import Apply, Const
from netsor.limits.methods.component import Component, Method, over_entries
from netsor.limits.rules.atoms import HOLE, Atom
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.setting import Setting

Gate = tuple[float, float, float]


class Orthants(Method):
    """Up to four gates a + b gate(s x), one for each variable."""

    name = "orthant probability"
    cost = 2**10

    def applies(self, x: Setting, c: Component) -> bool:
        if x.traced or not len(c.atoms) == len(c.variables) <= 4 or not all(map(_gate, c.atoms)):
            return False
        return all(x.forms.is_centred(form) for _, form in c.variables)

    def value(self, r: Recorder, c: Component) -> Asking:
        gates = [gate for gate in map(_gate, c.atoms) if gate]
        signs = np.array([sign for _, _, sign in gates])

        def integral(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, error = np.zeros(cov.shape[:-2]), np.zeros(cov.shape[:-2])
            turned = cov * np.outer(signs, signs)
            # Expand prod (a_i + b_i gate_i) into a sum over subsets of the gates.
            for chosen in product((False, True), repeat=len(gates)):
                weight = prod(b if taken else a for taken, (a, b, _) in zip(chosen, gates, strict=True))
                which = np.flatnonzero(chosen)
                if weight and len(which):
                    part = erf_gates(turned[(..., *np.ix_(which, which))])
                    value, error = value + weight * part[0], error + abs(weight) * part[1]
                else:
                    value = value + weight
            return value, error

        return (yield from over_entries(r, c, c.variables, self.name, integral))


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
