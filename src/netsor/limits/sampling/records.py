"""The records of a schedule: second moments, in their order, as tables of row numbers.

A network that is a loop over tokens has many vectors without index axes, and all pairs of them matter. One
pair at a time, most of the time would go into calls, not arithmetic. So equal kinds are stacked: the *rows*
of a table are the variables of a family, the atoms of an exact family, the sampled products, or the vectors
that matrices multiply. Rows are in the order in which they become known, one row for each input. The new rows
of a step are combined with all rows before in a few operations on whole tables, which `sampling.moments`
carries out.

A vector is a sum of *parts*: a number times sampled atoms times at most one exact atom of each family,

    E[h h'] = sum_pq c_p c_q mean(sampled_p sampled_q) prod_families E[atom_p atom_q].

If all parts of each vector have the same atom of a family (an output gate), that atom is a *factor* of the
whole sum. The remaining sum is the *core*. Several vectors may have the same core: h and r h in a GRU. A
vector is a sum of *pieces*, each a core times factors, which have no second moments with each other.
`sampling.schedule` makes the tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np

from netsor.lang.expr import Expr
from netsor.limits.methods.closed import ClosedPair
from netsor.limits.methods.component import name_of
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.rules.atoms import Atom

Table = slice | np.ndarray  # row numbers of a table


@dataclass
class Family:
    """Gaussian variables that depend on each other: one row for each form and input.

    drawn   whether the family is sampled
    size    number of variables so far
    atoms   number of rows in the table of products of exact atoms; row 0 is the number 1
    means   whether row 0 is needed, which holds the expectations of the atoms
    """

    name: str
    drawn: bool
    size: int = 0
    atoms: int = 1
    means: bool = False
    forms: list[Form] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """A core times factors, for some inputs: row numbers in its group, and in the tables of families."""

    group: int
    core: np.ndarray
    factors: dict[int, np.ndarray]


@dataclass(frozen=True)
class VectorPieces:
    """A vector that matrices multiply or outputs read: its pieces, by the families in which they are odd.

    Pieces that are odd in different families have no second moments with each other.

    cluster   vectors that share a matrix, directly or through others; only these have second moments
    """

    cluster: int
    inputs: int
    pieces: dict[frozenset[str], Piece]


@dataclass(frozen=True)
class Link:
    """var_W E[h h'] times two coefficients: the covariance of a form with W h and the forms with W h'.

    left, right     pieces of h, and of all h' one after the other
    coef, coefs     the coefficient of W h, and those of W h' with their numbers of inputs
    columns         the rows of the forms with W h', in their family
    """

    matrix: str
    left: Piece
    right: Piece
    coef: Expr
    coefs: tuple[tuple[Expr, int], ...]
    columns: np.ndarray


@dataclass(frozen=True)
class Form:
    """A Gaussian variable: its rows in its family, and where its covariances come from.

    coefs   by name, the coefficients of the inputs and of the products with matrices that it adds up
    """

    expr: Expr
    family: int
    rows: slice
    links: tuple[Link, ...]
    coefs: dict[str, Expr]


@dataclass(frozen=True)
class AtomKind:
    """The atoms of one family and function so far, as a new atom is multiplied by them.

    key      the family, the function, and whether the variables are centred
    rule     the closed form of E of the products with the new atom; None if a Hermite series is needed
    rows     rows of the atoms in the table of products
    forms    rows of their variables
    """

    key: tuple[int, Expr, bool]
    atom: Atom
    rule: ClosedPair | None
    parallel: NearParallel | None
    rows: Table
    forms: Table

    def product_name(self, new: ExactAtom) -> str:
        """Return the expectation of the product with a new atom as text."""
        return f"E[{name_of(new.atom)} {name_of(self.atom)}]"

    @property
    def is_inexact(self) -> bool:
        """Whether errors exceed rounding: a series leaves out terms, and steep functions amplify rounding."""
        return self.rule is None or self.parallel is not None


@dataclass(frozen=True)
class ExactAtom:
    """A function of one variable of a family that is not sampled.

    forms    the rows of its variable
    kind     its own kind
    kinds    all kinds that it is multiplied by, its own included
    """

    atom: Atom
    family: int
    rows: slice
    forms: slice
    kinds: tuple[AtomKind, ...]
    kind: AtomKind


@dataclass(frozen=True)
class SampledRow:
    """Sampled values to compute: a product of expressions, times the rows `times` of the pool if given."""

    rows: slice
    exprs: tuple[Expr, ...]
    times: slice | None = None


@dataclass(frozen=True)
class Core:
    """A sum of parts: its rows in its group, and its parts (inputs by parts) among those of the group.

    pool_size   number of sampled rows so far
    plain       whether the parts of the group so far are exactly the sampled rows so far
    """

    group: int
    rows: slice
    parts: slice
    pool_size: int
    plain: bool

    @property
    def inputs(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def parts_of_input(self) -> int:
        return (self.parts.stop - self.parts.start) // self.inputs

    @property
    def weights(self) -> int:
        """Entries of the table of weights that a recursion multiplies new parts by."""
        return (self.parts.stop - self.parts.start) * self.parts.stop


@dataclass(frozen=True)
class Recursion:
    """Rows that are multiples of other rows plus parts of their own; see `netsor.limits.sampling.recursions`.

    before   (rows,): the row that is multiplied, or -1
    factor   (rows,): the sampled row that multiplies it, or -1
    chain    (rows,): the number of the chain that a row belongs to
    place    (rows,): the position of a row if all rows are sorted by chain
    begin    (chains,): the place of the first row of each chain
    offset   (chains, chains): where the states of the last row of one chain with the rows of another begin;
             the states of two chains with each other are neighbours
    """

    before: np.ndarray
    factor: np.ndarray
    chain: np.ndarray
    place: np.ndarray
    begin: np.ndarray
    offset: np.ndarray

    @property
    def chains(self) -> int:
        return len(self.begin)

    @classmethod
    def of(cls, before: np.ndarray, factor: np.ndarray) -> Recursion:
        """Divide rows into chains, in which each row follows the one before."""
        # A row begins a chain if it follows none; all others belong to the chain of the row that they
        # follow.
        chain = np.cumsum(before < 0) - 1
        for row in np.flatnonzero(before >= 0):
            chain[row] = chain[before[row]]
        sizes = np.bincount(chain)
        # Two chains have states for the last row of each with all rows of the other, stored one after the
        # other.
        both = np.tril(sizes[:, None] + sizes, -1) + np.diag(sizes)
        first = np.reshape(np.cumsum(both) - both.ravel(), both.shape)
        offset = np.tril(first) + np.triu((first + sizes).T, 1)
        place = np.argsort(np.argsort(chain, kind="stable"))
        return cls(before, factor, chain, place, np.cumsum(sizes) - sizes, offset)


@dataclass(frozen=True)
class CoreGroup:
    """Cores whose second moments are needed, and the parts of all of them, core by core and input by input.

    With a recursion, a row has only the parts that do not come from the row before it.

    pool        number of the pool that holds the sampled rows
    size        number of rows: one for each core and input
    sampled     (parts,): the sampled row of each part
    starts      (rows,): where the parts of each row begin
    atoms       by family, (parts,): the row of each part in the table of products
    constants   for each core the constants of its parts, and its number of inputs
    """

    pool: int
    size: int
    sampled: np.ndarray
    starts: np.ndarray
    atoms: dict[int, np.ndarray]
    constants: list[tuple[list[tuple[Expr, ...]], int]] = field(default_factory=list)
    recursion: Recursion | None = None

    @property
    def states(self) -> int:
        """Number of values that a recursion keeps at each sample point."""
        return self.recursion.chains * self.size if self.recursion else 0


@dataclass(frozen=True)
class VectorStep:
    """What becomes known with one vector, in this order.

    depth     number of matrices behind the vector; steps of one depth do not need each other
    expired   expressions whose values no later step reads
    """

    forms: tuple[Form, ...]
    atoms: tuple[ExactAtom, ...]
    rows: tuple[SampledRow, ...]
    core: Core | None
    depth: int = 0
    expired: tuple[Expr, ...] = ()

    @property
    def inputs(self) -> int:
        return max([form.rows.stop - form.rows.start for form in self.forms], default=0)


@dataclass(frozen=True)
class Schedule:
    """The tables and steps of all vectors that fit.

    pools     by pool, its number of sampled rows
    together  by pool, a number that is the same if vectors have parts in several pools
    alive     largest number of rows of values of expressions that are kept at the same time
    """

    families: list[Family]
    groups: list[CoreGroup]
    pools: list[int]
    together: list[int]
    steps: list[VectorStep]
    vectors: dict[Expr, VectorPieces]
    alive: int

    @cached_property
    def stages(self) -> list[list[VectorStep]]:
        """The steps, grouped by depth."""
        return [list(steps) for _, steps in groupby(self.steps, lambda step: step.depth)]

    @property
    def work(self) -> int:
        """Approximate number of multiply-adds per sample point."""
        return sum(map(self.work_of, self.steps))

    def work_of(self, step: VectorStep) -> int:
        """Return this number for one step, which combines its new rows with all rows so far."""
        drawn = (form.rows for form in step.forms if self.families[form.family].drawn)
        total = sum((rows.stop - rows.start) * rows.stop for rows in drawn)
        if step.core:
            new, group = step.core.parts.stop - step.core.parts.start, self.groups[step.core.group]
            total += new * (2 * step.core.rows.stop if group.recursion else step.core.parts.stop)
        return total

    @property
    def bytes(self) -> int:
        """Bytes of the row numbers and of the arrays of `Numbers`."""
        arrays = [x for g in self.groups for x in (g.sampled, g.starts, *g.atoms.values())]
        for link in (link for step in self.steps for form in step.forms for link in form.links):
            arrays += [link.right.core, link.right.core, link.columns, *link.right.factors.values()]
        numbers = sum(2 * family.size**2 for family in self.families)
        return sum(x.nbytes for x in arrays) + 8 * numbers
