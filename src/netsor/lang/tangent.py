"""The tangent of a program: its derivative along a random direction of its parameters. It is a program again.

| statement                          | tangent                                                             |
| ---------------------------------- | ------------------------------------------------------------------- |
| `Input W :: A(n, n) ~ N(0, var/n)` | `d_W ~ N(0, rate*var/n)`, its direction; `t_W ~ N(0, var/n)`, fresh |
| `Input b :: G(n) ~ N(mean, cov)`   | `d_b ~ N(0, rate*cov)`                                              |
| `Input Ux :: G(n) ~ MatMul(U, x)`  | `d_Ux ~ MatMul(d_U, x)`                                             |
| `g := MatMul(W, h)`                | `d_g := MatMul(d_W, h) + MatMul(t_W, d_h)`                          |
| `h := g1 + 2*g2`, index maps       | the same linear map of the tangents                                 |
| `y := phi(x1, x2; c)`              | `d_y := phi_1(x1, x2; c)*d_x1 + phi_2(x1, x2; c)*d_x2`              |
| `c := Moment(psi(x))`              | nothing: in the limit it does not move                              |
| `Output v^T y / sqrt(n)`           | `Output d_v^T y / sqrt(n) + v^T d_y / sqrt(n)`                      |

Given the weights, the output of this program is Gaussian, and its covariance is the tangent kernel (NTK)
Theta(x, x') = sum over parameters p of rate_p (df/dp)(df'/dp). So the limit of Theta is the ordinary kernel
of the tangent program. Why a fresh copy t_W may stand for W, and why C-vars do not move: all tangents are
centred and independent of all g, as Cov(W h, W d_h') = var E[h d_h'] = var sum_i E[h phi_i'] E[d_x_i'] = 0.
At finite width both are true only nearly: `tied` and `scalars` keep W itself and the tangents of C-vars.

Jacot et al. 2018, "Neural Tangent Kernel"; Yang 2020, "Tensor Programs II".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from netsor.errors import NetsorError, TangentError
from netsor.lang.batchnorm import batchnorm_terms, kept, written_out
from netsor.lang.blocks import broadcast_index
from netsor.lang.check import Inferred, as_inferred, infer, place_of
from netsor.lang.controlled import Unwinder
from netsor.lang.derivatives import by_differences, directional, partial_of
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees
from netsor.lang.functions import MIXINGS, add, d_batchnorm, mul, neg
from netsor.lang.index_maps import at, concat, contract, mean, stack, sum_
from netsor.lang.lower import drop_dead
from netsor.lang.normal_form import SELECTIONS, NormalForm, Term, Terms
from netsor.lang.ops import Function, IndexMap, Mixing, axes_of
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
    used_by,
)
from netsor.lang.rates import Rates, readouts_of_constants
from netsor.lang.symbols import partial_derivatives
from netsor.lang.types import A, Index

__all__ = ["Tangent", "tangent"]

ZERO, ONE = Const(0.0), Const(1.0)
MOST_OPENED = 2**10  # terms of a tangent that is written out; a longer one stays a name


@dataclass(frozen=True)
class Tangent:
    """A tangent program, and what its inputs have to do with those of the program that it was made from.

    source      that program
    rates       of its parameters
    directions  for each parameter that moves, its direction
    copies      for each matrix, the fresh copy that stands for it
    remarks     what derivatives were taken to be, where there is something to say
    differences whether there are derivatives of users' functions by differences
    """

    program: Program
    source: Program
    rates: Rates
    directions: Mapping[str, str]
    copies: Mapping[str, str]
    remarks: tuple[str, ...]
    differences: bool = False

    def variances(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Variances of inputs of the tangent program, from those of parameters and from rates (`W.rate`)."""
        found: dict[str, Any] = {}
        readouts = {t.readout for s in self.source.outputs for t in s.terms}
        for s in self.source.inputs:
            var, rate = given.get(s.name), given.get(f"{s.name}.rate")
            if var is not None:
                found |= dict.fromkeys((s.name, self.copies.get(s.name, s.name)), var)
            if (var is not None or rate is not None) and s.name in self.directions:
                rates = self.rates if rate is None else replace(self.rates, of={s.name: rate})
                found[self.directions[s.name]] = rates.spread(s, s.name in readouts, var)
        return found


