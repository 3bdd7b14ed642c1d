"""The type checker: one method per rule of the paper's formal specification."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from math import prod

import numpy as np

from netsor.errors import NetsorError, Place, TypeCheckError
from netsor.lang.controlled import Unwinder, growth_problem
from netsor.lang.expr import Apply, Expr, count_terms, refs
from netsor.lang.input_laws import LAW, check_input_laws
from netsor.lang.program import (
    RESERVED,
    Assignment,
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
    _Statement,
    used_by,
)
from netsor.lang.show import show_expr, show_statement, shown_short
from netsor.lang.types import MOST_MEMBERS, TOO_LARGE, A, C, Dim, G, H, Index, K, Type, infer

Types = dict[str, Type]

# The target of the carets in a message: a name, or the first group of a pattern.
Mark = str | re.Pattern[str]
LEFT = re.compile(r"^\s*(?:Input\s+)?(\w+)")
RIGHT = re.compile(r"(?::=|~|Output)\s*(.*?)\s*(?:::.*)?$")
DECLARED = re.compile(r"::\s*([^~]*?)\s*(?:~.*)?$")


def check(program: Program) -> Types:
    """Return the types of all variables; raise a TypeCheckError about the first ill-typed statement."""
    wrong = next((s for s in program.statements if not isinstance(s, _Statement)), None)
    if wrong is not None or not isinstance(program.statements, tuple):
        what = f"{wrong!r:.60} is not a statement"
        remedy = "A Program has a tuple of statements; ns.parse(text) and ns.program(net, x) make them."
        raise TypeCheckError(what, remedy=remedy)
    checker = _Checker(program)
    checker.check_names()
    for statement in program.statements:
        checker.statement = statement
        type_ = getattr(checker, f"rule_{type(statement).__name__.lower()}")(statement)
        if not isinstance(statement, Output):
            checker.define(statement, type_)
    checker.check_readouts()
    checker.check_controlled()
    check_input_laws(program, checker.fail_at)
    return checker.types


def place_of(program: Program, statement: Statement, *marks: Mark) -> Place:
    """Return the place of a statement, with carets under the first mark that occurs in its text."""
    place = statement.place
    if place is None:
        place = Place(program.statements.index(statement) + 1, show_statement(statement))
    if place.file is None and marks:
        code = place.text.partition("#")[0].rstrip()
        match = next(filter(None, (_find(mark, code) for mark in (*marks, RIGHT))), None)
        if match:
            return replace(place, start=match.start(1), end=match.end(1))
    return place


def _find(mark: Mark, code: str) -> re.Match[str] | None:
    """Find a mark in a line of text; prefer a name on the right-hand side to one on the left."""
    if isinstance(mark, re.Pattern):
        return mark.search(code)
    word = re.compile(rf"(?<![\w.])({re.escape(mark)})(?!\w)")
    sign = re.search(r":=|~|Output", code)
    return (word.search(code, sign.end()) if sign else None) or word.search(code)


def _spelling(node: Expr) -> re.Pattern[str]:
    """A pattern for the text of an expression with any spacing."""
    if count_terms(node) > 1000:
        return RIGHT
    words = [re.escape(word) for word in re.findall(r"\w+|[^\w\s]", show_expr(node))]
    return re.compile(r"(?<![\w.])(" + r"\s*".join(words) + r")(?!\w)")


class _Checker:
    """The state of a check: the types so far, and the current statement."""

    statement: Statement

    def __init__(self, program: Program) -> None:
        self.program = program
        self.types: Types = {}
        self.inferred: dict[Expr, Type] = {}

    # Errors

    def fail_at(self, statement: Statement, what: str, remedy: str, *marks: Mark) -> NetsorError:
        return TypeCheckError(what, place=place_of(self.program, statement, *marks), remedy=remedy)

    def fail(self, what: str, remedy: str, *marks: Mark) -> NetsorError:
        return self.fail_at(self.statement, what, remedy, *marks)

    def origin(self, name: str) -> str:
        """Describe the definition of a variable, in words."""
        source = self.program.definitions[name]
        return f"`{name}` comes from {type(source).__name__} at {place_of(self.program, source).title}"

    # Rules

    def check_names(self) -> None:
        """Check that no variable, array or width has a reserved name, and that each is defined once."""
        first: dict[str, Statement | None] = dict.fromkeys(self.program.data)
        definitions = [s for s in self.program.statements if not isinstance(s, Output)]
        names: list[tuple[Dim, Statement | None]] = [(name, None) for name in first]
        names += [(name, s) for s in definitions for name in (s.name, *(s.type.dims if s.type else ()))]
        for name, s in names:
            if name in RESERVED:
                what = f"`{name}` is a word of the language, not a name"
                remedy = f"Choose another name than {', '.join(sorted(RESERVED))}."
                raise TypeCheckError(what, place=place_of(self.program, s) if s else None, remedy=remedy)
        for s in definitions:
            if s.name in first:
                earlier = first[s.name]
                where = "as data" if earlier is None else f"at {place_of(self.program, earlier).title}"
                raise self.fail_at(
                    s,
                    f"`{s.name}` is defined twice",
                    f"It is defined first {where}. A program is straight-line: every variable is "
                    "assigned once. Choose another name here.",
                    LEFT,
                )
            first[s.name] = s

    def define(self, s: Input | MatMul | Assignment, inferred: Type) -> None:
        """Rule Assign: `var := expr :: type` gives var the type of expr, which must equal `type`."""
        if prod(inferred.index) > MOST_MEMBERS:
            raise self.fail(f"`{s.name}` has index shape {inferred.index}", TOO_LARGE, LEFT)
        if s.type is not None and s.type != inferred:
            raise self.fail(
                f"`{s.name}` is declared {s.type}, but its expression has type {inferred}",
                f"Rule Assign: the type after `::` is the type of the expression. Write `:: {inferred}`, "
                "or leave the type out.",
                DECLARED,
            )
        self.types[s.name] = inferred

    def check_aligned(self, k: int, pair: str, a: Index, x: Index, *marks: Mark) -> None:
        """Check that the first k index axes of two blocks agree; `pair` describes the blocks."""
        if a[:k] != x[:k] or k > min(len(a), len(x)):
            option = "aligned"
            remedy = (
                "Rule MatMul, aligned: matrix i meets vector i, so both have these axes, with one length. "
                "Without `aligned` every matrix meets every vector."
            )
            if isinstance(self.statement, Output):
                option = "axes"
                remedy = "Rule Output, summed: both have the axes that are summed over, with one length."
            raise self.fail(f"{option}={k}, but {pair}", remedy, *marks)

    def rule_input(self, s: Input) -> Type:
        """Rule Input: A-vars have a variance; G-vars have mean and covariance, or are matrix times data."""
        finite = [d for d in s.type.dims if isinstance(d, int)]
        if prod(s.type.index) * prod(finite) > MOST_MEMBERS:
            raise self.fail(f"`{s.name}` has too many members", TOO_LARGE, DECLARED)
        if 0 in (*s.type.index, *finite):
            what = f"`{s.name}` has a dimension of length 0 in its type {s.type}"
            remedy = "Rule Input: a block has at least one member, and a matrix at least one column."
            raise self.fail(what, remedy, DECLARED)
        match s.type, s.law:
            case A(rows=str()), MatrixLaw(var):
                if not (np.isfinite(var) and var >= 0):
                    what = f"the variance of `{s.name}` is {var:g}"
                    remedy = "Rule Input: A(n1, n2) ~ N(0, var/n2) with var finite and >= 0."
                    raise self.fail(what, remedy, LAW)
            case A(rows=int(rows), cols=str(cols)), MatrixLaw():
                raise self.fail(
                    f"the matrix `{s.name}` has a finite number of rows",
                    f"Rule Input: the rows of an A-var are a width. A readout with {rows} outputs is a block "
                    f"of G-vars: `Input {s.name} :: G({cols})[{rows}] ~ N(0, 1)`, then "
                    f"`Output {s.name}^T x / sqrt({cols})`.",
                    DECLARED,
                )
            case G(), Normal():
                pass
            case G(), Embedding() as law:
                self.check_embedding(s, law)
            case _:
                raise self.fail(
                    f"`{s.name}` cannot be an input of type {s.type} with this law",
                    "Rule Input: write `Input W :: A(n, n) ~ N(0, 1/n)`, `Input g :: G(n) ~ N(0, 1)` or "
                    "`Input Ux :: G(n) ~ MatMul(U, x)`. H-vars and C-vars are computed, not sampled.",
                    DECLARED,
                )
        return s.type

    def check_embedding(self, s: Input, law: Embedding) -> None:
        """Rule Embed: A(n, m) with finite m times data of last dimension m is an input G(n)."""
        matrix, data = law.matrix, law.data
        type_ = self.lookup(matrix)
        remedy = (
            "Rule Embed: `Input U :: A(n, m) ~ N(0, 1/m)` with a number m, then "
            "`Input Ux :: G(n) ~ MatMul(U, x)` for data x whose last axis has length m."
        )
        if not isinstance(type_, A) or not isinstance(type_.cols, int):
            what = f"`{matrix}` is {_article(type_)}, not a matrix with a finite number of columns"
            raise self.fail(what, remedy, matrix)
        x = self.infer(data)
        if not isinstance(x, K):
            what = f"`{matrix}` is applied to `{shown_short(data, 200)}`, which is not data"
            remedy = f"{remedy} A product with a vector is computed: `h := MatMul(W, x)`."
            raise self.fail(what, remedy, _spelling(data))
        if not x.index or x.index[-1] != type_.cols:
            what = f"`{matrix}` has {type_.cols} columns but meets data of shape {x.index}"
            raise self.fail(what, remedy, _spelling(data))
        pair = f"`{matrix}` has index shape {type_.index} and its data {x.index[:-1]}"
        self.check_aligned(law.aligned, pair, type_.index, x.index[:-1], LAW)
        expected = G(str(type_.rows), type_.index + x.index[law.aligned : -1])
        if s.type != expected:
            raise self.fail(
                f"`{s.name}` is declared {s.type}, but its law has type {expected}",
                f"Rule Embed: A(n, m)[I] times data of shape (J, m) is a G(n)[I, J]. Write `:: {expected}`.",
                DECLARED,
            )

    def rule_matmul(self, s: MatMul) -> Type:
        """Rule MatMul: a : A(n1, n2) and h : H(n2) give MatMul(a, h) : G(n1)."""
        a, h = self.lookup(s.matrix), self.lookup(s.operand)
        rule = "Rule MatMul: MatMul(A(n1, n2), H(n2)) : G(n1)."
        if not isinstance(a, A):
            what = f"MatMul needs an A-var first, but `{s.matrix}` is {_article(a)}"
            remedy = f"{rule} {self.origin(s.matrix)}. Declare a matrix: `Input W :: A(n1, n2) ~ N(0, 1/n2)`."
            raise self.fail(what, remedy, s.matrix)
        if not isinstance(h, H):
            scaling = " To scale a vector by it, write the product: `y := c*x`." if isinstance(h, C) else ""
            what = f"MatMul needs a vector second, but `{s.operand}` is {_article(h)}"
            remedy = f"{rule} {self.origin(s.operand)}.{scaling}"
            raise self.fail(what, remedy, _operand(s.operand))
        if a.cols != h.width:
            raise self.fail(
                f"`{s.matrix}` takes vectors of width {a.cols}, but `{s.operand}` has width {h.width}",
                f"{rule} `{s.matrix}` is an {a}; declare a matrix `:: A({a.rows}, {h.width})` for this "
                "product.",
                _operand(s.operand),
            )
        pair = f"`{s.matrix}` has index shape {a.index} and `{s.operand}` {h.index}"
        self.check_aligned(s.aligned, pair, a.index, h.index, _operand(s.operand))
        return G(str(a.rows), a.index + h.index[s.aligned :])

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
        inferred = self.infer(s.expr)
        if not isinstance(inferred, G):
            raise self.fail(
                "LinComb is linear in G-vars, but this expression is not",
                "Rule LinComb: sums, differences, multiples by numbers and maps on index axes of G-vars. "
                "Anything else is a Nonlin: write `Nonlin(...)`.",
                RIGHT,
            )
        return inferred

    def rule_nonlin(self, s: Nonlin) -> Type:
        """Rule Nonlin(+): x1, ..., xk : H(n) and c1, ..., cl : C give f(x1, ..., xk; c1, ..., cl) : H(n)."""
        x = self.infer_vector(s, "needs at least one vector, but `{}` has none", "f({})")
        return H(x.width, x.index)

    def rule_moment(self, s: Moment) -> Type:
        """Rule Moment: x1, ..., xk : H(n) and c1, ..., cl : C give Moment(f(x; c)) : C."""
        what = "averages a vector over its width, but `{}` has no vector"
        return C(self.infer_vector(s, what, "Moment(f({}))").index)

    def infer_vector(self, s: Nonlin | Moment, what: str, rule: str) -> H:
        """Infer an expression with at least one vector, or raise an error."""
        inferred = self.infer(s.expr)
        if not isinstance(inferred, H):
            kind, shown = type(s).__name__, shown_short(s.expr, 200)
            raise self.fail(
                f"{kind} {what.format(shown)}",
                f"Rule {kind}: {rule.format('x1, ..., xk; c1, ..., cl')} with k >= 1 vectors of one width. "
                f"A function of C-vars stands by itself: `{s.name} := {shown}`.",
                _spelling(s.expr),
            )
        return inferred

    def rule_scalar(self, s: Scalar) -> Type:
        """Rule Scalar: c1, ..., cl : C give f(c1, ..., cl) : C."""
        inferred = self.infer(s.expr)
        if isinstance(inferred, H):
            what = "a function of C-vars mentions a vector"
            remedy = "Rule Scalar: f(c1, ..., cl) of C-vars. Average the vector first: `c := Moment(...)`."
            raise self.fail(what, remedy, RIGHT)
        return C(inferred.index)

    def rule_output(self, s: Output) -> None:
        """Rule Output: y : H(n) and an input v : G(n) that is not used elsewhere give v^T y / sqrt(n)."""
        shapes = {self.check_term(t) for t in s.terms}
        if len(shapes) > 1:
            raise self.fail(
                f"terms of one output have index shapes {' and '.join(map(str, sorted(shapes)))}",
                "Rule Output: the terms of a sum are added member by member, so their shapes are equal. "
                "Write an Output line for each.",
                RIGHT,
            )

    def check_term(self, t: Term) -> Index:
        """Check a term of an output, and return its index shape."""
        v, y = self.lookup(t.readout), self.lookup(t.operand)
        source = self.program.definitions.get(t.readout)
        rule = "Rule Output: v^T x / sqrt(n) with an input v :: G(n) ~ N(0, var) and a vector x :: H(n)."
        if not isinstance(v, G) or not isinstance(source, Input) or not isinstance(source.law, Normal):
            raise self.fail(
                f"the readout `{t.readout}` is not an input with a law N(0, var)",
                f"{rule} {self.origin(t.readout)}. Declare a readout: `Input v :: G({t.width}) ~ N(0, 1)`.",
                t.readout,
            )
        if not isinstance(y, H):
            what = f"Output needs a vector, but `{t.operand}` is {_article(y)}"
            remedy = f"{rule} {self.origin(t.operand)}."
            raise self.fail(what, remedy, _operand(t.operand))
        if v.width != y.width:
            what = f"the readout `{t.readout}` has width {v.width}, but `{t.operand}` has width {y.width}"
            remedy = f"{rule} Declare a readout `:: G({y.width})`."
            raise self.fail(what, remedy, _operand(t.operand))
        if y.width != t.width:
            what = f"`{t.operand}` has width {y.width}, but the root is of {t.width}"
            remedy = f"{rule} Write `/ sqrt({y.width})`."
            raise self.fail(what, remedy, re.compile(rf"sqrt\s*\(\s*({t.width})\b"))
        pair = f"`{t.readout}` has index shape {v.index} and `{t.operand}` {y.index}"
        self.check_aligned(t.aligned, pair, v.index, y.index, _operand(t.operand))
        return v.index[t.aligned :] + y.index[t.aligned :]

    def check_readouts(self) -> None:
        """Check that readouts occur only in outputs, have mean 0, and are independent of other inputs."""
        readouts = self.program.readouts
        for s in self.program.statements:
            self.statement = s
            names = [t.operand for t in s.terms] if isinstance(s, Output) else used_by(s)
            if isinstance(s, Input) and isinstance(s.law, Normal) and s.name in readouts:
                self.check_readout_law(s, s.law, readouts)
            elif name := next((name for name in names if name in readouts), None):
                raise self.fail(
                    f"the readout `{name}` is used elsewhere",
                    "Rule Output: the output is Gaussian because v is independent of the rest of the "
                    "program. Declare a second input for this use.",
                    _operand(name),
                    name,
                )

    def check_readout_law(self, s: Input, law: Normal, readouts: frozenset[str]) -> None:
        if np.any(np.asarray(law.mean)):
            raise self.fail(
                f"the readout `{s.name}` has a mean",
                "Rule Output: v ~ N(0, var). With a mean m the output grows like m sqrt(n). Write "
                "`N(0, ...)`.",
                re.compile(r"N\s*\(\s*(\[[^\]]*\]|[^,]*?)\s*,"),
            )
        outside = [name for name, _ in law.cross if name not in readouts]
        if outside:
            raise self.fail(
                f"the readout `{s.name}` is correlated with `{outside[0]}`",
                "Rule Output: v is independent of every input but other readouts. Leave the covariance out.",
                re.compile(rf",\s*({outside[0]})\s*:"),
            )

    # Names and expressions

    def lookup(self, name: str) -> Type:
        """Return the type of an earlier variable, or raise the error that explains why there is none."""
        if name in self.types:
            return self.types[name]
        later = self.program.definitions.get(name)
        if name in self.program.data:
            raise self.fail(
                f"`{name}` is data, not a variable",
                "Rule Embed: data enter through a matrix with finitely many columns: "
                f"`Input U{name} :: G(n) ~ MatMul(U, {name})`.",
                _operand(name),
                name,
            )
        straight = "A program is straight-line: no loops and no cycles."
        unrolled = "recurrent network is unrolled, one variable per step."
        if later is self.statement:
            raise self.fail(f"`{name}` is used in its own definition", f"{straight} A {unrolled}", name)
        if later is not None:
            what = f"`{name}` is used before it is defined ({place_of(self.program, later).title})"
            raise self.fail(what, f"{straight} Put the definition first; a {unrolled}", name)
        remedy = "Every name is defined on a line above its use, or declared as an Input."
        if close := difflib.get_close_matches(name, [*self.types, *self.program.data], 1):
            remedy += f" Did you mean `{close[0]}`?"
        raise self.fail(f"`{name}` is not defined", remedy, name)

    def infer(self, expr: Expr) -> Type:
        return infer(expr, self.known, self.refuse, self.inferred)

    def known(self, name: str) -> Type:
        if name in self.program.data:
            return K(self.program.data[name].shape)
        type_ = self.lookup(name)
        if isinstance(type_, A):
            raise self.fail(
                f"`{name}` is a matrix inside an expression",
                "Rule MatMul: a matrix acts on a vector, on a line of its own: "
                f"`g := MatMul({name}, x)`; then use `g` here.",
                name,
            )
        return type_

    def refuse(self, what: str, remedy: str, node: Expr) -> NetsorError:
        names = [node.op.name] if isinstance(node, Apply) else []
        return self.fail(f"{type(self.statement).__name__}: {what}", remedy, _spelling(node), *names)

    def check_controlled(self) -> None:
        """Check the Master Theorem's condition on each Nonlin and Moment: the function is controlled."""
        problem = growth_problem(self.program, self.types)
        if problem is None:
            return
        s, words = problem
        body, written = shown_short(Unwinder(self.program)(s.expr), 200), shown_short(s.expr, 200)
        phi = f"In terms of G-vars it is `{body}`. " if body != written and len(body) < 80 else ""
        raise self.fail_at(
            s,
            f"{type(s).__name__}: the function is not controlled",
            f"{phi}{words} The Master Theorem needs |phi(x)| <= exp(C |x|^(2 - eps) + c); beyond that "
            "the expectation diverges. Use a function that grows more slowly.",
            _spelling(s.expr),
        )


def _operand(name: str) -> re.Pattern[str]:
    """A pattern for the second argument of MatMul, or the vector in an Output."""
    return re.compile(rf"(?:MatMul\s*\([^,]*,|\^\s*T)\s*({name})(?!\w)")


def _article(type_: Type) -> str:
    return {A: "an A-var", G: "a G-var", H: "an H-var", C: "a C-var"}[type(type_)] + f" of type {type_}"
