"""The ladder of methods: the first that applies computes the expectation of a product of atoms.

| atoms                                    | method                                             |
| ---------------------------------------- | -------------------------------------------------- |
| one or two with a formula                | `closed`: closed form                              |
| up to four Gaussian variables            | `isserlis`: Isserlis' theorem                      |
| any one or two of one form each          | `series`: Hermite series                           |
| batchnorm with a homogeneous activation  | `batchnorm`: the paper's 1-D and 2-D integrals     |
| its derivatives                          | `batchnorm`: derivatives of these integrals        |
| up to four erf gates of mean zero        | `orthants`: orthant probabilities                  |
| up to four variables of a few inputs     | `quadrature`: quadrature                           |
| anything else                            | sampling of their families (and of nothing more)   |

A method is one object in one file: when it `applies`, its `cost`, and its `value` with its error, as steps on
a tape. It is chosen from the program and the shapes of the inputs alone. A new method is one file and a line
of LADDER.
"""

from __future__ import annotations

from typing import Any, Protocol

from netsor.limits.methods.batchnorm import BatchnormIntegral, BatchnormSlopes
from netsor.limits.methods.closed import ClosedForm
from netsor.limits.methods.component import Component
from netsor.limits.methods.isserlis import Isserlis
from netsor.limits.methods.orthants import Orthants
from netsor.limits.methods.quadrature import Quadrature
from netsor.limits.methods.series import HermiteSeries
from netsor.limits.recursion.forms import Atom
from netsor.limits.recursion.pairs import Pair, PerInput
from netsor.limits.recursion.recorder import Asking, Missing, Recorder
from netsor.limits.recursion.values import OWN

__all__ = ["LADDER", "Method", "expectation"]


class Method(Protocol):
    """A way to compute the expectation of a product of atoms."""

    @property
    def name(self) -> str: ...

    @property
    def cost(self) -> int:
        """Multiply-adds for an entry, about."""
        ...

    def applies(self, r: Recorder, c: Component) -> bool:
        """Whether it computes this expectation, from the program and the shapes of inputs alone."""
        ...

    def value(self, r: Recorder, c: Component) -> Any:
        """The block of the expectation; None if the two sides turn out to be independent."""
        ...


LADDER: tuple[Method, ...] = (
    ClosedForm(),
    Isserlis(),
    HermiteSeries(),
    BatchnormIntegral(),
    BatchnormSlopes(),
    Orthants(),
    Quadrature(),
)


def expectation(r: Recorder, left: tuple[Atom, ...], right: tuple[Atom, ...], pair: Pair) -> Asking:
    """E of a product of atoms that share families."""
    back = r.known(expectation, right, left, pair.flipped)
    if back is not None:
        return back.swapped
    c = Component(left, right, pair)
    method = next((m for m in LADDER if m.applies(r, c)), None)
    if method is None:
        families = frozenset[str]().union(*map(r.forms.sampled_families, c.atoms))
        r.missing = Missing(families, f"{c.what} is an integral over {len(c.variables)} dependent variables")
        return None
    value = yield from method.value(r, c)
    if value is not None:
        r.notes.add(c.what, method.name, getattr(method, "otherwise", ""))
        value.array.tape.costs.setdefault(value.array.step, method.cost)
        return r.rounded(value)
    sides = []  # the forms have no source in common
    for atom in c.atoms:
        alone = yield expectation, (atom,), (), OWN
        sides.append(PerInput(alone.array, alone.left))
    return pair.left(sides[0]) * pair.right(sides[1])
