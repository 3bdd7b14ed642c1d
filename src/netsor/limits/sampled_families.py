"""Which families are sampled: decided once for each program and input shapes, before anything is recorded.

A walk follows the questions that a recording will ask, from the outputs down to the inputs, without arrays.
If the ladder has no method for an expectation, its families are sampled, for that reason. Samples change how
expectations decompose, so the walk starts again. The set of sampled families only grows, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from netsor.lang.expr import Apply, Expr, Ref, refs
from netsor.lang.index_maps import contract
from netsor.lang.ops import IndexMap
from netsor.lang.program import LinComb, MatMul, Moment, Scalar
from netsor.lang.rewrite import ONE
from netsor.lang.show import shown_short
from netsor.lang.types import C
from netsor.limits.methods import ladder
from netsor.limits.methods.component import Component
from netsor.limits.rules import lincomb, matmul, moment, nonlin, output
from netsor.limits.rules.atoms import Atom, Product
from netsor.limits.rules.decomposition import (
    Independent,
    Linear,
    Multiple,
    Plain,
    Slope,
    decomposition,
    independent_atoms,
    split_sampled,
)
from netsor.limits.rules.moment import OWN
from netsor.limits.rules.pairs import Pair
from netsor.limits.rules.setting import Setting

Question = tuple[Any, ...]  # a rule with its arguments, as for `Recorder.ask`
ALL, SELF = Pair(False), Pair(True)
TILE = Pair(False, False, (0, 1), (0, 1))  # any tile; with equal spans, E[e f] and E[f e] are one question


@dataclass(frozen=True)
class Decision:
    """Which families are sampled (in `setting`), the reasons, and the tables of second moments.

    exact   whether nothing is sampled
    """

    exact: bool
    setting: Setting
    reasons: tuple[str, ...] = ()
    tables: Any = None


def decide(
    x: Setting, questions: Sequence[Sequence[Question]], tables_of: Callable[[Setting], Any] | None
) -> Decision:
    """Return the decision for these questions, a list for each kind of tile.

    tables_of   makes the tables of a setting that samples something; if None, stop at the first reason
    """
    reasons: dict[str, None] = {}
    walks = 0
    while True:
        tables = tables_of(x) if x.sampled and tables_of else None
        x.tabled = {} if tables is None else tables.schedule.vectors
        unsolved = _Walk(x).unsolved(questions)
        if unsolved is None:
            return Decision(not x.sampled, x, tuple(reasons), tables)
        reasons[unsolved.reason] = None
        if tables_of is None:
            return Decision(False, x, tuple(reasons))
        # Each walk needs tables of its own, which take time: after six walks, sample everything.
        walks += 1
        families = unsolved.families if walks <= 6 else frozenset(x.forms.families.values())
        x = Setting(x.forms, x.members, x.traced, x.sampled | families)


class _UnsolvedError(Exception):
    """Families that have no exact method, and why."""

    def __init__(self, families: frozenset[str], reason: str) -> None:
        self.families, self.reason = families, reason


@dataclass
class _Walk:
    """The questions of a recording, each followed once, by the method with the name of its rule."""

    x: Setting
    seen: set[Question] = field(default_factory=set)
    drawn: dict[str, list[Expr]] = field(default_factory=dict)  # by family, the forms drawn so far
    products: int = 0  # number of products multiplied out for a tile

    def __post_init__(self) -> None:
        self.forms, self.program = self.x.forms, self.x.program
        self.scalars = {name for name, type_ in self.program.types.items() if isinstance(type_, C)}

    def unsolved(self, tiles: Iterable[Iterable[Question]]) -> _UnsolvedError | None:
        """Return the first expectation without a method, or None."""
        try:
            for questions in tiles:
                self.products = 0
                self._follow([*questions])
        except _UnsolvedError as unsolved:
            return unsolved
        return None

    def _follow(self, questions: list[Question]) -> None:
        """Follow questions in the order of a recording: each with all that it asks for, then the next."""
        todo = questions[::-1]
        while todo:
            question = todo.pop()
            if question not in self.seen:
                self.seen.add(question)
                step = getattr(self, question[0].__name__)  # the method of this class with the rule's name
                todo.extend([*step(*question[1:])][::-1])

    def _is_seen_flipped(self, rule: Any, e: Expr, f: Expr, pair: Pair) -> bool:
        flipped = rule, f, e, pair.flipped
        return flipped in self.seen and flipped != (rule, e, f, pair)

    # Outputs and moments of expressions

    def output_second(self, o: int, p: int, pair: Pair) -> Iterator[Question]:
        outputs = self.program.outputs
        for t in outputs[o].terms:
            for u in outputs[p].terms:
                asked = output.operands(self.program, t, u, pair)
                if asked is not None:
                    yield (nonlin.second, *asked)

    def output_own(self, o: int) -> Iterator[Question]:
        for t in self.program.outputs[o].terms:
            yield nonlin.second, Ref(t.operand), Ref(t.operand), OWN

    def first(self, e: Expr) -> Iterator[Question]:
        yield nonlin.second, e, ONE, OWN

    def second(self, e: Expr, f: Expr, pair: Pair) -> Iterator[Question]:
        x, y = self.forms.resolved(e), self.forms.resolved(f)
        if x is not e or y is not f:
            yield nonlin.second, x, y, pair
            return
        # Moments in tables need no questions.
        left, right = self.x.tabled.get(e), self.x.tabled.get(f)
        if left is not None and right is not None and left.cluster == right.cluster:
            return
        if self._is_seen_flipped(nonlin.second, e, f, pair):
            return
        match decomposition(self.x, e, f, pair):
            case Plain.GAUSSIAN:
                yield lincomb.cov, e, f, pair
                yield from self._means(e, f)
            case Plain.SEPARATE:
                yield from ((nonlin.first, y) for y in (e, f))
            case Plain.SAMPLED:
                yield from self._sampled(self.forms.as_atom(y) for y in (e, f) if y is not ONE)
            case Plain.PRODUCTS:
                yield from self._products(e, f, pair)
            case Multiple(_, x, y):
                yield nonlin.second, x, y, pair
            case Independent(parts):
                yield from ((nonlin.second, x, y, pair) for x, y in parts)
            case Linear(side):
                yield from self._linear((e, f), side, pair)
            case Slope(x, y, slopes):
                yield nonlin.second, x, y, pair
                yield from ((lincomb.cov, s.batch, s.batch, SELF) for s in slopes if s is not None)

    def _linear(self, sides: tuple[Expr, Expr], side: int, pair: Pair) -> Iterator[Question]:
        head, other = sides[side], sides[1 - side]
        assert isinstance(head, Apply)
        if other is ONE:
            yield from ((nonlin.first, a) for a in head.args)
        elif isinstance(head.op, IndexMap):
            yield from self._mapped(nonlin.second, head, other, pair if side == 0 else pair.flipped)
        else:
            yield from self._combined(nonlin.second, sides, side, pair)

    def _combined(self, rule: Any, sides: tuple[Expr, Expr], side: int, pair: Pair) -> Iterator[Question]:
        head = sides[side]
        assert isinstance(head, Apply)
        parts, factor = lincomb.summands(self.forms, head)
        for part in parts:
            yield (rule, part, sides[1], pair) if side == 0 else (rule, sides[0], part, pair)
        if factor is not None:
            yield moment.constant, factor

    def _mapped(self, rule: Any, e: Apply, f: Expr, pair: Pair) -> Iterator[Question]:
        for a, b, inner in lincomb.mapped_arguments(self.forms, e, f, pair):
            yield rule, a, b, inner
        if e.op is contract:
            yield moment.constant, e.args[0]

    def _products(self, e: Expr, f: Expr, pair: Pair) -> Iterator[Question]:
        size = self.forms.size(e) * self.forms.size(f)
        self.products += size.products
        # Even small sums add up. After 2^14 products in a recording, sample the larger of them as well.
        if not size.is_small or (size.is_notable and self.products > 2**14):
            what = " ".join(shown_short(side) for side in (e, f) if side is not ONE)
            families = self.forms.families_in(e) | self.forms.families_in(f)
            raise _UnsolvedError(families, f"E[{what}] is not multiplied out: that takes {size}")
        for p in self.forms.products(e):
            for q in (Product(),) if f is ONE else self.forms.products(f):
                yield from self._product(p, q, pair)

    def _product(self, p: Product, q: Product, pair: Pair) -> Iterator[Question]:
        for c in (*p.constants, *q.constants):
            yield moment.constant, c
        self._require_unmixed(p, q)
        (ours, left), (theirs, right) = split_sampled(self.x, p.atoms), split_sampled(self.x, q.atoms)
        yield from self._sampled((*ours, *theirs))
        for ours, theirs in independent_atoms(self.x, left, right, pair):
            both = ours and theirs
            yield ladder.expectation, ours or theirs, theirs if both else (), pair if both else OWN

    def _require_unmixed(self, p: Product, q: Product) -> None:
        if self.x.sampled:
            for atom in (*p.atoms, *q.atoms):
                families = self.forms.families_of(atom)
                # A function of sampled and exact families has neither samples nor a method, so sample all
                # its families.
                if families & self.x.sampled and not families <= self.x.sampled:
                    raise _UnsolvedError(families, "a function mixes sampled and unsampled families")

    # Expectations of atoms

    def expectation(self, left: tuple[Atom, ...], right: tuple[Atom, ...], pair: Pair) -> Iterator[Question]:
        c = Component(left, right, pair)
        method = ladder.method_of(self.x, c)
        if method is None:
            families = frozenset[str]().union(*map(self.forms.sampled_families, c.atoms))
            raise _UnsolvedError(
                families, f"{c.what} is an integral over {len(c.variables)} dependent variables"
            )
        one_side, pair = (SELF, pair.free) if method.all_members else (OWN, pair)
        for k, (side, e) in enumerate(c.variables):
            for other, f in c.variables[:k]:
                yield lincomb.cov, f, e, pair if side != other else one_side
            yield lincomb.cov, e, e, one_side
        yield from self._means(*(form for _, form in c.variables))
        yield from self._scalars(atom.body for atom in c.atoms)

    def _sampled(self, atoms: Iterable[Atom]) -> Iterator[Question]:
        for atom in atoms:
            yield from ((_Walk.samples, form) for form in atom.forms)
            yield from self._scalars([atom.body])

    def samples(self, form: Expr) -> Iterator[Question]:
        """Follow the draw of a form: it needs covariances with all forms of its family drawn before."""
        family = next(self.forms.families[n] for n in refs(form) if n in self.forms.families)
        drawn = self.drawn.setdefault(family, [])
        drawn.append(form)
        for other in drawn:
            yield lincomb.cov, form, other, ALL
        yield from self._means(form)

    # Forms

    def cov(self, e: Expr, f: Expr, pair: Pair) -> Iterator[Question]:
        forms = self.forms
        if not forms.sources(e) & forms.sources(f):
            return
        if self._is_seen_flipped(lincomb.cov, e, f, pair):
            return
        e, f = lincomb.written_out(forms, e), lincomb.written_out(forms, f)
        side = lincomb.sum_side(forms, e, f)
        if side is not None:
            yield from self._combined(lincomb.cov, (e, f), side, pair)
            return
        yield from self._cov_of_maps(e, f, pair)

    def _cov_of_maps(self, e: Expr, f: Expr, pair: Pair) -> Iterator[Question]:
        """Follow the covariance of two forms that are not sums."""
        forms, both = self.forms, matmul.fusion(self.forms, e, f)
        if both is not None:
            yield from self._operands(both.g, both.k, pair)
        elif isinstance(e, Apply):
            yield from self._mapped(lincomb.cov, e, f, pair)
        elif isinstance(f, Apply):
            # Not the question for Cov(f, e): that counts as seen, as this one is its mirror image.
            yield from self._mapped(lincomb.cov, f, e, pair.flipped)
        elif isinstance(e, Ref) and isinstance(f, Ref) and forms.matrix_of(e.name) == forms.matrix_of(f.name):
            if matmul.needs_diagonal(forms, e.name, f.name, pair):
                yield lincomb.cov, e, f, pair.free
            else:
                yield from self._operands(e.name, f.name, pair)

    def _operands(self, g: str, k: str, pair: Pair) -> Iterator[Question]:
        """Follow E[h h'] of g = W h and k = W h'."""
        s, t = self.program.definitions[g], self.program.definitions[k]
        if isinstance(s, MatMul) and isinstance(t, MatMul):
            yield nonlin.second, Ref(s.operand), Ref(t.operand), matmul.operand_pair(self.forms, g, k, pair)

    # Means, constants and C-vars

    def _means(self, *forms: Expr) -> Iterator[Question]:
        if self.scalars:
            yield from ((lincomb.mean, form) for form in forms)

    def mean(self, form: Expr) -> Iterator[Question]:
        if self.forms.is_centred(form) and not isinstance(form, Ref):
            return
        if not isinstance(form, Ref) or self.forms.is_constant(form):
            yield moment.constant, form
        elif isinstance(source := self.program.definitions[form.name], LinComb):
            yield lincomb.mean, source.expr

    def constant(self, e: Expr) -> Iterator[Question]:
        yield from self._scalars([e])
        if self.scalars:
            names = (name for name in refs(e) if name not in self.scalars and name not in self.program.data)
            yield from self._means(*map(Ref, names))

    def _scalars(self, exprs: Iterable[Expr]) -> Iterator[Question]:
        """Follow the C-vars that expressions name."""
        if self.scalars:
            yield from ((moment.scalar, name) for e in exprs for name in refs(e) if name in self.scalars)

    def scalar(self, name: str) -> Iterator[Question]:
        source = self.program.definitions[name]
        assert isinstance(source, Moment | Scalar)
        yield nonlin.first if isinstance(source, Moment) else moment.constant, source.expr
