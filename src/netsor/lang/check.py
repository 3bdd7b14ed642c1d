"""The type checker: one rule of the paper's formal specification per function.

`check` walks the statements once, gives every variable its type, and stops at the first statement that
breaks a rule, with the line, the rule and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from netsor.errors import NetsorError, Place, TypeCheckError
from netsor.lang.controlled import growth_problem
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.index_maps import at
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    MatrixLaw,
    Moment,
    Nonlin,
    Normal,
    Output,
    Program,
    Scalar,
    Statement,
    Term,
    used_by,
)
from netsor.lang.sampling import check_sampling
from netsor.lang.types import A, C, G, H, Index, Type

__all__ = ["Inferred", "Types", "check", "infer", "place_of"]

Types = dict[str, Type]


@dataclass(frozen=True)
class Inferred:
    """What an expression is: its kind (K, C, G or H), its index shape and, for vectors, its width."""

    kind: str
    index: Index
    width: str | None = None


def check(program: Program) -> Types:
    """Types of all variables of a well-typed program; raises TypeCheckError otherwise."""
    checker = _Checker(program)
    for statement in program.statements:
        checker.statement = statement
        checker.visit(statement)
    checker.check_readouts()
    check_sampling(program, checker.fail_at)
    return checker.types


def place_of(program: Program, statement: Statement, name: str | None = None) -> Place:
    """Where a statement stands, with carets under `name` if it is given."""
    place = statement.place
    if place is None:
        from netsor.lang.show import show_statement

        place = Place(program.statements.index(statement) + 1, show_statement(statement))
    if place.file is None and name is not None:
        text = place.text
        found = re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text[_body(text) :])
        if found:
            return replace(place, start=found.start() + _body(text), end=found.end() + _body(text))
    return place


def _body(text: str) -> int:
    """Where the right-hand side of a statement begins."""
    for mark in (":=", "~", "Output"):
        if mark in text:
            return text.index(mark) + len(mark)
    return 0


class _Checker:
    """The state of one pass: the types so far and the statement under inspection."""

    statement: Statement

    def __init__(self, program: Program) -> None:
        self.program = program
        self.types: Types = {}

    # Errors

    def fail_at(self, statement: Statement, what: str, remedy: str, name: str | None = None) -> NetsorError:
        return TypeCheckError(what, place=place_of(self.program, statement, name), remedy=remedy)

    def fail(self, what: str, remedy: str, name: str | None = None) -> NetsorError:
        return self.fail_at(self.statement, what, remedy, name)

    def origin(self, name: str) -> str:
        """Where a variable comes from, in words."""
        if name in self.program.data:
            return f"`{name}` is data"
        source = self.program.definitions[name]
        place = place_of(self.program, source)
        return f"`{name}` comes from {type(source).__name__} at {place.title}"

    # Rules

    def visit(self, s: Statement) -> None:
        match s:
            case Output():
                self.rule_output(s)
            case Input():
                self.define(s.name, self.rule_input(s), None)
            case MatMul():
                self.define(s.name, self.rule_matmul(s), s.type)
            case LinComb():
                self.define(s.name, self.rule_lincomb(s), s.type)
            case Nonlin():
                self.define(s.name, self.rule_nonlin(s), s.type)
            case Moment():
                self.define(s.name, self.rule_moment(s), s.type)
            case Scalar():
                self.define(s.name, self.rule_scalar(s), s.type)

    def define(self, name: str, found: Type, declared: Type | None) -> None:
        """Rule Assign: `var := expr :: type` gives var the type of expr, which must be the one written."""
        if name in self.types or name in self.program.data:
            raise self.fail(
                f"`{name}` is defined twice",
                "A program is straight-line: every variable is assigned once. Choose another name.",
            )
        if declared is not None and declared != found:
            raise self.fail(
                f"`{name}` is declared {declared}, but its expression has type {found}",
                f"Rule Assign: the type after `::` is the type of the expression. Write `:: {found}`, "
                "or leave the type out.",
            )
        self.types[name] = found

    def rule_input(self, s: Input) -> Type:
        """Rule Input: A-vars have a variance, G-vars a mean and covariance, or are matrix times data."""
        match s.type, s.law:
            case A(rows=str()), MatrixLaw(var):
                if not (np.isfinite(var) and var >= 0):
                    raise self.fail(f"the variance of `{s.name}` is {var}", "A variance is finite and >= 0.")
            case G(), Normal():
                pass
            case G(), Embedding(matrix, data):
                self.check_embedding(s, matrix, data)
            case _:
                raise self.fail(
                    f"`{s.name}` cannot be an input of type {s.type} with this law",
                    "Rule Input: write `Input W :: A(n, n) ~ N(0, 1/n)`, `Input g :: G(n) ~ N(0, 1)` or "
                    "`Input Ux :: G(n) ~ MatMul(U, x)`. H-vars and C-vars are computed, not sampled.",
                )
        return s.type

    def check_embedding(self, s: Input, matrix: str, data: Expr) -> None:
        """Rule Embed: A(n, m) with finite m times data of last dimension m is an input G(n)."""
        type_ = self.lookup(matrix)
        remedy = (
            "Rule Embed: `Input U :: A(n, m) ~ N(0, 1/m)` with a number m, then "
            "`Input Ux :: G(n) ~ MatMul(U, x)` for data x whose last axis has length m."
        )
        if not isinstance(type_, A) or not isinstance(type_.cols, int):
            raise self.fail(f"`{matrix}` is not a matrix with a finite number of columns", remedy, matrix)
        found = self.infer(data)
        if found.kind != "K" or not found.index or found.index[-1] != type_.cols:
            what = f"data of shape {found.index}" if found.kind == "K" else "something that is not data"
            raise self.fail(f"`{matrix}` has {type_.cols} columns but meets {what}", remedy, matrix)
        expected = G(str(type_.rows), type_.index + found.index[:-1])
        if s.type != expected:
            raise self.fail(f"`{s.name}` is declared {s.type}, but its law has type {expected}", remedy)

    def rule_matmul(self, s: MatMul) -> Type:
        """Rule MatMul: a : A(n1, n2) and h : H(n2) give MatMul(a, h) : G(n1)."""
        a, h = self.lookup(s.matrix), self.lookup(s.operand)
        if not isinstance(a, A):
            raise self.fail(
                f"MatMul needs an A-var first, but `{s.matrix}` is {_article(a)}",
                f"Rule MatMul: MatMul(A(n1, n2), H(n2)) : G(n1). {self.origin(s.matrix)}.",
                s.matrix,
            )
        if not isinstance(h, H):
            raise self.fail(
                f"MatMul needs a vector second, but `{s.operand}` is {_article(h)}",
                f"Rule MatMul: MatMul(A(n1, n2), H(n2)) : G(n1). {self.origin(s.operand)}.",
                s.operand,
            )
        if a.cols != h.width:
            raise self.fail(
                f"`{s.matrix}` takes vectors of width {a.cols}, but `{s.operand}` has width {h.width}",
                f"Rule MatMul: MatMul(A(n1, n2), H(n2)) : G(n1). Declare a matrix A(n1, {h.width}).",
                s.operand,
            )
        k = s.aligned
        if a.index[:k] != h.index[:k] or k > min(len(a.index), len(h.index)):
            raise self.fail(
                f"the first {k} index axes of `{s.matrix}` {a.index} and `{s.operand}` {h.index} differ",
                "Rule MatMul, aligned: matrix i meets vector i, so the aligned axes have one length.",
                s.operand,
            )
        return G(str(a.rows), a.index + h.index[k:])

    def rule_lincomb(self, s: LinComb) -> Type:
        """Rule LinComb: g1, ..., gk : G(n) give a1 g1 + ... + ak gk : G(n)."""
        for name in refs(s.expr):
            type_ = self.lookup(name) if name not in self.program.data else None
            if isinstance(type_, H) and not isinstance(type_, G):
                raise self.fail(
                    f"LinComb takes G-vars, but `{name}` is an H-var",
                    f"{self.origin(name)}. Multiply it by a matrix first (`g := MatMul(W, {name})`), "
                    "or write the sum inside one Nonlin: `Nonlin(...)`.",
                    name,
                )
        found = self.infer(s.expr)
        if found.kind != "G" or found.width is None:
            raise self.fail(
                "LinComb is linear in G-vars, but this expression is not",
                "Rule LinComb: sums, differences, multiples by numbers and maps on index axes of G-vars. "
                "Anything else is a Nonlin: write `Nonlin(...)`.",
            )
        return G(found.width, found.index)

    def rule_nonlin(self, s: Nonlin) -> Type:
        """Rule Nonlin(+): x1, ..., xk : H(n) and c1, ..., cl : C give f(x1, ..., xk; c1, ..., cl) : H(n)."""
        found = self.infer(s.expr)
        if found.width is None:
            raise self.fail(
                "Nonlin needs at least one vector, but this expression has none",
                "Rule Nonlin: f(x1, ..., xk; c1, ..., cl) with vectors x1, ..., xk of one width.",
            )
        self.check_controlled(s)
        return H(found.width, found.index)

    def rule_moment(self, s: Moment) -> Type:
        """Rule Moment: x1, ..., xk : H(n) and c1, ..., cl : C give Moment(f(x; c)) : C."""
        found = self.infer(s.expr)
        if found.width is None:
            raise self.fail(
                "Moment averages a vector over its width, but this expression has no vector",
                "Rule Moment: Moment(f(x1, ..., xk; c1, ..., cl)). A function of C-vars stands by itself.",
            )
        self.check_controlled(s)
        return C(found.index)

    def rule_scalar(self, s: Scalar) -> Type:
        """Rule Scalar: c1, ..., cl : C give f(c1, ..., cl) : C."""
        found = self.infer(s.expr)
        if found.width is not None:
            raise self.fail(
                "a function of C-vars mentions a vector", "Average the vector first: `Moment(...)`."
            )
        return C(found.index)

    def rule_output(self, s: Output) -> None:
        """Rule Output: v : G(n) an input used nowhere else and y : H(n) give v^T y / sqrt(n)."""
        shapes = {self.check_term(t) for t in s.terms}
        if len(shapes) > 1:
            raise self.fail(
                f"terms of one output have index shapes {' and '.join(map(str, sorted(shapes)))}",
                "Rule Output: the terms of a sum are added member by member.",
            )

    def check_term(self, t: Term) -> Index:
        v, y = self.lookup(t.readout), self.lookup(t.operand)
        source = self.program.definitions.get(t.readout)
        rule = "Rule Output: v^T y / sqrt(n) for an input `v :: G(n) ~ N(0, var)` and a vector `y :: H(n)`."
        if not isinstance(v, G) or not isinstance(source, Input) or not isinstance(source.law, Normal):
            raise self.fail(f"the readout `{t.readout}` is not an input G-var", rule, t.readout)
        if not isinstance(y, H):
            raise self.fail(f"Output needs a vector, but `{t.operand}` is {_article(y)}", rule, t.operand)
        if not v.width == y.width == t.width:
            raise self.fail(
                f"`{t.readout}` has width {v.width}, `{t.operand}` width {y.width}, and the root {t.width}",
                f"{rule} All three are the same n.",
                t.operand,
            )
        k = t.aligned
        if v.index[:k] != y.index[:k] or k > min(len(v.index), len(y.index)):
            raise self.fail(
                f"the first {k} index axes of `{t.readout}` {v.index} and `{t.operand}` {y.index} differ",
                "Rule Output, summed: the axes that are summed over have one length.",
                t.operand,
            )
        return v.index[k:] + y.index[k:]

    def check_readouts(self) -> None:
        """A readout is used nowhere but in outputs, has mean zero, and is independent of other inputs."""
        readouts = {t.readout for s in self.program.outputs for t in s.terms}
        for s in self.program.statements:
            for name in used_by(s):
                between = isinstance(s, Input) and s.name in readouts
                reads = isinstance(s, Output) and name not in {t.operand for t in s.terms}
                if name in readouts and not between and not reads:
                    raise self.fail_at(
                        s,
                        f"the readout `{name}` is used elsewhere",
                        "Rule Output: the output is Gaussian because v is independent of the rest of the "
                        "program. Declare a second input for this use.",
                        name,
                    )
            if isinstance(s, Input) and s.name in readouts and isinstance(s.law, Normal):
                self.check_readout_law(s, s.law, readouts)

    def check_readout_law(self, s: Input, law: Normal, readouts: set[str]) -> None:
        if np.any(np.asarray(law.mean)):
            raise self.fail_at(s, f"the readout `{s.name}` has a mean", "Rule Output: v ~ N(0, var).")
        outside = [name for name, _ in law.cross if name not in readouts]
        if outside:
            raise self.fail_at(
                s,
                f"the readout `{s.name}` is correlated with `{outside[0]}`",
                "Rule Output: v is independent of every input that the body uses.",
                outside[0],
            )

    # Names and expressions

    def lookup(self, name: str) -> Type:
        if name in self.types:
            return self.types[name]
        later = self.program.definitions.get(name)
        if name in self.program.data:
            raise self.fail(f"`{name}` is data, not a variable", "Embed it: `~ MatMul(U, x)`.", name)
        if later is not None:
            where = place_of(self.program, later).title
            raise self.fail(
                f"`{name}` is used before it is defined ({where})",
                "A program is straight-line: no loops and no cycles. Put the definition first; "
                "a recurrent network is unrolled, one variable per step.",
                name,
            )
        near = _nearest(name, [*self.types, *self.program.data])
        raise self.fail(
            f"`{name}` is not defined", near or "Define it above, or declare it as an Input.", name
        )

    def infer(self, expr: Expr) -> Inferred:
        for name in refs(expr):
            if name not in self.program.data and isinstance(self.lookup(name), A):
                raise self.fail(
                    f"`{name}` is a matrix inside an expression",
                    "Matrices act on vectors only: write `g := MatMul(W, x)` on a line of its own.",
                    name,
                )
        return infer(expr, self.known, self.refuse)

    def known(self, name: str) -> Inferred:
        if name in self.program.data:
            return Inferred("K", self.program.data[name].shape)
        return _as_inferred(self.lookup(name))

    def refuse(self, what: str, remedy: str, name: str | None) -> NetsorError:
        return self.fail(f"{type(self.statement).__name__}: {what}", remedy, name)

    def check_controlled(self, s: Nonlin | Moment) -> None:
        problem = growth_problem(s.expr, self.program, self.types)
        if problem:
            raise self.fail(
                f"{type(s).__name__}: the function is not controlled",
                f"{problem} The Master Theorem needs |phi(x)| <= exp(C |x|^(2 - eps) + c); beyond that "
                "the expectation diverges. Use a function that grows more slowly.",
            )


def _as_inferred(type_: Type) -> Inferred:
    match type_:
        case G(width, index):
            return Inferred("G", index, width)
        case H(width, index):
            return Inferred("H", index, width)
        case C(index):
            return Inferred("C", index)
    raise TypeError(f"{type_} is not the type of an expression")


def infer(
    expr: Expr,
    known: Callable[[str], Inferred],
    refuse: Callable[[str, str, str | None], NetsorError],
) -> Inferred:
    """Kind, index shape and width of an expression; `refuse` makes the error where it has none."""
    memo: dict[Expr, Inferred] = {}
    for node in subtrees(expr):
        match node:
            case Ref(name):
                memo[node] = known(name)
            case Const():
                memo[node] = Inferred("K", ())
            case Apply(op, args, _, _):
                parts = [memo[a] for a in args]
                try:
                    index = op.shape(*(p.index for p in parts), **node.options)
                except (ValueError, TypeError) as error:
                    name = op.name if op is not at else None
                    raise refuse(str(error), "Index shapes broadcast by NumPy's rule.", name) from None
                width = _common_width(args, parts, refuse)
                memo[node] = Inferred(op.kind(tuple(p.kind for p in parts)), index, width)
    return memo[expr]


def _common_width(args: tuple[Expr, ...], parts: list[Inferred], refuse: Callable) -> str | None:
    """The one width of all vectors among the arguments, or None."""
    vectors = [(a, p.width) for a, p in zip(args, parts, strict=True) if p.width is not None]
    for arg, width in vectors:
        if width != vectors[0][1]:
            name = next(iter(refs(arg)))
            raise refuse(
                f"vectors of different widths meet: {vectors[0][1]} and {width}",
                "Coordinatewise functions, sums and moments combine vectors of one width "
                "(one Common Dimension Class). A MatMul changes the width.",
                name,
            )
    return vectors[0][1] if vectors else None


def _article(type_: Type) -> str:
    return {A: "an A-var", G: "a G-var", H: "an H-var", C: "a C-var"}[type(type_)] + f" of type {type_}"


def _nearest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f"Did you mean `{close[0]}`?" if close else ""
