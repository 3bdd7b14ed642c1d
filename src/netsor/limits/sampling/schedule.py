"""Which second moments a program needs, in which order, as tables of row numbers.

Networks that are loops over tokens have many vectors without index axes, and all pairs of them matter.
Taken one pair at a time, most of the work is not arithmetic. So what is alike is stacked: the *rows* of a
table are the variables of a family, the atoms of an exact family, the sampled products, or the vectors that
matrices multiply, in the order in which they become known, one row for each input. What is new at a step
meets all that came before in a few operations on whole tables, which `sampling.moments` carries out.

A vector is a sum of *parts*: a number times sampled atoms times exact atoms, one of a family at most,

    E[h h'] = sum_pq c_p c_q mean(sampled_p sampled_q) prod_families E[atom_p atom_q].

A family whose atom is the same in all parts of each vector (an output gate) is a *factor* of the whole sum;
what is left is the *core*, and vectors may share it: h and r h in a GRU. The tables are made by
`netsor.limits.sampling.scheduling`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from netsor.lang.expr import Expr
from netsor.limits.methods.closed import ClosedPair
from netsor.limits.methods.component import name_of
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.recursion.forms import Atom

__all__ = [
    "Core",
    "ExactAtom",
    "Factor",
    "Family",
    "Form",
    "Group",
    "Inner",
    "Link",
    "Parts",
    "Peer",
    "Piece",
    "Recursion",
    "Row",
    "Schedule",
    "State",
    "Step",
    "Table",
]

Table = slice | np.ndarray  # rows of a table


@dataclass
class Family:
    """Gaussian variables that depend on each other: one row for each form and input."""

    name: str
    drawn: bool
    size: int = 0
    atoms: int = 1  # rows of the table of pairs; row 0 is the number 1
    means: bool = False  # whether row 0 is needed: the expectations of the atoms
    forms: list[Form] = field(default_factory=list)


@dataclass(frozen=True)
class Factor:
    """Rows in the table of pairs of a family, on the left and on the right."""

    family: int
    own: np.ndarray
    other: np.ndarray


@dataclass(frozen=True)
class Link:
    """var_W E[h h'] times two coefficients: a form that holds W h, and those of its family that hold W h'."""

    matrix: str
    group: int
    own: np.ndarray
    other: np.ndarray
    factors: tuple[Factor, ...]
    coef: Expr
    others: tuple[tuple[Expr, int], ...]  # the coefficients of the others, and how many rows each has
    columns: np.ndarray  # rows of the family


@dataclass(frozen=True)
class Form:
    """A Gaussian variable: its rows in its family, and where its covariances come from.

    coefs   of the inputs and products with matrices that it is a sum of
    """

    expr: Expr
    family: int
    rows: slice
    links: tuple[Link, ...]
    coefs: dict[str, Expr]


@dataclass(frozen=True)
class Peer:
    """Atoms of one kind (family and function) that a new atom meets: their rows as atoms and as variables."""

    kind: tuple[int, Expr, bool]
    atom: Atom
    rule: ClosedPair | None  # None is a Hermite series
    parallel: NearParallel | None
    rows: Table
    forms: Table

    def what(self, met: ExactAtom) -> str:
        """The expectation of the product with a new atom, in words."""
        return f"E[{name_of(met.atom)} {name_of(self.atom)}]"

    @property
    def is_inexact(self) -> bool:
        """Whether errors are beyond rounding: those of series, and of rounding where functions are steep."""
        return self.rule is None or self.parallel is not None


@dataclass(frozen=True)
class ExactAtom:
    """A function of one variable of a family that is not sampled."""

    atom: Atom
    family: int
    rows: slice
    forms: slice
    peers: tuple[Peer, ...]
    own: Peer  # the one of its own kind


@dataclass(frozen=True)
class Row:
    """Sampled values to compute: the product of expressions, and of rows that are there already."""

    rows: slice
    exprs: tuple[Expr, ...]
    rest: slice | None = None


@dataclass(frozen=True)
class Core:
    """A sum of parts: its rows in its group, and its parts (inputs by parts) among the group's.

    inner   parts of what it holds, among those of the group's `Inner`
    """

    group: int
    rows: slice
    parts: slice
    upto: int  # sampled rows so far
    plain: bool  # whether the parts of the group so far are the sampled rows so far
    inner: slice = field(
        default_factory=lambda: slice(0, 0)
    )  # its parts among those of the cores within the group's


@dataclass(frozen=True)
class Recursion:
    """Rows that are multiples of others plus parts of their own; see `netsor.limits.sampling.recursions`.

    before   the row that is multiplied, or -1
    factor   the sampled row that multiplies it, or -1
    chain    the number of the chain that a row belongs to
    place    of a row, where all rows are in the order of their chains
    begin    the place of the first row of each chain
    room     (chains, chains): where the numbers begin that the last row of one has with the rows of another;
             those of two chains with each other are side by side
    """

    before: np.ndarray
    factor: np.ndarray
    chain: np.ndarray
    place: np.ndarray
    begin: np.ndarray
    room: np.ndarray

    @property
    def chains(self) -> int:
        return len(self.begin)

    @classmethod
    def of(cls, before: np.ndarray, factor: np.ndarray) -> Recursion:
        """Rows that follow each other, as chains."""
        chain = np.cumsum(before < 0) - 1
        for row in np.flatnonzero(before >= 0):
            chain[row] = chain[before[row]]
        sizes = np.bincount(chain)
        both = np.tril(sizes[:, None] + sizes, -1) + np.diag(sizes)
        first = np.reshape(np.cumsum(both) - both.ravel(), both.shape)
        room = np.tril(first) + np.triu((first + sizes).T, 1)
        place = np.argsort(np.argsort(chain, kind="stable"))
        return cls(before, factor, chain, place, np.cumsum(sizes) - sizes, room)


@dataclass(kw_only=True)
class Parts:
    """The parts of some rows, row by row.

    sampled   the sampled row of each
    atoms     by family, the row of each in the table of its pairs
    factors   for each core the constants of its parts, and its inputs
    starts    where each row begins
    """

    sampled: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    atoms: dict[int, np.ndarray] = field(default_factory=dict)
    factors: list[tuple[list[tuple[Expr, ...]], int]] = field(default_factory=list)
    starts: np.ndarray = field(default_factory=lambda: np.zeros(0, int))


@dataclass(kw_only=True)
class Inner(Parts):
    """The parts of cores that are within parts of a group; see `netsor.limits.sampling.nested`.

    families   of the atoms that multiply these cores
    factor     for each row of the group the sampled row that multiplies the core of the row before, or -1
    holds      for each part of the group whether it holds a core
    """

    families: frozenset[int] = frozenset()
    factor: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    holds: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))


@dataclass(kw_only=True)
class Group(Parts):
    """Cores whose second moments are needed, and the parts of all of them.

    With a recursion, the parts are those that a row does not have from the row before it.
    """

    pool: int  # where the sampled rows are
    size: int = 0
    recursion: Recursion | None = None
    inner: Inner | None = None

    @property
    def states(self) -> int:
        """The numbers that a recursion keeps at each sample point."""
        if self.recursion is None:
            return 0
        each = 2 * self.size + len(self.sampled) if self.inner else self.size
        return self.recursion.chains * each


@dataclass(frozen=True)
class Piece:
    """A core times factors: rows of its group, and of the tables of pairs of families."""

    group: int
    core: np.ndarray
    factors: dict[int, np.ndarray]


@dataclass(frozen=True)
class State:
    """A vector that matrices multiply or outputs read: a sum of pieces, by the families in which they are
    odd; those of different ones have no second moments with each other.

    cluster   vectors that share a matrix, directly or through others; only these have second moments
    """

    cluster: int
    inputs: int
    pieces: dict[frozenset[str], Piece]


@dataclass(frozen=True)
class Step:
    """What becomes known with one vector, in this order; `expired` values are not needed any more.

    depth   how many matrices are behind the vector; steps of one depth need nothing of each other
    """

    forms: tuple[Form, ...]
    atoms: tuple[ExactAtom, ...]
    rows: tuple[Row, ...]
    core: Core | None
    depth: int = 0
    expired: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """The tables and steps of all vectors that fit."""

    families: list[Family]
    groups: list[Group]
    pools: list[int]  # the number of sampled rows of each
    together: list[int]  # for each pool a number, the same where vectors have parts in several
    steps: list[Step]
    states: dict[Expr, State]
    alive: int  # the most rows of values of expressions that are there at once, within a step
    lasting: int  # and after one
    models: dict[Expr, Any] = field(default_factory=dict)  # series of functions that serve for many variables

    @property
    def work(self) -> int:
        """Multiply-adds at a sample point, about."""
        return sum(map(self.work_of, self.steps))

    def work_of(self, step: Step) -> int:
        """Those of a step: what is new meets all that is there."""
        drawn = (form for form in step.forms if self.families[form.family].drawn)
        total = sum((form.rows.stop - form.rows.start) * form.rows.stop for form in drawn)
        if step.core:
            new, group = step.core.parts.stop - step.core.parts.start, self.groups[step.core.group]
            loop = (6 if group.inner else 2) * step.core.rows.stop
            total += new * (loop if group.recursion else step.core.parts.stop)
        return total

    @cached_property
    def stages(self) -> list[list[Step]]:
        """The steps by their depth."""
        return [list(steps) for _, steps in groupby(self.steps, lambda step: step.depth)]
