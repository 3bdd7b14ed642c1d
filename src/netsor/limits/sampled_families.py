"""Which families are sampled: decided once for each program and input shapes, before anything is recorded.

A walk follows the questions that a recording will ask, from the outputs down to the inputs, without arrays.
If the ladder has no method for an expectation, its families are sampled, for that reason. Samples change how
expectations decompose, so the walk starts again. The set of sampled families only grows, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from netsor.lang.expr import Expr, Ref, refs
from netsor.lang.program import MatMul, Moment
from netsor.lang.rewrite import ONE
from netsor.lang.show import shown_short
from netsor.lang.types import C
from netsor.limits.methods import ladder
from netsor.limits.methods.component import Component
from netsor.limits.notes import Notes
from netsor.limits.rules import lincomb, moment, nonlin
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.decomposition import Atoms, Plain, decomposition
from netsor.limits.rules.lincomb import cov
from netsor.limits.rules.moment import OWN
from netsor.limits.rules.pairs import Pair
from netsor.limits.rules.recorder import Question, Recorder, Rules, mirrored
from netsor.limits.rules.setting import Setting
from netsor.limits.tape.tape import Tape

ALL, SELF = Pair(False), Pair(True)
TILE = Pair(False, False, (0, 1), (0, 1))  # any tile; with equal spans, E[e f] and E[f e] are one question


@dataclass(frozen=True)
class Decision:
    """Which families are sampled (in `setting`), the reasons, and the tables of second moments."""

    setting: Setting
    reasons: tuple[str, ...] = ()
    tables: Any = None

    @property
    def exact(self) -> bool:
        """Whether nothing has to be sampled."""
        return not (self.setting.sampled or self.reasons)


def decide(
    x: Setting, questions: Sequence[Sequence[Question]], tables_of: Callable[[Setting], Any] | None
) -> Decision:
    """Return the decision for these questions, a list for each kind of tile.

    tables_of   makes the tables of a setting that samples something; if None, stop at the first reason
    """
    if not x.sampled and _reads_one_form_each(x):
        return Decision(x)
    reasons: dict[str, None] = {}
    walks = 0
    while True:
        tables = tables_of(x) if x.sampled and tables_of else None
        x.tabled = {} if tables is None else tables.schedule.vectors
        unsolved = _Walk(x).unsolved(questions)
        if unsolved is None:
            return Decision(x, tuple(reasons), tables)
        reasons[unsolved.reason] = None
        if tables_of is None:
            return Decision(x, tuple(reasons))
        # Each walk needs tables of its own, which take time: after six walks, sample everything.
        walks += 1
        families = unsolved.families if walks <= 6 else frozenset(x.forms.families.values())
        x = Setting(x.forms, x.members, x.traced, x.sampled | families)


def _reads_one_form_each(x: Setting) -> bool:
    """Whether matrices and outputs read functions of one form each, of which any two have a Hermite series.

    This spares long recurrent networks the walk, which takes a tenth of their first call.
    """
    statements, operands = x.program.statements, [t.operand for s in x.program.outputs for t in s.terms]
    operands += [s.operand for s in statements if isinstance(s, MatMul)]
    vectors = [Ref(name) for name in dict.fromkeys(operands)]
    if any(isinstance(s, Moment) for s in statements) or any(x.forms.size(v).factors > 1 for v in vectors):
        return False
    return all(atom.unary for v in vectors for product in x.forms.products(v) for atom in product.atoms)


class _UnsolvedError(Exception):
    """Families that have no exact method, and why."""

    def __init__(self, families: frozenset[str], reason: str) -> None:
        self.families, self.reason = families, reason


@dataclass
class _Walk:
    """The questions of a recording, each followed once.

    A rule asks for all that it needs before it records a step, so its first question is enough. In place of
    rules that ask a method or samples, the methods of this class with their names say what will be asked.
    """

    x: Setting
    seen: set[Question] = field(default_factory=set)
    drawn: dict[str, list[Expr]] = field(default_factory=dict)  # by family, the forms drawn so far
    products: int = 0  # number of products multiplied out for a tile

    def __post_init__(self) -> None:
        rules = Rules(lincomb.mean, cov, nonlin.first, nonlin.second, ladder.expectation, _Walk.sampled_mean)
        self.forms, self.r = self.x.forms, Recorder(self.x, Tape(), {}, {}, rules, Notes())

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
            if question not in self.seen and mirrored(question) not in self.seen:
                self.seen.add(question)
                todo.extend([*self._asked(*question)][::-1])

    def _asked(self, rule: Callable[..., Any], *args: Any) -> Iterable[Question]:
        """Return the questions that a rule asks first."""
        special = getattr(self, rule.__name__, None)
        return special(*args) if special else self._first_of(rule, *args)

    def _first_of(self, rule: Callable[..., Any], *args: Any) -> Iterable[Question]:
        questions = next(rule(self.r, *args), [])
        return questions if isinstance(questions, list) else [questions]

    def second(self, e: Expr, f: Expr, pair: Pair) -> Iterable[Question]:
        x = self.x
        if x.in_tables(e, f):
            return []
        is_resolved = x.forms.resolved(e) is e and x.forms.resolved(f) is f
        if is_resolved and decomposition(x, e, f, pair) is Plain.PRODUCTS:
            self._require_few_products(e, f)
        return self._first_of(nonlin.second, e, f, pair)

    def _require_few_products(self, e: Expr, f: Expr) -> None:
        size = self.forms.size(e) * self.forms.size(f)
        self.products += size.products
        # Even small sums add up. After 2^14 products in a recording, sample the larger of them as well.
        if not size.is_small or (size.is_notable and self.products > 2**14):
            what = " ".join(shown_short(side) for side in (e, f) if side is not ONE)
            families = self.forms.families_in(e) | self.forms.families_in(f)
            raise _UnsolvedError(families, f"E[{what}] is not multiplied out: that takes {size}")
        if self.x.sampled:
            products = (*self.forms.products(e), *self.forms.products(f))
            for families in (self.forms.families_of(atom) for product in products for atom in product.atoms):
                # A function of sampled and exact families has neither samples nor a method: sample them all.
                if families & self.x.sampled and not families <= self.x.sampled:
                    raise _UnsolvedError(families, "a function mixes sampled and unsampled families")

    def expectation(self, left: Atoms, right: Atoms, pair: Pair) -> Iterator[Question]:
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
                yield cov, f, e, pair if side != other else one_side
            yield cov, e, e, one_side
            yield lincomb.mean, e
        yield from self._scalars(c.atoms)

    def sampled_mean(self, left: Atoms, right: Atoms, pair: Pair) -> Iterator[Question]:
        for atom in (*left, *right):
            yield from ((_Walk.samples, form) for form in atom.forms)
        yield from self._scalars((*left, *right))

    def samples(self, form: Expr) -> Iterator[Question]:
        """Follow the draw of a form: it needs covariances with all forms of its family drawn before."""
        family = next(self.forms.families[n] for n in refs(form) if n in self.forms.families)
        drawn = self.drawn.setdefault(family, [])
        drawn.append(form)
        for other in drawn:
            yield cov, form, other, ALL
        yield lincomb.mean, form

    def _scalars(self, atoms: Iterable[Atom]) -> Iterator[Question]:
        """Follow the C-vars that functions name."""
        types = self.x.program.types
        names = (name for atom in atoms for name in refs(atom.body))
        yield from ((moment.scalar, name) for name in names if isinstance(types.get(name), C))
