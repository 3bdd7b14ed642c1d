"""Programs: straight-line statements, one class per rule of the language, and named data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from netsor.errors import FunctionError, Place
from netsor.lang.expr import Apply, Expr, refs, rename, subtrees
from netsor.lang.ops import Op
from netsor.lang.types import H, Type

if TYPE_CHECKING:
    from netsor.lang.learning_rates import GivenRates
    from netsor.lang.type_checker import Types

RESERVED = frozenset({"Data", "Input", "Output", "MatMul", "Moment", "Nonlin", "None", "sum"})

Nested = float | tuple["Nested", ...]


@dataclass(frozen=True)
class MatrixLaw:
    """Entries of an A-var: iid N(0, var / columns), independently for each matrix of a block."""

    var: float


@dataclass(frozen=True)
class Normal:
    """An input G-var: each coordinate ~ N(mean, cov), independently of the others."""

    mean: Nested = 0.0  # a number, or an array of the index shape
    cov: Nested = 1.0  # one variance for independent members, or the covariance matrix of the flattened block
    cross: tuple[tuple[str, Nested], ...] = ()  # with earlier inputs: (size of this block, size of the other)
    each: bool = False  # whether it is drawn anew for each input of a network: noise, which is not trained


@dataclass(frozen=True)
class Embedding:
    """An input G-var U x for a matrix U and data x: covariance var * x.x' / columns.

    The first `aligned` index axes of matrix and data are shared, as in `MatMul`.
    """

    matrix: str
    data: Expr
    aligned: int = 0


Law = MatrixLaw | Normal | Embedding


@dataclass(frozen=True)
class _Statement:
    place: Place | None = field(default=None, compare=False, kw_only=True)
    notes: tuple[str, ...] = field(default=(), compare=False, kw_only=True)


@dataclass(frozen=True)
class Input(_Statement):
    """`Input name :: type ~ law`."""

    name: str
    type: Type
    law: Law


@dataclass(frozen=True)
class MatMul(_Statement):
    """`name := MatMul(matrix, operand)`: each matrix of the block times each vector of the operand.

    The first `aligned` index axes are shared: there, matrix i multiplies vector i only.
    """

    name: str
    matrix: str
    operand: str
    aligned: int = 0
    type: Type | None = None


@dataclass(frozen=True)
class _Assign(_Statement):
    name: str
    expr: Expr
    type: Type | None = None


@dataclass(frozen=True)
class LinComb(_Assign):
    """`name := 1.0*g1 + 0.5*g2`: a G-var that is linear in G-vars; maps on index axes count as linear."""


@dataclass(frozen=True)
class Nonlin(_Assign):
    """`name := phi(x1, ...; c1, ...)`: a coordinatewise function, with C-vars as parameters (Nonlin+)."""


@dataclass(frozen=True)
class Moment(_Assign):
    """`name := Moment(phi(x1, ...; c1, ...))`: the average of a vector over its width."""


@dataclass(frozen=True)
class Scalar(_Assign):
    """`name := f(c1, ...)`: a function of C-vars (in the paper, a Moment without vectors)."""


@dataclass(frozen=True)
class Term:
    """`readout^T operand / sqrt(width)`, for each member of the readout and each of the operand.

    The first `aligned` index axes of both are shared and summed over, as in the readout of a flattened
    block.
    """

    readout: str
    operand: str
    width: str
    aligned: int = 0


@dataclass(frozen=True)
class Output(_Statement):
    """`Output v^T y / sqrt(n) + shift`: scalars with a Gaussian limit of mean `shift`; terms are added."""

    terms: tuple[Term, ...]
    shift: float = 0.0


Assignment = LinComb | Nonlin | Moment | Scalar
Statement = Input | MatMul | Assignment | Output
S = TypeVar("S", bound=Statement)


@dataclass(frozen=True, eq=False)
class Program:
    """A program: statements in order, and data.

    Parameters
    ----------
    statements
        Instances of the statement classes.
    data
        Arrays by name.
    header, notes
        Comments at the beginning and at the end of the text.

    Examples
    --------
    >>> import netsor as ns
    >>> p = ns.parse('''
    ... Input g :: G(n) ~ N(0, 1)
    ... Input v :: G(n) ~ N(0, 1)
    ... x := relu(g) :: H(n)
    ... Output v^T x / sqrt(n)
    ... ''')
    >>> p.check()["x"]
    H(width='n', index=())
    """

    statements: tuple[Statement, ...]
    data: Mapping[str, np.ndarray] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return (
            self.statements == other.statements
            and self.data.keys() == other.data.keys()
            and all(np.array_equal(self.data[k], other.data[k]) for k in self.data)
        )

    def __hash__(self) -> int:
        return hash(self.statements)  # arrays have no hash; equal programs have equal statements

    def __str__(self) -> str:
        from netsor.lang.show import show

        return show(self, data_limit=64)

    def __repr__(self) -> str:
        """The text; for long programs its beginning."""
        lines, longest = str(self).splitlines(), 60
        hidden = len(lines) - longest
        return str(self) if hidden <= 0 else "\n".join([*lines[:longest], f"... and {hidden} more lines"])

    def _repr_html_(self) -> str:
        from netsor.lang.program_html import program_html

        return program_html(self)

    def of(self, kind: type[S]) -> list[S]:
        """Return the statements of one class."""
        return [s for s in self.statements if isinstance(s, kind)]

    @cached_property
    def inputs(self) -> list[Input]:
        return self.of(Input)

    @cached_property
    def noise(self) -> frozenset[str]:
        """The inputs that are drawn anew for each input of a network."""
        return frozenset(s.name for s in self.inputs if isinstance(s.law, Normal) and s.law.each)

    @cached_property
    def outputs(self) -> list[Output]:
        return self.of(Output)

    @cached_property
    def readouts(self) -> frozenset[str]:
        return frozenset(t.readout for s in self.outputs for t in s.terms)

    @cached_property
    def definitions(self) -> dict[str, Input | MatMul | Assignment]:
        return {s.name: s for s in self.statements if not isinstance(s, Output)}

    @cached_property
    def functions(self) -> dict[str, Op]:
        """The user's functions that the program calls, by name."""
        return {op.name: op for op in self.user_operations}

    @cached_property
    def user_operations(self) -> tuple[Op, ...]:
        """The user's functions that the program calls, and their derivatives."""
        nodes = (node for expr in self.expressions() for node in subtrees(expr) if isinstance(node, Apply))
        return tuple(dict.fromkeys(node.op for node in nodes if getattr(node.op, "user", False)))

    @property
    def changed(self) -> list[str]:
        """Names of the user's functions whose values have changed since the program was created."""
        return [op.name for op in self.user_operations if getattr(op.fn, "has_changed", False)]  # type: ignore[attr-defined]

    def refuse_changed(self) -> None:
        """Raise a FunctionError if a user's function has changed since the program was created."""
        for name in self.changed:
            raise FunctionError(
                f"`{name}` gives other values than when it was applied",
                remedy="A program holds functions, not copies of them, so none may change afterwards, as one "
                "does that reads a global or an attribute. Make a function for each value, or read the "
                "network again.",
            )

    def expressions(self) -> Iterator[Expr]:
        for s in self.statements:
            if isinstance(s, Assignment):
                yield s.expr

    def check(self) -> Types:
        """Check every statement against its typing rule.

        Returns
        -------
        dict
            The type of each variable.

        Raises
        ------
        TypeCheckError
            At the first statement that breaks a rule.
        """
        return self.types

    @cached_property
    def types(self) -> Types:
        from netsor.lang.type_checker import check

        return check(self)

    @property
    def widths(self) -> dict[str, list[str]]:
        """The Common Dimension Classes: each width with its vector variables."""
        classes: dict[str, list[str]] = {}
        for name, type_ in self.types.items():
            for width in (dim for dim in type_.dims if isinstance(dim, str)):
                classes.setdefault(width, []).extend([name] * isinstance(type_, H))
        return classes

    def show(self) -> str:
        """Return the complete text of the program: `parse(p.show()) == p`."""
        from netsor.lang.show import show

        return show(self)

    def lower(self, variant: str) -> Program:
        """Write the same computation in another variant of the language.

        Parameters
        ----------
        variant
            "netsor", "netsor-minus" or "netsor-o", with a "+" at the end to allow C-vars; see
            `netsor.lang.lower`.

        Returns
        -------
        Program
            A program with the same values and the same limit.

        Raises
        ------
        LoweringError
            If the variant cannot express the program.
        """
        from netsor.lang.lower import lower

        return lower(self, variant)

    def expand(self) -> Program:
        """Write out all blocks: one variable of the paper per line.

        Returns
        -------
        Program
            A program with the same values and the same limit.

        Raises
        ------
        LoweringError
            If the result has more than a million lines.
        """
        from netsor.lang.expand import expand

        return expand(self)

    def tangent(self, rates: GivenRates = None, *, tied: bool = False, scalars: bool = False) -> Program:
        """Return the derivative along a random direction of the parameters; its kernel is the NTK.

        Parameters
        ----------
        rates
            Learning rates by parameter name, or a convention; see `netsor.lang.learning_rates`.
        tied
            Whether to use the matrices themselves instead of fresh copies, as finite width requires.
        scalars
            Whether to keep the tangents of C-vars, which vanish in the limit.

        Returns
        -------
        Program
            A program with inputs `d_W` for the directions; see `netsor.lang.tangent` for the rules.
        """
        from netsor.lang.tangent import tangent

        return tangent(self, rates, tied=tied, scalars=scalars).program

    def rename(self, names: Mapping[str, str], widths: Mapping[str, str] | None = None) -> Program:
        """Rename variables and data (`names`) and dimensions (`widths`)."""
        data = {names.get(k, k): v for k, v in self.data.items()}
        statements = tuple(rename_statement(s, names, widths or {}) for s in self.statements)
        return Program(statements, data, self.header, self.notes)

    def canonical(self) -> Program:
        """Rename variables, data and widths in order of appearance, to compare programs up to names."""
        names = {k: f"data{i}" for i, k in enumerate(self.data)}
        names |= {s.name: f"x{i}" for i, s in enumerate(self.statements) if not isinstance(s, Output)}
        return self.rename(names, {width: f"n{k}" for k, width in enumerate(self.widths)})


