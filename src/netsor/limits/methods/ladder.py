"""The ladder of methods: the first that applies computes the expectation of a product of atoms.

A method is one object in one file: whether it `applies`, its `cost`, and its `value` with an error, as steps
on a tape. The ladder chooses it from the program and the input shapes alone, so a plan needs no values. A new
method takes one file and one line of LADDER. If none applies, the families of the product are sampled.
"""

from __future__ import annotations

from netsor.errors import NetsorError
from netsor.limits.methods.batchnorm import BatchnormIntegral, BatchnormSlopes
from netsor.limits.methods.closed import ClosedForm
from netsor.limits.methods.component import Component, Method
from netsor.limits.methods.isserlis import Isserlis
from netsor.limits.methods.orthants import Orthants
from netsor.limits.methods.quadrature import Quadrature
from netsor.limits.methods.series import HermiteSeries
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.moment import OWN
from netsor.limits.rules.pairs import Pair
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.setting import Setting

# Exact and cheap methods come first; a later one applies to more products, at a higher cost per entry.
LADDER: tuple[Method, ...] = (
    ClosedForm(),
    Isserlis(),
    HermiteSeries(),
    BatchnormIntegral(),
    BatchnormSlopes(),
    Orthants(),
    Quadrature(),
)


def method_of(x: Setting, c: Component) -> Method | None:
    """Return the first method that applies, or None if the families of the product must be sampled."""
    key = c.left, c.right, c.pair.same, c.pair.tied
    if key not in x.methods:
        x.methods[key] = next((method for method in LADDER if method.applies(x, c)), None)
    return x.methods[key]


def expectation(r: Recorder, left: tuple[Atom, ...], right: tuple[Atom, ...], pair: Pair) -> Asking:
    """Return the block of E of a product of atoms that share families."""
    c = Component(left, right, pair)
    method = method_of(r.setting, c)
    if method is None:
        # The decision about samples follows the same ladder, so this is a defect.
        raise NetsorError(f"{c.what} has no method, and the decision about samples does not say so")
    value = yield from method.value(r, c)
    if value is not None:
        r.notes.add(c.what, method.name, method.otherwise)
        value.array.tape.costs.setdefault(value.array.step, method.cost)
        return r.rounded(value)
    # The covariance is zero by structure, so the two sides are independent: E[f g] = E[f] E[g].
    one, two = yield [(expectation, (atom,), (), OWN) for atom in c.atoms]
    return pair.left(one.per_input) * pair.right(two.per_input)
