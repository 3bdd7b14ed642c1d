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
of the tangent program.

In the limit all tangents are centred and independent of all G-vars g:
Cov(W h, W d_h') = var E[h d_h'] = var sum_i E[h phi_i'] E[d_x_i'] = 0.
Therefore a fresh copy t_W may replace W, and C-vars have no tangents. At finite width both hold only
approximately: `tied` keeps W itself, and `scalars` keeps the tangents of C-vars.

Jacot et al. 2018, "Neural Tangent Kernel"; Yang 2020, "Tensor Programs II".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from netsor.errors import TangentError
from netsor.lang.blocks import broadcast_index
from netsor.lang.controlled import Unwinder
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees
from netsor.lang.functions import MIXINGS, add, d_batchnorm, mul, neg
from netsor.lang.index_maps import SELECTIONS, at, concat, contract, mean, stack, sum_
from netsor.lang.learning_rates import GivenRates, Rates, readouts_of_constants
from netsor.lang.lower import drop_dead
from netsor.lang.numerical_derivatives import by_differences, directional, partial_of
from netsor.lang.ops import Function, IndexMap, Mixing, axes_of
from netsor.lang.program import (
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
    used_by,
)
from netsor.lang.symbols import partial_derivatives
from netsor.lang.tangent_terms import (
    NormalForm,
    TangentTerm,
    TangentTerms,
    batchnorm_terms,
    kept,
    written_out,
)
from netsor.lang.type_checker import place_of
from netsor.lang.types import A, H, Index, Type, infer, type_of


