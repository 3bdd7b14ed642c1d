"""The state of one reading of a model: matrices and vectors of its parameters, notes, and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from netsor.build.graph_nodes import Node
from netsor.build.parameters import Matrix, Vector
from netsor.errors import BuildError, NetsorError, Place
from netsor.lang.program import RESERVED
from netsor.models.axes import Axes, AxisLayout, Origin
from netsor.models.scalars import NEAR, ONE, Size
from netsor.models.values import Parameter, Value

DATA = re.compile(r"x\d*(_\d+)*|k\d+")  # names of inputs and constants in programs
GROWS = (
    "It has no limit. Attention scores q.k/sqrt(d) are such values: they stay random, where q.k/d "
    "converges. Scale them by 1/d; or let heads of a fixed size grow in number, nn.MultiheadAttention(n, "
    'n // 4), which has the limit of 1/sqrt(d); or give scales="width", which reads them as sqrt(d) times '
    "the limit of q.k/d, at the model's own d: uniform attention, if queries and keys are independent."
)
SHRINKS = (
    'It vanishes in the limit. With scales="shrinking" it is kept as it is at the model\'s own width, and '
    "report_laws says so; to have a limit, scale it with the right power of n."
)


@dataclass(frozen=True)
class Where:
    """The current place in the model: the path of the module, the operation, and the user's source line."""

    module: str = ""
    operation: str = ""
    place: Place | None = None

    def __str__(self) -> str:
        at = f"`{self.module}`" if self.module else ""
        return f"{at}, {self.operation}" if at and self.operation else at or self.operation


@dataclass(frozen=True)
class Use:
    """The use of a parameter: its role as a Matrix or Vector, and the axes over which it is contracted."""

    parameter: Parameter
    role: str  # "embedding", "hidden", "readout", "output bias", "vector"
    contracted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mask:
    """A mask of dropout: the vector g with mask = step(g), its axes in the model, and its numbers.

    The numbers are zeros and ones at the model's width, or None if only a run of the model draws them.
    """

    vector: Vector
    axes: Axes
    numbers: np.ndarray | None


@dataclass
class Registry:
    """Matrices and vectors by parameter and piece. All inputs that a network reads share them."""

    by_piece: dict[tuple, Matrix | Vector] = field(default_factory=dict)
    uses: dict[str, Use] = field(default_factory=dict)
    ones: list[Vector] = field(default_factory=list)
    masks: dict[tuple, Vector] = field(default_factory=dict)
    waves: dict[int, Vector] = field(default_factory=dict)  # of fixed numbers along a width

    def mask(self, number: int, keep: float, index: tuple[int, ...]) -> Vector:
        """Return the vector of the model's first, second, ... mask; it is drawn anew for each input."""
        key = number, keep, index
        if key not in self.masks:
            name, mean = f"mask{len(self.masks) + 1}", NormalDist().inv_cdf(keep)
            self.masks[key] = Vector(1.0, mean, index=index, each=True, name=name)
        return self.masks[key]

    def name(self, base: str) -> str:
        """Choose a name for the text of programs that no other parameter has."""
        label = re.sub(r"\W+", "_", base, flags=re.ASCII).strip("_")
        if not re.match(r"[A-Za-z]", label) or label in RESERVED or DATA.fullmatch(label):
            label = f"p{label}"
        name, k = label, 1
        while name in self.uses:
            k += 1
            name = f"{label}_{k}"
        return name


@dataclass
class Reader:
    """The state of one walk over a model's two graphs."""

    widths: Size
    scales: str
    registry: Registry
    cuts: dict[Origin, AxisLayout] = field(default_factory=dict)  # how widths are laid out
    notes: list[str] = field(default_factory=list)
    where: Where = field(default_factory=Where)
    last: Where = field(default_factory=Where)  # the last operation, for errors about the results
    refusal: NetsorError | None = None
    single: bool = False  # whether the model computes something in less than double precision
    offset: bool = False  # whether a constant that is added to an output was left out
    ones_taken: int = 0
    masks: list[Mask] = field(default_factory=list)  # in the order in which the model draws them

    def ones(self) -> Vector:
        """Return a vector of ones, of any width; each reading of the model reuses it."""
        if self.ones_taken == len(self.registry.ones):
            self.registry.ones.append(Vector(0.0, mean=1.0, name="ones", rate=0.0))
        self.ones_taken += 1
        return self.registry.ones[self.ones_taken - 1]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, what: str, remedy: str) -> NetsorError:
        at = str(self.where)
        self.refusal = BuildError(f"{at}: {what}" if at else what, place=self.where.place, remedy=remedy)
        return self.refusal

    @contextmanager
    def at(self, where: Where) -> Iterator[None]:
        """Make errors point at the model's source line."""
        before, self.where, self.last = self.where, where, where
        try:
            yield
        except NetsorError as error:
            if error is self.refusal:
                raise
            raise self.refuse(error.what, error.remedy) from error
        except ValueError as error:
            raise self.refuse(str(error), WIDTHS) from error
        finally:
            self.where = before

    def fold(self, v: Value) -> Value:
        """Multiply the scale into the node; a remaining power of n has no limit, and is kept or refused."""
        if v.scale == ONE:
            return v
        if not v.scale.is_fixed and not abs(v.scale.exponent(self.widths)) < NEAR:  # n / (n - 1) tends to 1
            self.keep(v)
        node = v.node * v.scale.one if v.scale.one != 1.0 else v.node
        assert isinstance(node, Node | float)
        return replace(v, node=node, scale=ONE)

    def keep(self, v: Value) -> None:
        """Refuse a scale with a power of n, or note that it keeps its value at the model's width."""
        p = v.scale.exponent(self.widths)
        names = ", ".join(f"`{name}`" for name in sorted(v.scale.grown if p > 0 else v.scale.laws))
        if v.scale.grown and p > 0:
            raise self.refuse(
                f"values grow like n^{p:.2g} with the width n, because the variance of {names} does not "
                "shrink as it should",
                "A matrix has entries of variance var / fan_in, a vector of order 1. Change the "
                f'initialiser, give the law, laws={{"{min(v.scale.grown)}": ns.Matrix(1.0)}}, or read it '
                f'as it is at the model\'s own width: laws={{"{min(v.scale.grown)}": "width"}}; "*" '
                "stands for all parameters.",
            )
        why = f", because of the law of {names}" if names else ""
        what = f"a value goes like n^{p:.2g} with the width n{why}, and meets what does not"
        if p > 0 and self.scales != "width":
            raise self.refuse(what, GROWS)
        if self.scales == "strict":
            raise self.refuse(what, SHRINKS)
        self.note(f"{self.where}: {what}; kept as it is at n = {self.widths[0]}")


WIDTHS = (
    "The axis that goes to infinity is a coordinate of vectors: it can be cut into equal blocks (heads, "
    "gates) and joined again in the same order, but not mixed with tokens, pixels or members of a batch."
)
