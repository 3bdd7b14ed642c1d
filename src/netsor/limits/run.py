"""One computation of a limit: exactly if possible, else with the families sampled that need it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, sqrt
from typing import Any

import numpy as np

from netsor.build.network import Joint
from netsor.errors import LimitError
from netsor.lang.libraries import is_traced
from netsor.limits.matrix import diagonal_of_matrix, whole_matrix
from netsor.limits.methods.expectation import Expectations, NeedsSamplingError, Record
from netsor.limits.on_jax.rolled import recorded, rolled_matrix
from netsor.limits.on_jax.scanned import scanned_matrix, tile_of
from netsor.limits.on_numpy.tiles import Layout, Recording, lay_out
from netsor.limits.on_numpy.tiles import record as record_tiles
from netsor.limits.padding import Padding, pad
from netsor.limits.plan import Plan
from netsor.limits.recursion.engine import Engine
from netsor.limits.recursion.forms import Forms
from netsor.limits.recursion.outputs import Rows
from netsor.limits.sampling.averages import Averages
from netsor.limits.sampling.repeats import Repeats
from netsor.limits.sampling.sampled import Sampler
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import NeedsValuesError

__all__ = ["KernelRun", "Options", "Result", "deep_recursion"]

START, FIRST, GOOD = 2**12, 2**10, 5e-4  # points without a tolerance, and first ones with one
RATE = 0.8  # errors of scrambled Sobol points fall about like points^-0.8 here
SIGMAS = 2.0  # standard errors that a tolerance covers
AIM, MOST_REPEATS = 0.8, 4  # what part of a tolerance to aim at, and how many times the repeats to take
REPEAT = 2**11  # what a repeat costs beside its points, in points
RISK = 1.25  # what more points must save beside more repeats, as only the rate of these is sure
METHODS = ("auto", "exact", "sample")


@dataclass(frozen=True)
class Options:
    """How a limit is computed.

    method   "exact" raises where there is no exact method, "sample" samples every family
    tol      sampling grows until twice the error is below tol * sqrt(K_ii K_jj), or raises LimitError
    points   sample points per repeat (a power of two) to begin with; without a tolerance 4096, and up to
             four times as many for a second try if the error is above 5e-4 of the scale
    repeats  independent randomisations, whose spread is the error; a tolerance may take up to four times
             as many
    progress  a bar; by default only for runs longer than two seconds in a terminal
    memory   bytes of workspace beyond inputs and kernel; by default 256 MB, or what one pair of inputs
             needs, or one repeat of what is sampled
    """

    method: str = "auto"
    tol: float | None = None
    seed: int = 0
    dtype: Any = np.float64
    points: int | None = None
    repeats: int = 16
    max_points: int = 2**18
    progress: bool | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise LimitError(f"method={self.method!r}", remedy=f"Choose one of {', '.join(METHODS)}.")
        for name, least in (("points", 1), ("repeats", 2)):
            value = getattr(self, name)
            if value is None and name == "points":
                continue
            if not isinstance(value, int | np.integer) or value < least:
                raise LimitError(f"{name}={value!r}", remedy=f"Give an integer >= {least}.")
        if self.memory is not None and not self.memory > 0:
            raise LimitError(f"memory={self.memory!r}", remedy="Give a number of bytes, as in memory=2**30.")
        if self.tol is not None and not self.tol > 0:
            raise LimitError(f"tol={self.tol!r}", remedy="A tolerance is a positive number.")

    def further(self, points: int, repeats: int, reached: float) -> tuple[int, int] | None:
        """How many points and repeats to take next, or None if the error is good enough.

        The error falls like points^-RATE and like repeats^-1/2. Further repeats join those there are, so
        they are cheaper where little is missing; more points start again.
        """
        if self.tol is None:
            if self.points is not None or reached <= GOOD or points > START:
                return None
            return min((2 if reached <= 2 * GOOD else 4) * points, self.max_points), self.repeats
        if SIGMAS * reached <= self.tol:
            return None
        missing = SIGMAS * reached / (AIM * self.tol)
        wanted, fresh = ceil(repeats * missing**2), self.repeats
        costs: dict[tuple[int, int], float] = {}
        if wanted <= MOST_REPEATS * fresh:
            costs[points, wanted] = (points + REPEAT) * (wanted - repeats)
        alone = missing * sqrt(repeats / fresh)  # with as many repeats as a new start has
        factor = 2
        while points * factor <= self.max_points:
            total = fresh * max(1.0, alone / factor**RATE) ** 2
            costs[points * factor, fresh] = RISK * (points * factor + REPEAT) * total
            factor *= 2
        if not costs:
            raise LimitError(
                f"the tolerance {self.tol:g} is not reached",
                remedy=f"With {points} points the standard error is {reached:.2g}, and twice that counts. "
                "Allow more with max_points=..., or a larger tol.",
            )
        return min(costs, key=lambda key: costs[key])


@dataclass(frozen=True)
class Result:
    """A kernel matrix, an error estimate for each entry, and how it was computed."""

    value: np.ndarray
    error: np.ndarray
    plan: Plan

    def explain(self) -> str:
        """Which expectation was computed by which method, with which error."""
        return str(self.plan)


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Long sequences recurse once per token and rule."""
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(max(old, 1_000_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(old)


@dataclass
class KernelRun:
    """The kernel of a joint program; with `split`, between the inputs before it and those from it on."""

    made: Joint
    options: Options
    params: Mapping[str, Any] | None = None
    split: int | None = None
    forms: Forms = field(init=False)
    recording: Recording | None = field(init=False, default=None)
    padding: Padding | None = field(init=False, default=None)
    padded: KernelRun | None = field(init=False, default=None)
    families: frozenset[str] = field(init=False, default=frozenset())  # to sample, whatever the inputs are
    reasons: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.program = self.made.program
        self.forms = Forms(self.program)
        self.rows = Rows(self.made, self.split)
        self.batched = frozenset(
            name for name, array in self.made.data.items() if array.ndim > self.program.data[name].ndim
        )
        self.data = {name: self._as_floats(array) for name, array in self.made.data.items()}

    def on(self, data: Mapping[str, Any], params: Mapping[str, Any]) -> KernelRun:
        """The same run on other inputs of the same shapes; with none, what is worth keeping of it."""
        run = copy(self)
        run.data, run.params = {name: self._as_floats(array) for name, array in data.items()}, params
        run.made = replace(self.made, data=run.data)
        if self.padded and self.padding:
            run.padded = self.padded.on(self.padding.data(run.data), params)
        return run

    @property
    def serves_others(self) -> bool:
        """Whether what was recorded, or found to need samples, is good for all inputs of these shapes."""
        found = (self.padded or self).recording
        return (found is None or found.single is not None) and not self.made.concrete

    @property
    def arrays(self) -> list[Any]:
        """Data and variances, but for plain numbers."""
        return [*self.data.values(), *(p for p in (self.params or {}).values() if hasattr(p, "shape"))]

    @property
    def is_numpy(self) -> bool:
        return all(isinstance(array, np.ndarray | np.generic) for array in self.arrays)

    @property
    def is_traced(self) -> bool:
        """Whether the inputs are abstract arrays of JAX."""
        return is_traced(*self.arrays)

    def _as_floats(self, array: Any) -> Any:
        return np.asarray(array, self.options.dtype) if isinstance(array, np.ndarray) else array

    def engine(
        self,
        record: Record,
        sampler: Sampler | None = None,
        nudge: float = 0.0,
        tape: Tape | None = None,
        most: int | None = None,
    ) -> Engine:
        """A computation with the values of the inputs, or recorded on a tape for at most so many of them."""
        return Engine(
            self.program,
            self.data if tape is None else self.traced(tape, self.data, most),
            self.batched,
            lambda engine: Expectations(engine, record, sampler, nudge),
            self.params if tape is None else self.traced(tape, self.params or {}),
            self.forms,
        )

    def traced(self, tape: Tape, arrays: Mapping[str, Any], most: int | None = None) -> dict[str, Any]:
        made = {}
        for name, array in arrays.items():
            shape = np.shape(array)
            if most is not None and name in self.batched:
                shape = (min(most, shape[0]), *shape[1:])
            made[name] = tape.input(name, shape, self.options.dtype)
        return made

    # What to sample

    def result(self) -> Result:
        """The kernel with errors and plan."""
        return self.attempt(self.exact, self.sampled)

    def value(self) -> Any:
        """The kernel alone, in the library of its inputs."""
        if self.options.tol is not None:
            return self.engine(Record()).xp.asarray(self.result().value)
        return self.attempt(
            lambda: self.finite(
                self.as_padded(KernelRun.matrix_again) if self.is_numpy else self.matrix(Record())
            ),
            lambda *families: self.engine(Record()).xp.asarray(self.sampled(*families).value),
        )

    def diagonal(self) -> Any:
        """The variances of all outputs, or None if something must be sampled."""
        if self.options.method == "sample":
            return None
        try:
            with deep_recursion(), np.errstate(all="ignore"):
                return self.finite(diagonal_of_matrix(self.engine(Record()), self.rows))
        except NeedsSamplingError:
            return None

    def measure(self, quantity: Callable[[Engine], Any]) -> Any:
        """Any quantity of the engine, averaged over repeats where something must be sampled."""

        def sampled(families: frozenset[str], _: list[str]) -> Any:
            options = self.options
            make = partial(self.engine, Record())
            repeats = Repeats(make, families, options.seed, options.memory, options.progress)
            average, numbers = Averages(), range(options.repeats)
            for some in repeats.values(lambda engine, _: quantity(engine), options.points or START, numbers):
                if some is None:
                    return None
                average.add(some)
            return average.mean

        def exact() -> Any:
            value = quantity(self.engine(Record()))
            return None if value is None else value[0]

        return self.finite(self.attempt(exact, sampled))

    def attempt(self, exact: Callable[[], Any], sampled: Callable[[frozenset[str], list[str]], Any]) -> Any:
        """Exactly; where an expectation has no exact method, sample its families and start again."""
        method, reasons = self.options.method, list(self.reasons)
        families = frozenset(self.forms.families.values()) if method == "sample" else self.families
        while True:
            try:
                with deep_recursion(), np.errstate(all="ignore"):  # what is not finite is refused
                    return sampled(families, reasons) if families else exact()
            except NeedsSamplingError as needed:
                if method == "exact":
                    raise LimitError(
                        "this limit has no exact method",
                        remedy=f'{needed.reason}. Use method="auto", which samples only what it must.',
                    ) from None
                families |= needed.families
                reasons.append(needed.reason)

    # Values and errors

    def matrix(self, record: Record, nudge: float = 0.0) -> Any:
        """The exact kernel, and in `record` how it is computed."""
        if not self.is_numpy:
            value = self.rolled(record, nudge) if self.is_traced else None
            return (
                whole_matrix(self.engine(record, nudge=nudge), self.rows)[0, ...] if value is None else value
            )
        return self.as_padded(lambda run: run.run_recorded(run.record(record, nudge)))

    def as_padded(self, compute: Callable[[KernelRun], Any]) -> Any:
        """A quantity of this run, if possible with inputs of different lengths as one group."""
        if self.padding is None and self.recording is None:
            self.padding = pad(self.made)
            if self.padding:
                made = replace(self.padding.made, data=self.padding.data(self.data))
                self.padded = KernelRun(made, self.options, self.params, self.split)
        if self.padded:
            try:
                return self.finite(compute(self.padded))
            except (NeedsSamplingError, LimitError):  # perhaps of what was padded, and in other names
                self.padded = None
        return compute(self)

    def rolled(self, record: Record, nudge: float) -> Any:
        """The exact kernel as a few loops, which compile fast; None if what to compute depends on values."""
        found = recorded(lambda tape: self.engine(record, nudge=nudge, tape=tape), self.rows)
        if found is None:
            return None
        tile = tile_of(self, found.largest)
        if tile is not None:
            return scanned_matrix(self, tile, record, nudge)
        return rolled_matrix(found, self.rows, {**self.data, **(self.params or {})})

    def matrix_again(self) -> np.ndarray:
        """The exact kernel, recorded at the first run; the second one compiles loops if they pay."""
        known = self.recording
        if known is None or (not known.compiled and known.layout.is_worth_compiling(again=True)):
            self.recording = self.record(Record(silent=True), layout=known and known.layout)
        assert self.recording is not None
        return self.run_recorded(self.recording)

    def record(self, record: Record, nudge: float = 0.0, layout: Layout | None = None) -> Recording:
        """The computation for inputs of these shapes; where it depends on values, for these inputs."""
        try:
            return self._record(record, nudge, layout, symbolic=True)
        except NeedsSamplingError as needed:
            if self.options.method == "auto":
                self.families, self.reasons = needed.families, (needed.reason,)
            raise
        except NeedsValuesError:
            return self._record(record, nudge, layout, symbolic=False)

    def _record(self, record: Record, nudge: float, layout: Layout | None, symbolic: bool) -> Recording:
        def make(tape: Tape, most: int | None) -> Engine:
            return self.engine(record, nudge=nudge, tape=tape if symbolic else None, most=most)

        found = layout or lay_out(make, self.rows)
        record.entries.clear()
        record.compiled = found.is_worth_compiling(again=layout is not None)
        options = self.options
        return record_tiles(make, found, record.compiled, options.memory, symbolic, options.dtype)

    def run_recorded(self, recording: Recording) -> np.ndarray:
        dtype = self.options.dtype
        given = {**self.data, **{name: np.asarray(p, dtype) for name, p in (self.params or {}).items()}}
        return recording.run(given, dtype, self.options.progress)

    def exact(self) -> Result:
        record = Record()
        value = self.finite(self.matrix(record))
        error = self.rounding(value)
        if record.inexact:
            moved = self.matrix(Record(), nudge=1.0)
            error = error + 2 * abs(moved - value)
        reached, tol = _relative(error, self.scale(value)), self.options.tol
        if tol is not None and reached > tol:
            raise LimitError(
                f"the tolerance {tol:g} is not reached",
                remedy=f"The exact methods have an error of {reached:.2g} here. Use a larger tol.",
            )
        return Result(value, error, Plan.of(record, self.program, error, value))

    def sampled(self, families: frozenset[str], reasons: list[str]) -> Result:
        if not self.is_numpy:
            return self.in_numpy(reasons).sampled(families, reasons)
        if self.split is not None:  # samples are joint over all inputs, so the block is cut out at the end
            whole = KernelRun(self.made, self.options, self.params, None).sampled(families, reasons)
            block = np.s_[: self.rows.left_size, self.rows.left_size :]
            return Result(whole.value[block], whole.error[block], whole.plan)
        options, record = self.options, Record()
        points, numbers = options.points or (FIRST if options.tol else START), range(options.repeats)
        repeats = Repeats(
            lambda sampler: self.engine(record, sampler),
            families,
            options.seed,
            options.memory,
            options.progress,
            8 * self.rows.left_size * self.rows.right_size,
        )
        average = Averages()
        while True:
            for some in repeats.values(lambda e, n: whole_matrix(e, self.rows, n), points, numbers):
                average.add(self.finite(some))
            value = average.mean
            error = average.error + self.rounding(value)
            more = options.further(points, average.count, _relative(error, self.scale(value)))
            if more is None:
                plan = Plan.of(record, self.program, error, value)
                plan = replace(plan, sampled=tuple(sorted(families)), dimensions=repeats.dimensions)
                plan = replace(plan, points=points, repeats=average.count, reasons=tuple(reasons))
                return Result(value, error, plan)
            if more[0] == points:
                numbers = range(average.count, more[1])
            else:
                points, numbers, record, average = more[0], range(more[1]), Record(), Averages()

    def in_numpy(self, reasons: list[str]) -> KernelRun:
        """The same run on NumPy arrays: sampling knows no other."""
        arrays, params = self.made.data, dict(self.params or {})
        if self.is_traced:
            raise LimitError(
                "a limit that must be sampled cannot be traced by jax.jit or differentiated by jax.grad",
                remedy=f"{reasons[-1]}. Call the kernel outside jit and grad; use finite differences.",
            )
        data = {name: np.asarray(array) for name, array in arrays.items()}
        numbers = {name: float(value) for name, value in params.items()}
        return KernelRun(replace(self.made, data=data), self.options, numbers, self.split)

    def finite(self, value: Any) -> Any:
        """The value, unless it has a NaN or an infinity: then there is no limit."""
        if value is not None and not is_traced(value) and not _is_finite(np.asarray(value)):
            raise LimitError(
                "this program has no limit on these inputs: an expectation is not finite",
                remedy="Either a variance that is divided by is 0 (layernorm or batchnorm of equal values), "
                "or a nonlinearity has a pole, grows too fast, or is not defined where its argument goes.",
            )
        return value

    def scale(self, value: np.ndarray) -> np.ndarray:
        if self.split is None:
            deviations = np.sqrt(np.clip(np.diagonal(value), 0, None))
            return deviations[:, None] * deviations
        return np.full(value.shape, np.abs(value).max(initial=0.0))

    def rounding(self, value: np.ndarray) -> np.ndarray:
        """An allowance for floating-point rounding: a few units per statement."""
        eps = float(np.finfo(self.options.dtype).eps)
        return 8 * eps * len(self.program.statements) * self.scale(value)


def _is_finite(value: np.ndarray, rows: int = 256) -> bool:
    """Whether all entries are finite, a few rows at a time: a large kernel fills the memory already."""
    parts = value if value.ndim > 1 else value[None]
    return all(bool(np.isfinite(parts[a : a + rows]).all()) for a in range(0, len(parts), rows))


def _relative(error: np.ndarray, scale: np.ndarray) -> float:
    return float(np.max(error / np.where(scale > 0, scale, 1.0), initial=0.0))
