"""E of products of atoms: factor over independent families, then the best method for each factor.

| factor                                   | method                                             |
| ---------------------------------------- | -------------------------------------------------- |
| two atoms with a formula                 | closed form                                        |
| any two atoms of one form each           | Hermite series                                     |
| a product of forms                       | Isserlis' theorem                                  |
| batchnorm with a homogeneous activation  | the paper's 1-D and 2-D integrals                  |
| up to four erf gates of mean zero        | orthant probabilities                              |
| up to four variables of a few inputs     | quadrature                                         |
| anything else                            | sampling of its families (and of nothing more)     |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.closed.forms import find, find_mean
from netsor.expect.hermite import series as hermite
from netsor.expect.hermite.many import series_of_many
from netsor.expect.hermite.pairs import pair_sum
from netsor.expect.quadrature.kinks import find_kinks
from netsor.expect.quadrature.nodes import eps_of
from netsor.lang.analysis import has_user_function
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs
from netsor.lang.functions import identity, polynomial, pow_
from netsor.lang.libraries import is_traced
from netsor.lang.ops import Function
from netsor.limits.fit import Fit
from netsor.limits.forms import HOLE, Atom, Product, replace_exprs
from netsor.limits.low_dimension import few_variables
from netsor.limits.normalisation import batchnorm_second, slopes_of
from netsor.limits.pairs import Pair, outer, pad_index
from netsor.limits.parallel import GROWING, JUMPING, ROUNDING, as_parallel
from netsor.limits.sampled import Sampler
from netsor.limits.traced import array_namespace, tape_of

if TYPE_CHECKING:
    from netsor.limits.engine import Engine

__all__ = ["Expectations", "NeedsSamplingError", "Record"]

Array = Any


class NeedsSamplingError(Exception):
    """These families have no exact method: sample them and start again."""

    def __init__(self, families: frozenset[str], reason: str) -> None:
        self.families, self.reason = families, reason
        super().__init__(reason)


@dataclass
class Record:
    """What was computed how: counts by (what, method) and the largest error of each.

    silent   nobody will ask for errors
    """

    silent: bool = False
    entries: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    inexact: bool = False
    compiled: bool = False
    lock: Any = field(default_factory=Lock)

    def note(self, what: str, method: str, error: float = 0.0) -> None:
        with self.lock:
            entry = self.entries.setdefault((what, method), [0, 0.0])
            entry[0] += 1
            entry[1] = max(entry[1], error)


@dataclass
class Expectations:
    """Expectations of products of atoms for one engine.

    nudge    adds this many times its own error bound to every inexact number, to see what becomes of it
    """

    engine: Engine
    record: Record
    sampler: Sampler | None = None
    nudge: float = 0.0
    _series: dict[Atom, Any] = field(default_factory=dict)
    pairs: dict[Any, Array] = field(default_factory=dict)
    _means: dict[Any, Array] = field(default_factory=dict)
    _rules: dict[Any, Callable[..., Array] | None] = field(default_factory=dict)

    def second(self, e: Expr, f: Expr, pair: Pair, tie: bool) -> Array:
        """E[e f] for elementwise expressions."""
        left, right = self.engine.forms.products(e), self.engine.forms.products(f)
        ranks = (len(self.engine.index(e)), len(self.engine.index(f)))
        total: Any = None
        for p in left:
            for q in right:
                value = self.product(p, q, pair, tie, ranks)
                total = value if total is None else total + value
        return total

    def known(self, e: Expr, f: Expr, pair: Pair) -> Array | None:
        """E[e f] where all second moments of a kind have been computed together."""
        moments = self.sampler and self.sampler.moments
        return moments.block(e, f, pair) if moments else None

    def first(self, e: Expr) -> Array:
        """E[e], shape (repeats, inputs, index...)."""
        rank = len(self.engine.index(e))
        parts = [
            self.product(p, Product(), Pair(True), True, (rank, 0)) for p in self.engine.forms.products(e)
        ]
        return sum(parts[1:], parts[0])

    # One product on each side

    def product(self, p: Product, q: Product, pair: Pair, tie: bool, ranks: tuple[int, int]) -> Array:
        """E of a product of constants and atoms on each side."""
        fit = Fit(pair, tie, ranks)
        factors = [fit.left(self.engine.constant(c), len(self.engine.index(c))) for c in p.constants]
        factors += [fit.right(self.engine.constant(c), len(self.engine.index(c))) for c in q.constants]
        left, right = self.split(p.atoms), self.split(q.atoms)
        factors += self.sampled(left[0], right[0], fit)
        for ours, theirs in self.components(left[1], right[1]):
            factors.append(self.component(ours, theirs, fit))
        if not factors:
            return pair.lift(self.engine.xp.ones((1,) * (pair.batch + (max(ranks) if tie else sum(ranks)))))
        value = factors[0]
        for factor in factors[1:]:
            value = value * factor
        return value

    def split(self, atoms: tuple[Atom, ...]) -> tuple[list[Atom], list[Atom]]:
        """Atoms whose families are sampled, and the others."""
        chosen = self.sampler.families if self.sampler else frozenset()
        drawn: list[Atom] = []
        exact: list[Atom] = []
        for atom in atoms:
            families = self.engine.forms.families_of(atom)
            if families & chosen and not families <= chosen:
                raise NeedsSamplingError(families, "a function mixes sampled and unsampled families")
            (drawn if families & chosen else exact).append(atom)
        return drawn, exact

    def components(self, left: list[Atom], right: list[Atom]) -> Iterator[tuple[list[Atom], list[Atom]]]:
        """Groups of atoms that share a family; different groups are independent."""
        groups: list[tuple[frozenset[str], tuple[list[Atom], list[Atom]]]] = []
        for side, atoms in enumerate((left, right)):
            for atom in atoms:
                families = self.engine.forms.families_of(atom)
                joined = [g for g in groups if g[0] & families]
                members = ([a for _, m in joined for a in m[0]], [a for _, m in joined for a in m[1]])
                members[side].append(atom)
                union = families.union(*(f for f, _ in joined))
                groups = [g for g in groups if g not in joined] + [(union, members)]
        return (members for _, members in groups)

    def component(self, left: list[Atom], right: list[Atom], fit: Fit) -> Array:
        """E of the atoms of one family."""
        atoms = [*left, *right]
        unary = all(atom.unary for atom in atoms)
        match len(left), len(right):
            case 1, 0 if unary:
                return fit.left(self.mean(left[0]), self.rank(left[0]))
            case 0, 1 if unary:
                return fit.right(self.mean(right[0]), self.rank(right[0]))
            case 1, 1 if unary:
                value = self.pair(left[0], right[0], fit.pair, fit.tie)
                return fit.both(value, self.rank(left[0]), self.rank(right[0]))
            case 2, 0 if unary:
                value = self.pair(left[0], left[1], Pair(True), True)
                return fit.left(value, max(map(self.rank, left)))
            case 0, 2 if unary:
                value = self.pair(right[0], right[1], Pair(True), True)
                return fit.right(value, max(map(self.rank, right)))
            case 1, 1 if slopes := self.common_slopes(left[0], right[0]):
                value = batchnorm_second(self, left[0], right[0], slopes, fit.pair, fit.tie)
                return fit.both(value, self.rank(left[0]), self.rank(right[0]))
        if unary and all(a.is_identity for a in atoms) and not fit.tie and len(atoms) <= 4:
            return self.isserlis(left, right, fit)
        value = few_variables(self, left, right, fit)
        if value is None:
            raise self.needs_sampling(atoms)
        return value

    def needs_sampling(self, atoms: list[Atom]) -> NeedsSamplingError:
        """The demand to sample the families of some atoms."""
        families = frozenset(f for a in atoms for f in self.engine.forms.families_of(a))
        return NeedsSamplingError(families, self.reason(atoms))

    def common_slopes(self, a: Atom, b: Atom) -> tuple[float, float] | None:
        """Slopes of the activation if both atoms are the same activation of a batchnorm."""
        left, right = slopes_of(self.engine, a), slopes_of(self.engine, b)
        return left if left == right else None

    def names(self, atoms: list[Atom]) -> str:
        """A product of atoms as it is written."""
        from netsor.lang.show import show_expr

        shown = " * ".join(show_expr(atom.expr) for atom in atoms[:3])
        return f"E[{shown}{' ...' if len(atoms) > 3 else ''}]"

    def reason(self, atoms: list[Atom]) -> str:
        count = len({form for atom in atoms for form in atom.forms})
        return f"{self.names(atoms)} is an integral over {count} dependent variables"

    def rank(self, atom: Atom) -> int:
        return len(self.index(atom))

    def index(self, atom: Atom) -> tuple[int, ...]:
        return self.engine.index(atom.expr)

    # Atoms of one form each

    def stats(self, atom: Atom) -> tuple[Array, Array]:
        """Mean and variance of the form, (repeats, inputs, index...)."""
        form = atom.forms[0]
        rank, target = len(self.engine.index(form)), self.rank(atom)
        mean, var = self.engine.mean(form), self.engine.variance_of(form)
        return pad_index(mean, 2, rank, target), pad_index(var, 2, rank, target)

    def pair(self, a: Atom, b: Atom, pair: Pair, tie: bool) -> Array:
        """E[a b] for two atoms of one form each."""
        key = (a, b, pair, tie)
        if key not in self.pairs:
            self.pairs[key] = self._pair(a, b, pair, tie)
        return self.pairs[key]

    def _pair(self, a: Atom, b: Atom, pair: Pair, tie: bool) -> Array:
        engine, ranks = self.engine, (self.rank(a), self.rank(b))
        cov = engine.cov(a.forms[0], b.forms[0], pair, tie)
        if cov is None:
            left, right = outer(pair.left(self.mean(a)), pair.right(self.mean(b)), pair.batch, ranks, tie)
            return left * right
        cov = self._fit_cov(cov, a, b, pair, tie)
        (m1, q1), (m2, q2) = self.stats(a), self.stats(b)
        zero = all(self.is_centred(x.forms[0]) for x in (a, b))
        rule = self.rule(a, b, zero)
        m1, m2 = outer(pair.left(m1), pair.right(m2), pair.batch, ranks, tie)
        q1, q2 = outer(pair.left(q1), pair.right(q2), pair.batch, ranks, tie)
        names = {self.name(a), self.name(b)}
        if not names <= GROWING:
            self.record.inexact = True
            cov = cov * (1.0 - self.nudge * ROUNDING * eps_of(cov)) if self.nudge else cov
            cov = pair.elementwise(as_parallel, cov, q1, q2, 2.0 if rule and names <= JUMPING else 0.0)
        if rule:
            self.record.note(f"E[{self.name(a)} {self.name(b)}]", "closed form")
            return pair.elementwise(rule, m1, m2, q1, q2, cov)
        return self._series_pair(a, b, pair, tie, cov, q1 * q2)

    def rule(self, a: Atom, b: Atom, zero: bool) -> Callable[..., Array] | None:
        """The closed form of a pair; the same function for all pairs of equal functions."""
        key = (a.body, b.body, zero)
        if key not in self._rules:
            f, g = known_function(a), known_function(b)
            self._rules[key] = find(*f, *g, zero_mean=zero) if f and g else None
        return self._rules[key]

    def mean_rule(self, atom: Atom) -> Callable[..., Array] | None:
        """The closed form of E of an atom."""
        if atom.body not in self._rules:
            known = known_function(atom)
            self._rules[atom.body] = find_mean(*known) if known else None
        return self._rules[atom.body]

    def _fit_cov(self, cov: Array, a: Atom, b: Atom, pair: Pair, tie: bool) -> Array:
        """The covariance of the forms with the index axes of the atoms."""
        i, j = (len(self.engine.index(x.forms[0])) for x in (a, b))
        if tie:
            return pad_index(cov, pair.batch, max(i, j), max(self.rank(a), self.rank(b)))
        xp = array_namespace(cov)
        shape = cov.shape
        left, right = shape[pair.batch : pair.batch + i], shape[pair.batch + i :]
        ones = ((1,) * (self.rank(a) - i), (1,) * (self.rank(b) - j))
        return xp.reshape(cov, (*shape[: pair.batch], *ones[0], *left, *ones[1], *right))

    def _series_pair(self, a: Atom, b: Atom, pair: Pair, tie: bool, cov: Array, qq: Array) -> Array:
        sides, ranks = (self.series(a), self.series(b)), (self.rank(a), self.rank(b))
        what = f"E[{self.name(a)} {self.name(b)}]"
        self.record.inexact = True

        def total(left: hermite.Series, right: hermite.Series, cov: Array, qq: Array) -> Array:
            rho = _correlation(cov, qq)
            if self.record.silent:
                return pair_sum(left, right, rho, errors=False)[0]
            value, error = pair_sum(left, right, rho)
            self.record.note(what, f"Hermite series, {left.coefs.shape[-1]} terms", _largest(error))
            return value + self.nudge * error if self.nudge else value

        fit = Fit(pair, tie, ranks)
        arrays = (fit.series(0, sides[0]), fit.series(1, sides[1]), cov, qq)
        tape = tape_of(*arrays)
        if tape is None:
            return total(*arrays)
        own = (
            fit.series_shape(k, x) for k, x in enumerate(sides)
        )  # parameters may have an index of their own
        shape = np.broadcast_shapes(cov.shape, qq.shape, *own)
        return tape.call(total, arrays, shape, cov.dtype, kind="pair of series")

    def is_centred(self, form: Expr) -> bool:
        """Whether the mean of a form is known to be 0 for all inputs."""
        return self.engine.forms.is_centred(form) or _is_zero(self.engine.mean(form))

    def name(self, atom: Atom) -> str:
        known = known_function(atom)
        if known:
            return known[0].name
        return atom.body.op.name if isinstance(atom.body, Apply) else "x"

    def series(self, atom: Atom) -> Any:
        """The Hermite series of an atom; with traced arrays, the step that computes it."""
        if atom not in self._series:
            self._series[atom] = self._series_of(atom)
        return self._series[atom]

    def _series_of(self, atom: Atom) -> Any:
        mean, var = self.stats(atom)
        names = [n for n in refs(atom.body) if n != HOLE.name]
        blocks, kinks = [self.engine.block(n) for n in names], self.kinks(atom)

        def make(mean: Array, var: Array, *arrays: Array) -> hermite.Series:
            known = {n: replace(b, array=a) for n, b, a in zip(names, blocks, arrays, strict=True)}
            xp, shape = array_namespace(mean, var), np.broadcast_shapes(mean.shape, var.shape)
            both = xp.broadcast_to(mean, shape), xp.broadcast_to(var, shape)
            fn = self.callable(atom, known)
            make_series = hermite.series if names else series_of_many
            made = make_series(fn, *both, kinks=kinks, trusted=not has_user_function(atom.body))
            self.require_settled(atom, made)
            return made

        arrays = (mean, var, *(b.array for b in blocks))
        tape = tape_of(*arrays)
        if tape is None:
            return make(*arrays)
        lifted = (b.lift(self.rank(atom), False) for b in blocks)
        shape = np.broadcast_shapes(mean.shape, var.shape, *(x.shape for x in lifted if hasattr(x, "shape")))
        tape.opaque = True
        body = replace_exprs(atom.body, {Ref(n): Ref(f"@{k}") for k, n in enumerate(names)})
        kind = ("series", body, tuple((b.rank, b.vector) for b in blocks), self.rank(atom), kinks)
        return tape.call(make, arrays, shape, var.dtype, kind)

    def require_settled(self, atom: Atom, series: hermite.Series) -> None:
        """The integral of f^2 is the same at two resolutions, or f has a pole or grows too fast."""
        if is_traced(series.square):
            return
        size = series.square**0.5  # the tail is above it only if the last refinement changed E[f^2]
        unsettled = (series.error > 0.05 * size) | (series.tail > 1.05 * size)
        if not bool(array_namespace(unsettled).any(unsettled)):
            return
        raise LimitError(
            f"the expectation of `{self.name(atom)}` squared is not finite, or too singular to be computed",
            remedy="A nonlinearity has no pole and grows more slowly than exp(x^2 / (4 variance)).",
        )

    def callable(self, atom: Atom, known: Mapping[str, Block] | None = None) -> Callable[[Array], Array]:
        """The atom as a function of arrays (repeats, inputs, index..., points), with its constants known."""
        if known is None:
            known = {n: self.engine.block(n) for n in refs(atom.body) if n != HOLE.name}
        rank = self.rank(atom)

        def fn(x: Array) -> Array:
            return evaluate(atom.body, {**known, HOLE.name: Block(x, rank, True)}).array

        return fn

    def kinks(self, atom: Atom) -> tuple[float, ...]:
        """Where a function without parameters is not smooth; found once per function."""
        if set(refs(atom.body)) != {HOLE.name}:
            return ()
        known = self.engine.forms.kinks
        if atom.body not in known:
            known[atom.body] = find_kinks(lambda x: evaluate(atom.body, {HOLE.name: Block(x, 0, True)}).array)
        return known[atom.body]

    def mean(self, atom: Atom) -> Array:
        """E of an atom of one form."""
        if atom not in self._means:
            mean, var = self.stats(atom)
            rule = self.mean_rule(atom)
            if rule:
                self._means[atom] = Pair(True).elementwise(rule, mean, var)
            else:
                self._means[atom] = self._mean_by_quadrature(atom)
        return self._means[atom]

    def _mean_by_quadrature(self, atom: Atom) -> Array:
        self.record.inexact = True

        def first(series: hermite.Series) -> Array:
            self.record.note(f"E[{self.name(atom)}]", "quadrature", _largest(series.error))
            return series.coefs[..., 0] + self.nudge * series.error

        series = self.series(atom)
        tape = tape_of(series)
        return tape.call(first, (series,), series.shape, kind="first of series") if tape else first(series)

    # Products of forms

    def isserlis(self, left: list[Atom], right: list[Atom], fit: Fit) -> Array:
        """E of a product of Gaussian numbers: sum over all ways to pair them up, the rest by their means."""
        sides = [(0, a) for a in left] + [(1, a) for a in right]
        self.record.note(f"E of {len(sides)} Gaussians", "Isserlis")

        def moment(rest: list[tuple[int, Atom]]) -> Any:
            if not rest:
                return 1.0
            (side, a), others = rest[0], rest[1:]
            mean = fit.one(side, self.stats(a)[0], self.rank(a))
            total = mean * moment(others)
            for k, (other, b) in enumerate(others):
                cov = self._form_cov(side, a, other, b, fit)
                if cov is not None:
                    total = total + cov * moment(others[:k] + others[k + 1 :])
            return total

        return moment(sides)

    def _form_cov(self, side: int, a: Atom, other: int, b: Atom, fit: Fit) -> Array | None:
        engine = self.engine
        if side == other:
            cov = engine.cov(a.forms[0], b.forms[0], Pair(True), True)
            return None if cov is None else fit.one(side, cov, max(self.rank(a), self.rank(b)))
        cov = engine.cov(a.forms[0], b.forms[0], fit.pair, fit.tie)
        return None if cov is None else fit.both(cov, self.rank(a), self.rank(b))

    # Sampled atoms

    def sampled(self, left: list[Atom], right: list[Atom], fit: Fit) -> list[Array]:
        """The average over the sample points of the sampled atoms of both sides."""
        if not left and not right:
            return []
        assert self.sampler is not None
        ours, theirs = (self.sampler.values(self.engine, tuple(side)) for side in (left, right))
        if theirs is None:
            assert ours is not None
            return [fit.left(ours.array.mean(-1), ours.rank)]
        if ours is None:
            return [fit.right(theirs.array.mean(-1), theirs.rank)]
        value = self.sampler.product_mean(ours, theirs, tuple(left), tuple(right), fit.pair, fit.tie)
        return [fit.both(value, ours.rank, theirs.rank)]


def known_function(atom: Atom) -> tuple[Function, dict] | None:
    """The registered function that an atom is, with its options."""
    match atom.body:
        case body if body == HOLE:
            return identity, {}
        case Apply(Function() as op, (hole,), _, None) if hole == HOLE and not op.user:
            return op, {**op.defaults, **atom.body.options}
        case Apply(op, (hole, Const(power)), _, None) if op is pow_ and hole == HOLE and power in range(9):
            return polynomial, {"coefs": (*(0.0,) * int(power), 1.0)}
    return None


def _correlation(cov: Array, qq: Array) -> Array:
    """cov / sqrt(q q'), and 0 where a variance is 0."""
    xp = array_namespace(cov)
    safe = xp.where(qq > 0, qq, xp.ones_like(qq))
    return xp.where(qq > 0, cov / xp.sqrt(safe), xp.zeros_like(cov))


def _is_zero(x: Array) -> bool:
    tape = tape_of(x)
    if tape:
        return x.step in tape.constants and not tape.constants[x.step].any()
    try:
        return not bool(array_namespace(x).any(x != 0))
    except Exception:  # a traced value has no truth value: take the general formula
        return False


def _largest(x: Array) -> float:
    try:
        return float(array_namespace(x).max(x)) if x.size else 0.0
    except Exception:
        return float("nan")