def tangent(
    program: Program, rates: Any = None, *, tied: bool = False, scalars: bool = False, coarser: bool = False
) -> Tangent:
    """The tangent program; see the module's first lines.

    rates    of the parameters by name, or a convention: see `netsor.lang.rates`
    tied     W itself in place of its fresh copy, as at finite width
    scalars  with the tangents of C-vars, which vanish in the limit
    coarser  with differences over twice the step, to see their error
    """
    program.check()
    return _Tangents(program, Rates.given(rates), tied, scalars, coarser).tangent()


class _Tangents:
    """The statements of a tangent program, one rule after the other."""

    def __init__(self, program: Program, rates: Rates, tied: bool, scalars: bool, coarser: bool) -> None:
        self.program, self.tied, self.scalars, self.coarser = program, tied, scalars, coarser
        self.differences = False
        self.rates = replace(rates, biases=rates.biases | readouts_of_constants(program))
        self.readouts = {t.readout for s in program.outputs for t in s.terms}
        self.statements: list[Statement] = []
        self.statement: Any = None
        self.taken = {*program.data, *program.definitions}
        self.directions: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.dots: dict[str, str] = {}  # the tangent of each variable that has one
        self.sums: dict[Expr, Expr] = {}  # tangents of matrix products, written out
        self.insides: dict[Expr, Terms] = {}  # tangents of Nonlins
        self.written: dict[Expr, Terms | None] = {}  # the same with those inside written out
        self.summed: set[Expr] = set()  # those with a sum over axes inside
        self.terms: dict[Expr, Terms] = {}
        self.remarks: dict[str, None] = {}
        self.like: dict[str, str] = {}  # for each tangent the variable that has its type
        self.inferred: dict[Expr, Inferred] = {}
        self.form = NormalForm(self.index, self.is_constant, Unwinder(program))

    def tangent(self) -> Tangent:
        known = set(self.rates.of) - {s.name for s in self.program.inputs}
        if known:
            raise TangentError(
                f"there is no parameter `{min(known)}`",
                remedy=f"Rates belong to inputs: {', '.join(s.name for s in self.program.inputs)}.",
            )
        for s in self.program.statements:
            self.statement = s
            self.visit(s)
        made = Program(tuple(self.statements), self.program.data, self.program.header, self.program.notes)
        if made.outputs:
            made = _without_unread(made, self.readouts)
            used = {name for s in self.program.statements for name in used_by(s)}
            made = drop_dead(made, used | (self.taken - set(self.program.definitions)))
            live = {name for s in made.statements for name in used_by(s)}
            made = replace(made, data={name: x for name, x in made.data.items() if name in live})
        names = {s.name for s in made.inputs}
        return Tangent(
            _typed(made),
            self.program,
            self.rates,
            {p: d for p, d in self.directions.items() if d in names},
            {p: t for p, t in self.copies.items() if t in names},
            tuple(self.remarks),
            self.differences,
        )

    # Statements

    def visit(self, s: Statement) -> None:
        if not isinstance(s, Output):
            self.statements.append(s)
        match s:
            case Input(law=Embedding(matrix) as law):
                if matrix in self.directions:
                    name = self.new(s.name)
                    self.write(Input(name, s.type, replace(law, matrix=self.directions[matrix])))
                    self.dots[s.name], self.like[name] = name, s.name
            case Input():
                self.visit_input(s)
            case MatMul():
                self.visit_matmul(s)
            case LinComb() | Nonlin():
                self.assign(s, type(s), self.derivative(s.expr))
            case Moment() | Scalar():
                if self.scalars:
                    self.visit_scalar(s)
            case Output():
                self.visit_output(s)

    def visit_input(self, s: Input) -> None:
        """A direction for each parameter that moves, and a fresh copy of each matrix of two widths."""
        readout = s.name in self.readouts
        law = self.rates.law(s, self.directions, readout)
        if (
            isinstance(law, MatrixLaw)
            and not self.tied
            and isinstance(s.type, A)
            and isinstance(s.type.cols, str)
        ):
            self.copies[s.name] = self.new(s.name, "t_")
            self.write(replace(s, name=self.copies[s.name]))
        if np.any(np.asarray(law.var if isinstance(law, MatrixLaw) else law.cov)):
            name = self.directions[s.name] = self.new(s.name)
            self.write(Input(name, s.type, law))
            if isinstance(law, Normal) and not readout:
                self.dots[s.name], self.like[name] = name, s.name

    def visit_matmul(self, s: MatMul) -> None:
        """W h moves with W and with h."""
        direction, operand = self.directions.get(s.matrix), self.dots.get(s.operand)
        parts = []
        if direction is not None:
            parts.append((direction, s.operand))
        if operand is not None:
            parts.append((self.copies.get(s.matrix, s.matrix), operand))
        names = [self.new(s.name, end=end) for end in ("_a", "_b")] if len(parts) == 2 else []
        for name, (matrix, vector) in zip(names or [self.new(s.name)], parts, strict=False):
            self.write(MatMul(name, matrix, vector, s.aligned))
            self.like[name] = s.name
            self.dots[s.name] = name
        if names:
            total = Apply(add, (Ref(names[0]), Ref(names[1])))
            self.assign(s, LinComb, (Term(total),))
            self.sums[Ref(self.dots[s.name])] = total

    def visit_scalar(self, s: Moment | Scalar) -> None:
        """The average of a tangent; where no vector moves, it is a function of C-vars."""
        terms = self.derivative(s.expr)
        vector = bool(terms) and self.inference(self.form.expr(terms)).width is not None
        self.assign(s, Moment if vector else Scalar, terms)

    def visit_output(self, s: Output) -> None:
        terms = []
        for t in s.terms:
            if t.readout in self.directions:
                terms.append(replace(t, readout=self.directions[t.readout]))
            if t.operand in self.dots:
                terms.append(replace(t, operand=self.dots[t.operand]))
        if not terms:  # all is frozen, and the tangent is 0
            t = s.terms[0]
            readout = self.program.definitions[t.readout]
            assert isinstance(readout, Input)
            self.directions[t.readout] = self.new(t.readout)
            self.write(Input(self.directions[t.readout], readout.type, Normal(0.0, 0.0)))
            terms = [replace(t, readout=self.directions[t.readout])]
        self.write(Output(tuple(terms)))

    def assign(self, s: MatMul | LinComb | Nonlin | Moment | Scalar, rule: Any, terms: Terms) -> None:
        """`d_x := ...` for a tangent that is not 0."""
        if not terms:
            return
        name, index = self.new(s.name), self.program.types[s.name].index
        self.like[name] = s.name
        self.dots[s.name] = name
        if rule is Nonlin:
            self.insides[Ref(name)] = terms
            if any(t.axes or t.form in self.summed for t in terms):
                self.summed.add(Ref(name))
        self.write(rule(name, self.form.spread(self.form.expr(terms), index)))

    def write(self, s: Any) -> None:
        self.statements.append(replace(s, place=self.statement.place, notes=()))

    def new(self, name: str, prefix: str = "d_", end: str = "") -> str:
        made = f"{prefix}{name}{end}"
        while made in self.taken:
            made += "_"
        self.taken.add(made)
        return made

    # Expressions

    def derivative(self, expr: Expr) -> Terms:
        """The tangent of an expression; no terms are 0."""
        for node in subtrees(expr, self.terms):
            self.terms[node] = self.rule(node)
        return self.terms[expr]

    def rule(self, e: Expr) -> Terms:
        match e:
            case Ref(name) if name in self.dots:
                return (Term(Ref(self.dots[name])),)
            case Apply(op, args) if any(self.terms[a] for a in args):
                if isinstance(op, Function):
                    return self.of_function(e, op)
                if isinstance(op, IndexMap):
                    return self.of_map(e, op)
                assert isinstance(op, Mixing)
                return self.of_mixing(e, op)
        return ()

    def of_function(self, e: Apply, op: Function) -> Terms:
        """sum_i phi_i(x) d_x_i."""
        total, index = (), self.index(e)
        for x, slope in zip(e.args, self.slopes(e, op), strict=True):
            terms = self.open_sums(self.terms[x])
            if terms and slope == ZERO:
                if op.about(e.options).jumps:
                    self.remark(
                        f"the derivative of {op.name} is 0 almost everywhere: what reaches an output through "
                        "it alone has no part in the tangent kernel"
                    )
            elif terms:
                if any(t.axes for t in terms):
                    terms = self.form.widened(terms, self.index(x), index)
                total = self.form.plus(total, self.form.times(slope, terms, index))
        return self.form.widened(total, self.index(self.form.expr(total)), index) if total else ()

    def slopes(self, e: Apply, op: Function) -> tuple[Expr, ...]:
        if op.about(e.options).derivative is not None:
            return partial_derivatives(op, e.args, e.options)
        found = [partial_of(op, k, self.coarser) for k in range(op.arity)]
        self.remark_differences(op, *found)
        return tuple(Apply(f, e.args, e.attrs) for f in found)

    def of_map(self, e: Apply, op: IndexMap) -> Terms:
        """The same map of the tangents."""
        if op is contract:
            weights, x = e.args
            moved = self.terms[weights] and (Term(Apply(contract, (self.form.expr(self.terms[weights]), x))),)
            return self.form.plus(self.form.mapped(e, self.terms[x], self.written_out), moved)
        if op in (stack, concat):
            return self.joined(e, op)
        (x,), attrs = e.args, e.attrs
        index, terms = self.index(x), self.terms[x]
        if op in SELECTIONS:
            opened = self.opened(terms)
            whole = tuple(t for t in opened if _is_batchnorm(t.form))
            rest = self.form.selected(op, attrs, tuple(t for t in opened if t not in whole), index)
            return self.form.plus(rest, (Term(Apply(op, (self.form.expr(whole),), attrs)),) if whole else ())
        if op in (sum_, mean) and not all(t.is_pure for t in self.opened(terms)):
            axes = axes_of(e.options["axis"], len(index))
            found = self.form.summed(self.opened(terms), axes, index)
            count = prod(index[a] for a in axes) if op is mean else 1
            return self.form.times(Const(1 / count), found, self.index(e))
        return self.form.mapped(e, terms, self.written_out)

    def joined(self, e: Apply, op: IndexMap) -> Terms:
        """Tangents side by side; of products, coefficients and forms each by themselves."""
        opened = [self.opened(self.terms[x]) for x in e.args]
        whole = [self.form.expr(self.terms[x]) if self.terms[x] else None for x in e.args]
        if all(len(terms) == 1 and terms[0].coef is not None and not terms[0].axes for terms in opened):
            shapes = [self.index(x) for x in e.args]
            coef, form = (
                Apply(
                    op,
                    tuple(self.form.spread(part, n) for part, n in zip(parts, shapes, strict=True)),
                    e.attrs,
                )
                for parts in zip(*((terms[0].coef, terms[0].form) for terms in opened), strict=True)
            )
            return (Term(form, coef),)
        there = next(d for d in whole if d is not None)
        parts = (
            self.form.spread(d, self.index(x)) if d is not None else self.nothing(there, self.index(x))
            for d, x in zip(whole, e.args, strict=True)
        )
        return (Term(Apply(op, tuple(parts), e.attrs)),)

    def nothing(self, like: Expr, index: Index) -> Expr:
        """A tangent that is 0, of some index shape."""
        first = Apply(at, (like,), (("index", (0,) * len(self.index(like))),)) if self.index(like) else like
        return self.form.spread(Apply(mul, (ZERO, first)), index)

    def of_mixing(self, e: Apply, op: Mixing) -> Terms:
        """sum_j J_ij(x) d_x_j with the Jacobian J of the function of several members."""
        if "axis" not in e.options:
            return self.of_members(e, op)
        x = e.args[0]
        index, terms = self.index(x), self.opened(self.terms[x])
        axes = tuple(sorted(axes_of(e.options["axis"], len(index))))
        if op.user:
            slope = directional(op, self.coarser)
            self.remark_differences(op, slope)
            return (Term(Apply(slope, (x, self.form.expr(terms)), e.attrs)),)
        match op.name:
            case "max" | "min":
                chosen = Apply(MIXINGS["argmax"], (x if op.name == "max" else Apply(neg, (x,)),), e.attrs)
                return self.form.summed(self.form.times(chosen, terms, index), axes, index)
            case "batchnorm":
                return self.of_batchnorm(e, terms, axes)
            case "d_batchnorm":
                return self.derivative(written_out(self.form, e))
            case "softmax":  # y_i (d_x_i - sum_j y_j d_x_j)
                inner = Apply(mul, (e, self.form.expr(terms)))
                total = kept(Apply(sum_, (inner,), (("axis", axes),)), axes, len(index))
                return self.form.plus(
                    self.form.times(e, terms, index), (Term(Apply(neg, (Apply(mul, (e, total)),))),)
                )
        return ()  # argmax, which jumps

    def of_members(self, e: Apply, op: Mixing) -> Terms:
        """`op.pick(x1, x2, ...)` is a component of the same function of a stack."""
        index = self.index(e)
        members = Apply(stack, tuple(self.form.spread(x, index) for x in e.args), (("axis", 0),))
        whole = Apply(op, (members,), (*e.attrs, ("axis", (0,))))
        return self.derivative(whole if op.reduces else Apply(at, (whole,), (("index", (e.pick,)),)))

    def of_batchnorm(self, e: Apply, terms: Terms, axes: tuple[int, ...]) -> Terms:
        """y = (x - mean x) / s:  d_y_i = (d_x_i - mean_j d_x_j) / s - y_i mean_j(y_j d_x_j) / s."""
        (x,), eps = e.args, e.options.get("eps", 0.0)
        count = prod(self.index(x)[a] for a in axes)
        if eps == 0 and count <= 3:
            if count < 3:  # a sign, or nothing
                return ()
            raise TangentError(
                "batchnorm over 3 members has no tangent kernel",
                place=place_of(self.program, self.statement),
                remedy="Its derivative is as large as 1/|x - mean|, whose square has no expectation for 3 "
                "members. Take a batch of 4 or more, or an eps > 0.",
            )
        if eps == 0 and all(t.is_pure for t in terms):
            return (Term(Apply(d_batchnorm, (x, self.form.expr(terms)), e.attrs)),)
        return batchnorm_terms(self.form, e, terms)

    # Terms

    def opened(self, terms: Terms) -> Terms:
        """The terms with tangents of Nonlins written out, but for those that are too long."""
        found = ()
        for t in terms:
            inside = None if t.axes else self.inside(t.form)
            if inside is None:
                found = self.form.plus(found, (t,))
            elif t.coef is None:
                found = self.form.plus(found, inside)
            else:
                own = self.index(t.form)
                index = broadcast_index(own, self.index(t.coef))
                inside = self.form.widened(inside, own, index)
                found = self.form.plus(found, self.form.times(t.coef, inside, index))
        return found

    def inside(self, form: Expr) -> Terms | None:
        """The tangent of a Nonlin written out; None if it is too long, or the form is another one."""
        path = [form]
        while path:
            inner = {t.form for t in self.insides.get(path[-1], ()) if not t.axes}
            unknown = [e for e in inner if e in self.insides and e not in self.written]
            path += unknown
            if not unknown:
                name = path.pop()
                if name in self.insides and name not in self.written:
                    terms = self.opened(self.insides[name])
                    self.written[name] = terms if len(terms) <= MOST_OPENED else None
        return self.written.get(form)

    def open_sums(self, terms: Terms) -> Terms:
        """The same, where a coefficient must go into a sum over axes."""
        if not any(t.axes or t.form in self.summed for t in terms):
            return terms
        opened = self.opened(terms)
        return opened if any(t.axes for t in opened) else terms

    def written_out(self, form: Expr) -> Expr:
        """A tangent of a matrix product as the sum that it is."""
        return self.sums.get(form, form)

    def remark_differences(self, op: Function | Mixing, *slopes: Function | Mixing) -> None:
        if any(map(by_differences, slopes)):
            self.differences = True
            self.remark(
                f"the derivative of {op.name} is by differences, with an error of about 1e-12 if it varies "
                "over lengths of 0.1 and more; what a step twice as long changes counts as error"
            )

    def remark(self, text: str) -> None:
        self.remarks[text] = None

    # Kinds and shapes

    def is_constant(self, e: Expr) -> bool:
        return self.inference(e).width is None

    def index(self, e: Expr) -> Index:
        return self.inference(e).index

    def inference(self, e: Expr) -> Inferred:
        return infer(e, self.known, _impossible, self.inferred)

    def known(self, name: str) -> Inferred:
        if name in self.program.data:
            return Inferred("K", self.program.data[name].shape)
        return as_inferred(self.program.types[self.like.get(name, name)])


def _is_batchnorm(form: Expr) -> bool:
    """Whether it is a derivative of batchnorm: it is no form, and has an integral as it stands."""
    return any(isinstance(e, Apply) and e.op is d_batchnorm for e in subtrees(form))


def _impossible(what: str, *_: Any) -> NetsorError:
    return NetsorError(f"a tangent is ill-typed: {what}")


def _without_unread(program: Program, readouts: set[str]) -> Program:
    """Covariances with readouts that no output reads any more are left out."""
    unread = readouts - {t.readout for s in program.outputs for t in s.terms}
    statements = []
    for s in program.statements:
        if isinstance(s, Input) and isinstance(s.law, Normal):
            cross = tuple((name, value) for name, value in s.law.cross if name not in unread)
            s = replace(s, law=replace(s.law, cross=cross))
        statements.append(s)
    return replace(program, statements=tuple(statements))


def _typed(program: Program) -> Program:
    """The program with the types of all variables written down; it is checked."""
    types, statements = program.types, []
    for s in program.statements:
        typed = isinstance(s, MatMul | LinComb | Nonlin | Moment | Scalar)
        statements.append(replace(s, type=types[s.name]) if typed else s)
    return replace(program, statements=tuple(statements))