def used_by(s: Statement) -> list[str]:
    """Return the names that a statement reads."""
    match s:
        case Input(law=Embedding(matrix, data)):
            return [matrix, *refs(data)]
        case Input(law=Normal(cross=cross)):
            return [name for name, _ in cross]
        case Input():
            return []
        case MatMul():
            return [s.matrix, s.operand]
        case Output(terms=terms):
            return [name for t in terms for name in (t.readout, t.operand)]
        case _:
            return refs(s.expr)


def rename_statement(s: Statement, names: Mapping[str, str], widths: Mapping[str, str]) -> Statement:
    """Rename the variables and dimensions of a statement."""

    def new(name: str) -> str:
        return names.get(name, name)

    def dim(d: Any) -> Any:
        return widths.get(d, d)

    match s:
        case Input(law=Embedding(matrix, data)):
            s = replace(s, law=replace(s.law, matrix=new(matrix), data=rename(data, names)))
        case Input(law=Normal(cross=cross) as law):
            s = replace(s, law=replace(law, cross=tuple((new(k), v) for k, v in cross)))
        case MatMul():
            s = replace(s, matrix=new(s.matrix), operand=new(s.operand))
        case Output(terms=terms):
            renamed = (Term(new(t.readout), new(t.operand), dim(t.width), t.aligned) for t in terms)
            return replace(s, terms=tuple(renamed))
        case LinComb() | Nonlin() | Moment() | Scalar():
            s = replace(s, expr=rename(s.expr, names))
    type_: Any = s.type and type(s.type)(*map(dim, s.type.dims), index=s.type.index)
    return replace(s, name=new(s.name), type=type_)