@dataclass(frozen=True)
class Tangent:
    """A tangent program, and how its inputs relate to those of the source program."""

    program: Program
    source: Program
    rates: Rates
    directions: Mapping[str, str]  # d_p for each parameter p with a learning rate above 0
    copies: Mapping[str, str]  # t_W for each matrix W that has a fresh copy
    remarks: tuple[str, ...]  # assumptions about derivatives that the user should know
    differences: bool = False  # whether finite differences replace derivatives of users' functions

    def variances(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Translate variances (`W`) and rates (`W.rate`) to variances of the tangent program's inputs."""
        variances: dict[str, Any] = {}
        for s in self.source.inputs:
            var, rate = given.get(s.name), given.get(f"{s.name}.rate")
            if var is not None:
                variances |= dict.fromkeys((s.name, self.copies.get(s.name, s.name)), var)
            if (var is not None or rate is not None) and s.name in self.directions:
                rates = self.rates if rate is None else replace(self.rates, of={s.name: rate})
                variances[self.directions[s.name]] = rates.spread(s, s.name in self.source.readouts, var)
        return variances


def tangent(
    program: Program,
    rates: GivenRates = None,
    *,
    tied: bool = False,
    scalars: bool = False,
    coarser: bool = False,
) -> Tangent:
    """Do what `Program.tangent` does; `coarser` doubles the step of differences, to estimate their error."""
    program.check()
    return _Tangents(program, Rates.given(rates), tied, scalars, coarser).tangent()


class _Tangents:
    """Write the statements of a tangent program; one method for each rule of the language."""

    def __init__(self, program: Program, rates: Rates, tied: bool, scalars: bool, coarser: bool) -> None:
        self.program, self.tied, self.scalars, self.coarser = program, tied, scalars, coarser
        self.differences = False
        # The readout of a constant vector is a random number that is added to the output: it acts as a bias.
        self.rates = replace(rates, biases=rates.biases | readouts_of_constants(program))
        self.statements: list[Statement] = []
        self.statement: Any = None
        self.taken = {*program.data, *program.definitions}
        self.directions: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.dots: dict[str, str] = {}  # x -> d_x; variables without an entry have tangent 0
        self.sums: dict[Expr, Expr] = {}  # d_g -> MatMul(d_W, h) + MatMul(t_W, d_h)
        self.unopened: dict[Expr, TangentTerms] = {}  # d_y of a Nonlin y -> its terms
        self.insides: dict[Expr, TangentTerms] = {}  # the same, with d_x of inner Nonlins substituted
        self.summed: set[Expr] = set()  # the d_y that contain sums over index axes
        self.terms: dict[Expr, TangentTerms] = {}  # expression -> its tangent
        self.remarks: dict[str, None] = {}  # a dict is an ordered set
        self.like: dict[str, str] = {}  # d_x -> x, which has the same type
        self.inferred: dict[Expr, Type] = {}
        self.form = NormalForm(self.index, lambda e: not isinstance(self.type(e), H), Unwinder(program))

    def tangent(self) -> Tangent:
        """Write all statements, drop what no output needs, and check the result."""
        unknown = set(self.rates.of) - {s.name for s in self.program.inputs}
        if unknown:
            what = f"there is no parameter `{min(unknown)}`"
            remedy = f"Rates belong to inputs: {', '.join(s.name for s in self.program.inputs)}."
            raise TangentError(what, remedy=remedy)
        for s in self.program.statements:
            self.statement = s
            self.visit(s)
        derived = Program(tuple(self.statements), self.program.data, self.program.header, self.program.notes)
        if derived.outputs:
            # The source's unused variables keep their statements: only what the tangent made idle is dropped.
            derived = _without_unread(derived, self.program.readouts)
            used = {name for s in self.program.statements for name in used_by(s)}
            derived = drop_dead(derived, used | (self.taken - self.program.definitions.keys()))
        names, types = {s.name for s in derived.inputs}, derived.types

        def typed(s: Statement) -> Statement:
            return replace(s, type=types[s.name]) if isinstance(s, MatMul | Assignment) else s

        return Tangent(
            replace(derived, statements=tuple(map(typed, derived.statements))),
            self.program,
            self.rates,
            {p: d for p, d in self.directions.items() if d in names},
            {p: t for p, t in self.copies.items() if t in names},
            tuple(self.remarks),
            self.differences,
        )

    # Statements

    def visit(self, s: Statement) -> None:
        """Keep a statement, because derivatives depend on its variable, and write its tangent after it."""
        if not isinstance(s, Output):
            self.statements.append(s)
        match s:
            case Input(law=Embedding(matrix) as law):
                if matrix in self.directions:
                    self.write(Input(self.new(s.name), s.type, replace(law, matrix=self.directions[matrix])))
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
        """Declare d_p for a parameter of rate > 0, and t_W for a matrix with two infinite dimensions."""
        law = self.rates.law(s, self.directions, s.name in self.program.readouts)
        if isinstance(s.type, A) and isinstance(s.type.cols, str) and not self.tied:
            self.copies[s.name] = self.new(s.name, "t_")
            self.write(replace(s, name=self.copies[s.name]))
        if np.any(np.asarray(law.var if isinstance(law, MatrixLaw) else law.cov)):
            self.directions[s.name] = self.new(s.name)
            self.write(Input(self.directions[s.name], s.type, law))

    def visit_matmul(self, s: MatMul) -> None:
        """d(W h) = d_W h + t_W d_h."""
        direction, operand = self.directions.get(s.matrix), self.dots.get(s.operand)
        parts = [] if direction is None else [(direction, s.operand)]
        parts += [] if operand is None else [(self.copies.get(s.matrix, s.matrix), operand)]
        names = []
        for (matrix, vector), end in zip(parts, ("_a", "_b") if len(parts) == 2 else ("",), strict=False):
            names.append(Ref(self.new(s.name, end=end)))
            self.write(MatMul(names[-1].name, matrix, vector, s.aligned))
        if len(names) == 2:
            total = Apply(add, tuple(names))
            self.assign(s, LinComb, (TangentTerm(total),))
            self.sums[Ref(self.dots[s.name])] = total

    def visit_scalar(self, s: Moment | Scalar) -> None:
        """Write the Moment of a tangent, or a Scalar if no vector occurs in it."""
        terms = self.derivative(s.expr)
        vector = bool(terms) and isinstance(self.type(self.form.expr(terms)), H)
        self.assign(s, Moment if vector else Scalar, terms)

    def visit_output(self, s: Output) -> None:
        """d(v^T y) = d_v^T y + v^T d_y."""
        terms = []
        for t in s.terms:
            if t.readout in self.directions:
                terms.append(replace(t, readout=self.directions[t.readout]))
            if t.operand in self.dots:
                terms.append(replace(t, operand=self.dots[t.operand]))
        # An Output needs a term. If no parameter has a rate, read y with a direction of variance 0.
        if not terms:
            t = s.terms[0]
            readout = self.program.definitions[t.readout]
            assert isinstance(readout, Input)
            self.directions[t.readout] = self.new(t.readout)
            self.write(Input(self.directions[t.readout], readout.type, Normal(0.0, 0.0)))
            terms = [replace(t, readout=self.directions[t.readout])]
        self.write(Output(tuple(terms)))

    def assign(self, s: MatMul | Assignment, rule: Any, terms: TangentTerms) -> None:
        """Write `d_x := ...`, unless the tangent is 0."""
        if not terms:
            return
        name, index = self.new(s.name), self.program.types[s.name].index
        if rule is Nonlin:
            self.unopened[Ref(name)] = terms
            if any(t.axes or t.form in self.summed for t in terms):
                self.summed.add(Ref(name))
        self.write(rule(name, self.form.spread(self.form.expr(terms), index)))

    def write(self, s: Any) -> None:
        """Append a statement; errors about it point at the line of the source statement."""
        self.statements.append(replace(s, place=self.statement.place, notes=()))

    def new(self, name: str, prefix: str = "d_", end: str = "") -> str:
        """Return an unused name for the tangent d_x or a copy t_x of x, with underscores where needed."""
        fresh = f"{prefix}{name}{end}"
        while fresh in self.taken:
            fresh += "_"
        self.taken.add(fresh)
        if prefix == "d_":
            self.dots[name], self.like[fresh] = fresh, name
        return fresh

    # Expressions

    def derivative(self, expr: Expr) -> TangentTerms:
        """Return the tangent of an expression; no terms stand for 0."""
        for node in subtrees(expr, self.terms):
            self.terms[node] = self.rule(node)
        return self.terms[expr]

    def rule(self, e: Expr) -> TangentTerms:
        """Apply the chain rule at one node; `self.terms` already holds the tangents of its arguments."""
        match e:
            case Ref(name) if name in self.dots:
                return (TangentTerm(Ref(self.dots[name])),)
            case Apply(op, args) if any(self.terms[a] for a in args):
                rules = {Function: self.of_function, IndexMap: self.of_map, Mixing: self.of_mixing}
                return rules[type(op)](e, op)
        return ()  # numbers, data and variables that no parameter reaches

    def of_function(self, e: Apply, op: Function) -> TangentTerms:
        """sum_i phi_i(x) d_x_i."""
        # Arguments and result broadcast against each other, so terms are widened to the shape of the result.
        total, index = (), self.index(e)
        for x, slope in zip(e.args, self.slopes(e, op), strict=True):
            terms = self.open_sums(self.terms[x])
            # A step function has derivative 0 almost everywhere; its jumps are lost without a trace.
            if terms and slope == Const(0.0):
                if op.about(e.options).jumps:
                    self.remarks[
                        f"the derivative of {op.name} is 0 almost everywhere: what reaches an output through "
                        "it alone has no part in the tangent kernel"
                    ] = None
            elif terms:
                if any(t.axes for t in terms):
                    terms = self.form.widened(terms, self.index(x), index)
                total = self.form.plus(total, self.form.times(slope, terms, index))
        return self.form.widened(total, self.index(self.form.expr(total)), index) if total else ()

    def slopes(self, e: Apply, op: Function) -> tuple[Expr, ...]:
        """phi_i(x) for each argument i: symbolic if known, else the user's or by differences."""
        if op.about(e.options).derivative is not None:
            return partial_derivatives(op, e.args, e.options)
        partials = [partial_of(op, k, self.coarser) for k in range(op.arity)]
        self.remark_differences(op, *partials)
        return tuple(Apply(f, e.args, e.attrs) for f in partials)

    def of_map(self, e: Apply, op: IndexMap) -> TangentTerms:
        """Apply the same linear map to the tangents."""
        # contract(a, x) is bilinear: d = contract(a, d_x) + contract(d_a, x).
        if op is contract:
            weights, x = e.args
            moved = self.terms[weights] and (
                TangentTerm(Apply(contract, (self.form.expr(self.terms[weights]), x))),
            )
            return self.form.plus(self.form.mapped(e, self.terms[x], self.written_out), moved)
        if op in (stack, concat):
            return self.joined(e, op)
        (x,), attrs = e.args, e.attrs
        index, terms = self.index(x), self.terms[x]
        if op in SELECTIONS:
            opened = self.opened(terms)
            # A selection must not enter d_batchnorm: its integral needs all members of the batch.
            whole = tuple(t for t in opened if _is_batchnorm(t.form))
            selected = self.form.selected(op, attrs, tuple(t for t in opened if t not in whole), index)
            return self.form.plus(
                selected, (TangentTerm(Apply(op, (self.form.expr(whole),), attrs)),) if whole else ()
            )
        if op in (sum_, mean) and not all(t.is_pure for t in self.opened(terms)):
            axes = axes_of(e.options["axis"], len(index))
            summed = self.form.summed(self.opened(terms), axes, index)
            count = prod(index[a] for a in axes) if op is mean else 1
            return self.form.times(Const(1 / count), summed, self.index(e))
        return self.form.mapped(e, terms, self.written_out)

    def joined(self, e: Apply, op: IndexMap) -> TangentTerms:
        """Stack or concatenate tangents; if each is a single product, so is the result."""
        opened = [self.opened(self.terms[x]) for x in e.args]
        whole = [self.form.expr(self.terms[x]) if self.terms[x] else None for x in e.args]
        if all(len(terms) == 1 and terms[0].coef is not None and not terms[0].axes for terms in opened):
            shapes = [self.index(x) for x in e.args]
            coef, form = (
                Apply(op, tuple(map(self.form.spread, parts, shapes)), e.attrs)
                for parts in zip(*((terms[0].coef, terms[0].form) for terms in opened), strict=True)
            )
            return (TangentTerm(form, coef),)
        # A zero tangent is 0 times a member of a tangent, which gives it a width.
        member = next(d for d in whole if d is not None)
        if self.index(member):
            member = Apply(at, (member,), (("index", (0,) * len(self.index(member))),))
        zero = Apply(mul, (Const(0.0), member))
        parts = (self.form.spread(d or zero, self.index(x)) for d, x in zip(whole, e.args, strict=True))
        return (TangentTerm(Apply(op, tuple(parts), e.attrs)),)

    def of_mixing(self, e: Apply, op: Mixing) -> TangentTerms:
        """sum_j J_ij(x) d_x_j with the Jacobian J of a function that mixes members of a block."""
        if "axis" not in e.options:
            return self.of_members(e, op)
        x = e.args[0]
        index, terms = self.index(x), self.opened(self.terms[x])
        axes = tuple(sorted(axes_of(e.options["axis"], len(index))))
        if op.user:
            slope = directional(op, self.coarser)
            self.remark_differences(op, slope)
            return (TangentTerm(Apply(slope, (x, self.form.expr(terms)), e.attrs)),)
        match op.name:
            case "max" | "min":  # the gradient of max is the one-hot vector of the argmax
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
                    self.form.times(e, terms, index), (TangentTerm(Apply(neg, (Apply(mul, (e, total)),))),)
                )
        return ()  # argmax is piecewise constant

    def of_members(self, e: Apply, op: Mixing) -> TangentTerms:
        """Differentiate op.pick(x1, x2, ...) as component `pick` of op(stack(x1, x2, ...))."""
        index = self.index(e)
        members = Apply(stack, tuple(self.form.spread(x, index) for x in e.args), (("axis", 0),))
        whole = Apply(op, (members,), (*e.attrs, ("axis", (0,))))
        return self.derivative(whole if op.reduces else Apply(at, (whole,), (("index", (e.pick,)),)))

    def of_batchnorm(self, e: Apply, terms: TangentTerms, axes: tuple[int, ...]) -> TangentTerms:
        """The tangent of e = batchnorm(x), for the terms of d_x; see `batchnorm_terms`."""
        (x,), eps = e.args, e.options.get("eps", 0.0)
        count = prod(self.index(x)[a] for a in axes)
        if eps == 0 and count <= 3:
            # One member gives 0, two give the sign of their difference: piecewise constant.
            if count < 3:
                return ()
            raise TangentError(
                "batchnorm over 3 members has no tangent kernel",
                place=place_of(self.program, self.statement),
                remedy="Its derivative is as large as 1/|x - mean|, whose square has no expectation for 3 "
                "members. Take a batch of 4 or more, or an eps > 0.",
            )
        # With eps = 0 and a pure form, expectations of the whole derivative have an integral of their own.
        if eps == 0 and all(t.is_pure for t in terms):
            return (TangentTerm(Apply(d_batchnorm, (x, self.form.expr(terms)), e.attrs)),)
        return batchnorm_terms(self.form, e, terms)

    # TangentTerms

    def opened(self, terms: TangentTerms) -> TangentTerms:
        """Substitute the terms of d_y for each form d_y of a Nonlin y, unless they are too many."""
        total = ()
        for t in terms:
            inside = None if t.axes else self.inside(t.form)
            if inside is None:
                total = self.form.plus(total, (t,))
            elif t.coef is None:
                total = self.form.plus(total, inside)
            else:
                form_index = self.index(t.form)
                index = broadcast_index(form_index, self.index(t.coef))
                inside = self.form.widened(inside, form_index, index)
                total = self.form.plus(total, self.form.times(t.coef, inside, index))
        return total

    def inside(self, form: Expr) -> TangentTerms | None:
        """The written-out terms of d_y, y a Nonlin; None if they are too many, or `form` is no such d_y."""
        # Earlier statements come first, so all that a statement contains is open already.
        unopened = self.unopened if form in self.unopened else {}
        while unopened:
            name = next(iter(unopened))
            opened = self.opened(unopened.pop(name))
            # The expectations of pairs of terms grow quadratically; beyond this a name is cheaper.
            if len(opened) <= 2**10:
                self.insides[name] = opened
        return self.insides.get(form)

    def open_sums(self, terms: TangentTerms) -> TangentTerms:
        """Write terms out if a coefficient has to move into a sum over axes; otherwise leave them."""
        if not any(t.axes or t.form in self.summed for t in terms):
            return terms
        opened = self.opened(terms)
        return opened if any(t.axes for t in opened) else terms

    def written_out(self, form: Expr) -> Expr:
        """Replace d_g of a matrix product g by its sum of two products."""
        return self.sums.get(form, form)

    def remark_differences(self, op: Function | Mixing, *slopes: Function | Mixing) -> None:
        """Note that finite differences are used, if they are."""
        if any(map(by_differences, slopes)):
            self.differences = True
            self.remarks[
                f"the derivative of {op.name} is by differences, with an error of about 1e-12 if it varies "
                "over lengths of 0.1 and more; what a step twice as long changes counts as error"
            ] = None

    # Kinds and shapes

    def index(self, e: Expr) -> Index:
        return self.type(e).index

    def type(self, e: Expr) -> Type:
        return infer(e, lambda name: type_of(self.program, self.like.get(name, name)), memo=self.inferred)


def _is_batchnorm(form: Expr) -> bool:
    """Whether d_batchnorm(x, d_x) occurs: it depends on x, so it is no form, and has its own integral."""
    return any(isinstance(e, Apply) and e.op is d_batchnorm for e in subtrees(form))


def _without_unread(program: Program, readouts: frozenset[str]) -> Program:
    """Drop covariances with readouts that no output reads any more."""
    unread = readouts - program.readouts
    statements = list(program.statements)
    for k, s in enumerate(statements):
        if isinstance(s, Input) and isinstance(s.law, Normal):
            cross = tuple((name, value) for name, value in s.law.cross if name not in unread)
            statements[k] = replace(s, law=replace(s.law, cross=cross))
    return replace(program, statements=tuple(statements))
