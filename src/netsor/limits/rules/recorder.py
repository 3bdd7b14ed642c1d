"""Rules that ask for each other, recorded on a tape.

A rule is a function of a `Recorder` and of the arguments of a quantity. To ask for other quantities, it
yields their rules with their arguments and receives the values:

    block = yield cov, e, f, pair
    left, right = yield [(mean, e), (mean, f)]

A program of any depth needs no deep Python stack, and every quantity is recorded once, as steps of arrays
that have shapes but no values. A rule of expressions asks once, for everything that it needs, before it
records a step. So a walk over the questions (`sampled_families`) takes its first question and leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from netsor.lang.program import Input, MatrixLaw
from netsor.lang.types import A
from netsor.limits.error_probes import MethodError, Rounding
from netsor.limits.notes import Notes
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.setting import Setting
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import Traced

Question = tuple[Any, ...]  # a rule with its arguments
Asking = Generator[Question | list[Question], Any, Any]  # a rule that asks for other quantities
NOTHING = object()


@dataclass(frozen=True)
class Rules:
    """The rules that lower ones ask for; passing them as values avoids circular imports."""

    mean: Callable[..., Any]  # mu(e) of an affine expression
    cov: Callable[..., Any]  # Sigma(e, f) of affine expressions
    first: Callable[..., Any]  # E[e]
    second: Callable[..., Any]  # E[e f]
    expectation: Callable[..., Any]  # E of atoms that share families, by a method of the ladder
    sampled_mean: Callable[..., Any]  # E of sampled atoms


@dataclass
class Recorder:
    """One recording of a program on groups of inputs.

    params   by name of input, a variance that replaces that of the program; if there are several values, a
             quantity (values, 1)
    """

    setting: Setting
    tape: Tape  # what all tiles share: quantities of single inputs, and samples
    data: Mapping[str, PerInput]
    params: Mapping[str, Any]
    rules: Rules
    notes: Notes
    padded: bool = False  # whether inputs of different lengths form one group: no one reads the padded values
    samples: Any = None  # how families are sampled, or None
    kept: dict[Any, Any] = field(default_factory=dict)  # by question, quantities that all tiles share
    tiled: dict[Any, Any] = field(default_factory=dict)  # by question, quantities of the current tile
    facts: dict[Any, Any] = field(default_factory=dict)  # what methods remember about functions

    def __post_init__(self) -> None:
        self.xp, self.program, self.forms = self.tape.namespace, self.setting.program, self.setting.forms
        self.index, self.rank, self.inputs_of = self.forms.index, self.forms.rank, self.setting.inputs_of
        self.zero = self.tape.constant(np.zeros((1, 1)))

    # Asking

    def ask(self, rule: Callable[..., Any], *args: Any) -> Any:
        """Return the quantity of a rule and its arguments; record it if it is new."""
        stack: list[tuple[Question, Asking]] = []  # the rules that have not returned yet
        wanted: Question = (rule, *args)
        value = self._recorded(wanted)
        while stack or value is NOTHING:
            if value is NOTHING:
                stack.append((wanted, wanted[0](self, *wanted[1:])))
                value = None
            key, steps = stack[-1]
            try:
                question = steps.send(value)
            except StopIteration as done:
                stack.pop()
                value = self._keep(key, done.value) if key else done.value
                continue
            if isinstance(question, list):
                stack.append(((), _each(question)))
                value = None
                continue
            wanted, value = question, self._recorded(question)
        return value

    def _recorded(self, key: Question) -> Any:
        """Return a recorded quantity, also if its mirror image is recorded; else NOTHING."""
        memo = self._memo(key)
        if key in memo:
            return memo[key]
        turned = mirrored(key)
        if turned not in memo:
            return NOTHING
        block = memo[turned]
        return self._keep(key, None if block is None else block.swapped)

    def _keep(self, key: Question, value: Any) -> Any:
        self._memo(key)[key] = value
        return value

    def _memo(self, key: tuple[Any, ...]) -> dict[Any, Any]:
        # Every rule takes its pair last. Blocks of tiles are forgotten with the tile.
        last = key[-1]
        return self.tiled if type(last) is Pair and last.rows is not None else self.kept

    def forget_tile(self) -> None:
        """Drop quantities of pairs of inputs; keep those of single inputs."""
        self.tiled = {}

    # Error bounds

    def inexact(
        self,
        what: str,
        method: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        shape: Any,
        kind: Any = None,
        plain: Callable[..., Any] | None = None,
    ) -> Any:
        """Record a step whose function returns (values, error bounds); `plain` returns the values alone."""
        self.notes.inexact = True
        tape = next(a.tape for a in args if isinstance(a, Traced))
        bound = MethodError(fn, partial(self.notes.report, what, method))
        return tape.call(plain or (lambda *arrays: fn(*arrays)[0]), args, shape, kind=kind, bound=bound)

    def rounded(self, block: PerPair, products: tuple[Any, ...] = ()) -> PerPair:
        """Attach its rounding to a block as an error bound if sums may cancel; see `Rounding`."""
        if not self.forms.may_cancel:  # the allowance for the rounding of the result then covers its terms
            return block
        bound = Rounding(self.rounding / 3 if products else 8.0)
        return replace(block, array=block.array.tape.bounded(block.array, bound, *products))

    # Shapes and numbers

    def variance(self, name: str) -> Any:
        """Return the variance of a matrix, or of an input whose law is one number."""
        source = self.program.definitions[name]
        assert isinstance(source, Input)
        default = source.law.var if isinstance(source.law, MatrixLaw) else getattr(source.law, "cov", None)
        return self.params.get(name, default)

    def factor(self, name: str, pair: Pair) -> Any:
        """Return the variance as a factor of blocks; several values are along the axis of repeats."""
        var = self.variance(name)
        return pair.left(var) if isinstance(var, PerInput) else pair.shared(var)

    @cached_property
    def rounding(self) -> float:
        """Rounding of a correlation in units of the last place: about sqrt(m) for sums of m products."""
        columns = [t.cols for t in self.program.types.values() if isinstance(t, A)]
        return 3 * (8 + max((m for m in columns if isinstance(m, int)), default=1) ** 0.5)

    @property
    def most_inputs(self) -> int:
        """Number of inputs of the largest group."""
        return max(self.setting.inputs.values(), default=1)


def _each(questions: list[Question]) -> Asking:
    """Ask for several quantities, one after the other; return their list."""
    answers = []
    for question in questions:
        answers.append((yield question))
    return answers


def mirrored(question: Question) -> Question | None:
    """Return the question for E[f e] of (x', x) if the one given is for E[e f] of (x, x'), else None."""
    if len(question) == 4 and type(question[3]) is Pair:
        rule, e, f, pair = question
        return rule, f, e, pair.flipped
    return None


def zero(r: Recorder, pair: Pair, left: int, right: int) -> PerPair:
    """Return a block of zeros with index axes of length 1."""
    ranks = max(left, right) if pair.tied else left + right
    return PerPair(pair.shared(r.xp.zeros((1,) * (pair.batch + ranks))), pair, left, right)
