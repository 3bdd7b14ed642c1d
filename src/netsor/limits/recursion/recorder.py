"""Rules that ask for each other, recorded on a tape.

A rule is a function of a `Recorder` and of what is asked for. To ask for another quantity it yields the rule
for it with its arguments,

    block = yield cov, e, f, pair

and gets the value back. So rules read like the recursion that they are, but a program of any depth needs
no depth of Python's stack, every quantity is recorded once, and all that is asked for is known before any
number is computed: what a `Recorder` makes are steps on tapes, of arrays that have shapes and no values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import GeneratorType
from typing import Any

import numpy as np

from netsor.errors import NetsorError
from netsor.lang.check import Inferred, infer
from netsor.lang.expr import Expr, Ref, refs
from netsor.lang.libraries import is_traced
from netsor.lang.program import Input, MatrixLaw, Output, Program, used_by
from netsor.lang.types import A, C, G, Index
from netsor.limits.notes import Notes
from netsor.limits.nudges import chances, nudged
from netsor.limits.recursion.forms import Forms
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import Traced

__all__ = ["Asking", "Missing", "Recorder", "Rules"]

Asking = Generator[tuple[Any, ...], Any, Any]  # what a rule is that asks for other quantities
NOTHING = object()
ROUNDING = 8  # units of the last place of an expectation


@dataclass(frozen=True)
class Missing:
    """Families that have no exact method, and why."""

    families: frozenset[str]
    reason: str


@dataclass(frozen=True)
class Rules:
    """The rules that lower ones ask for: moments, which the ladder of methods and the samples end in.

    first(e), second(e, f, pair)       moments of expressions
    expectation(left, right, pair)     of atoms that share families
    sampled_mean(left, right, pair)    of atoms that are sampled
    """

    first: Callable[..., Any]
    second: Callable[..., Any]
    expectation: Callable[..., Any]
    sampled_mean: Callable[..., Any]


@dataclass
class Recorder:
    """One recording of a program on groups of inputs.

    tape     what all tiles share: quantities of single inputs, and samples
    data     the arrays of the program, (1, inputs, index...)
    params   variances by name of input, in place of the program's own; those of several values as quantities
             of all inputs, (values, 1)
    rules    see `Rules`
    notes    which expectations there are, and by which method
    nudge, turn   by how many of its error bounds every inexact number is moved, and how; None without errors
    samples  how some families are sampled, if they are
    products  how many were multiplied out for a tile
    missing  set where something must be sampled that is not; then the recording is of no use
    """

    program: Program
    forms: Forms
    tape: Tape
    data: Mapping[str, PerInput]
    params: Mapping[str, Any]
    rules: Rules
    notes: Notes
    nudge: Any = None
    turn: Any = None
    padded: bool = False  # inputs of different lengths are one group: some of what is computed nobody reads
    traced: bool = False  # by JAX: functions of NumPy arrays cannot be steps
    samples: Any = None
    missing: Missing | None = None
    products: int = 0
    kept: dict[Any, Any] = field(default_factory=dict)
    tiled: dict[Any, Any] = field(default_factory=dict)
    facts: dict[Any, Any] = field(default_factory=dict)  # what methods remember of functions
    asked: set[Any] = field(default_factory=set)  # what rules are at work on

    def __post_init__(self) -> None:
        self.xp = self.tape.namespace
        self.inputs = self._count_inputs()
        self.notes.cancels = self.nudge is not None and self.forms.may_cancel
        self.zero = self.tape.constant(np.zeros((1, 1)))

    # Asking

    def ask(self, rule: Callable[..., Any], *args: Any) -> Any:
        """The quantity of a rule; None once something is missing."""
        value = self.found((rule, *args))
        if value is not NOTHING:
            return value
        stack: list[tuple[tuple[Any, ...], Any]] = []
        wanted: tuple[Any, ...] | None = (rule, *args)
        while wanted is not None or stack:
            if self.missing:
                return None
            if wanted is not None:
                made = wanted[0](self, *wanted[1:])
                if isinstance(made, GeneratorType):
                    stack.append((wanted, made))
                    self.asked.add(wanted)
                    value = None
                else:
                    value = self._keep(wanted, made)
                wanted = None
            else:
                wanted, value = self._resume(stack, value)
        return value

    def _resume(self, stack: list[Any], value: Any) -> tuple[Any, Any]:
        """Go on with the last rule: what it asks for that is not known yet, and the value that is."""
        key, rule = stack[-1]
        while True:
            try:
                wanted = rule.send(value)
            except StopIteration as done:
                stack.pop()
                self.asked.discard(key)
                return None, self._keep(key, done.value)
            value = self.found(wanted)
            if value is NOTHING:
                if wanted in self.asked:
                    raise NetsorError(f"a rule of the limit asks for itself: {wanted[0].__name__}")
                return wanted, None

    def found(self, key: tuple[Any, ...]) -> Any:
        """What is known, or NOTHING."""
        return self._memo(key).get(key, NOTHING)

    def known(self, *key: Any) -> Any:
        """What is known, or None."""
        return self._memo(key).get(key)

    def _keep(self, key: tuple[Any, ...], value: Any) -> Any:
        self._memo(key)[key] = value
        return value

    def _memo(self, key: tuple[Any, ...]) -> dict[Any, Any]:
        last = key[-1]
        return self.tiled if type(last) is Pair and last.rows is not None else self.kept

    def forget_tile(self) -> None:
        """Drop what belongs to pairs of inputs; what belongs to single inputs stays."""
        self.tiled, self.products = {}, 0

    def inexact(
        self,
        what: str,
        method: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        shape: Any,
        kind: Any = None,
    ) -> Any:
        """A step of a function that returns values with error bounds."""
        self.notes.inexact, notes = True, self.notes
        tape = next(a.tape for a in args if isinstance(a, Traced))
        if self.nudge is None:
            return tape.call(lambda *x: fn(*x)[0], args, shape, kind=kind)

        def moved(nudge: Any, turn: Any, *arrays: Any) -> Any:
            value, error = fn(*arrays)
            if not is_traced(error):
                notes.report(what, method, float(np.max(error, initial=0.0)))
            return nudged(value, error, nudge, turn)

        return tape.call(moved, (*self.how(tape), *args), shape, kind=kind and (kind, "errors"))

    def rounded(self, block: PerPair, products: tuple[Any, ...] = ()) -> PerPair:
        """A block moved by its rounding, if that counts: in units of itself, as its digits say.

        Of `products` of two sides the unit is the root of their squares, and the digits are those of their
        marks, which tell the sides apart: (square, square, mark, mark).
        """
        if not self.notes.cancels:
            return block
        units = self.rounding / 3 if products else ROUNDING

        def moved(nudge: Any, turn: Any, value: Any, *products: Any) -> Any:
            if not turn:
                return value
            size, digits = value, value
            if products:
                size, digits = np.sqrt(products[0] * products[1]), products[2] * products[3]
            bound = float(nudge) * units * float(np.finfo(value.dtype).eps)
            return value + bound * size * chances(digits, turn)

        array = block.array
        made = array.tape.call(moved, (*self.how(array.tape), array, *products), array.shape)
        return replace(block, array=made)

    def shares(self, array: Any, down: bool) -> Any:
        """By how many of its error bounds each number of an array is moved; by turns `down`, too, or less."""
        how = self.how(array.tape)
        if not self.notes.cancels:
            return how[0]

        def share(nudge: Any, turn: Any, value: Any) -> Any:
            found = chances(value, turn) if turn else np.ones_like(value)
            return nudge * found if down else np.abs(nudge * found)

        return array.tape.call(share, (*how, array), array.shape)

    def how(self, tape: Tape) -> tuple[Any, Any]:
        """The nudge and its turn on a tape."""
        own = self.nudge, self.turn
        return own if tape is self.tape else (tape.shared(own[0]), tape.shared(own[1]))

    # Shapes and numbers

    def index(self, expr: Expr) -> Index:
        found = self.forms.inferred.get(expr)
        return (found or infer(expr, self._known, _impossible, self.forms.inferred)).index

    def rank(self, expr: Expr) -> int:
        return len(self.index(expr))

    def _known(self, name: str) -> Inferred:
        if name in self.program.data:
            return Inferred("K", self.program.data[name].shape)
        type_ = self.program.types[name]
        kind = "C" if isinstance(type_, C) else "G" if isinstance(type_, G) else "H"
        return Inferred(kind, type_.index, getattr(type_, "width", None))

    def variance(self, name: str) -> Any:
        """The variance of a matrix, or of an input with one number as its law."""
        source = self.program.definitions[name]
        assert isinstance(source, Input)
        own = source.law.var if isinstance(source.law, MatrixLaw) else getattr(source.law, "cov", None)
        return self.params.get(name, own)

    def factor(self, name: str, pair: Pair) -> Any:
        """The variance as a factor of blocks; one for each repeat where it has several values."""
        var = self.variance(name)
        return pair.left(var) if isinstance(var, PerInput) else pair.shared(var)

    @cached_property
    def rounding(self) -> float:
        """How far a correlation may be off, in units of the last place: sqrt(m) or so for m columns."""
        columns = [t.cols for t in self.program.types.values() if isinstance(t, A)]
        return 3 * (8 + max((m for m in columns if isinstance(m, int)), default=1) ** 0.5)

    @property
    def most_inputs(self) -> int:
        """The number of inputs of the largest group."""
        return max(self.inputs.values(), default=1)

    def inputs_of(self, e: Expr) -> int:
        """How many inputs an expression has values for: those of its group, or 1 if all share it."""
        return max((self.inputs[name] for name in refs(e)), default=1)

    def entries(self, e: Expr) -> int:
        """How many numbers there are of an expression, over all inputs."""
        return self.inputs_of(e) * prod(self.index(e))

    def _count_inputs(self) -> dict[str, int]:
        counts = {name: x.array.shape[1] for name, x in self.data.items()}
        for s in self.program.statements:
            if not isinstance(s, Output):
                counts[s.name] = max((counts[name] for name in used_by(s)), default=1)
        noisy = set(self.program.noise)  # and all that depends on it; it has as many values as its readers
        if noisy:
            for s in self.program.statements:
                if not isinstance(s, Output) and not noisy.isdisjoint(used_by(s)):
                    noisy.add(s.name)
            for s in reversed(self.program.statements):
                own = max(counts[name] for name in (used_by(s) if isinstance(s, Output) else [s.name]))
                counts |= {name: max(counts[name], own) for name in used_by(s) if name in noisy}
        return counts

    def matrix_of(self, name: str) -> str | None:
        """The matrix that makes a variable, if one does."""
        return self.forms.matrix_of(name)

    def ref_index(self, name: str) -> Index:
        return self.index(Ref(name))


def _impossible(what: str, *_: Any) -> NetsorError:
    return NetsorError(f"an expression of a checked program is ill-typed: {what}")
