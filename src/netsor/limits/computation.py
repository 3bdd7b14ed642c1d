"""One network on inputs of given shapes: planned, then carried out on any values of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from netsor.build.network import Joint
from netsor.errors import LimitError
from netsor.expect.points.landmarks import Landmarks
from netsor.lang.program import Program
from netsor.limits.assembly import Rows
from netsor.limits.bounds import Bound
from netsor.limits.methods.ladder import expectation
from netsor.limits.near.gaps import second_of_twins
from netsor.limits.near.twins import Entries, NearPairs
from netsor.limits.notes import Notes
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import Recording, record
from netsor.limits.options import Options
from netsor.limits.padding import Padding, pad
from netsor.limits.plan import Plan, Sampling, largest, largest_entry
from netsor.limits.recursion.forms import Forms
from netsor.limits.recursion.moments import first, second
from netsor.limits.recursion.outputs import output_index, output_second
from netsor.limits.recursion.pairs import Pair, PerInput
from netsor.limits.recursion.recorder import Missing, Recorder, Rules
from netsor.limits.sampling.averages import Averages
from netsor.limits.sampling.carried import WORTH
from netsor.limits.sampling.repeats import Repeats
from netsor.limits.sampling.values import Samples, sampled_mean
from netsor.limits.tape.tape import Tape
from netsor.limits.tiling import Cut
from netsor.progress import bar

__all__ = ["Computation", "Result"]

NUDGE = "nudge"  # by how many of its error bounds every inexact number is moved
RULES = Rules(first, second, expectation, sampled_mean)
Values = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Result:
    """A kernel matrix, an error estimate for each entry (`error`), and how it was computed."""

    value: np.ndarray
    bound: Bound
    plan: Plan

    @cached_property
    def error(self) -> np.ndarray:
        """(rows, columns): written out when it is first asked for, as it is as large as the kernel."""
        return self.bound.full()

    def explain(self) -> str:
        """Which expectation was computed by which method, with which error."""
        return str(self.plan)

    def __repr__(self) -> str:
        rows, columns = self.value.shape
        return f"<kernel of {rows} x {columns}, largest error {self.bound.largest:.1e}>"

    def _repr_html_(self) -> str:
        from netsor.display import fold, heat_map, panel

        maps = heat_map(self.value, "kernel") + heat_map(self.error, "error", logarithmic=True)
        return panel(
            repr(self)[1:-1], f'<div class="row">{maps}</div>', fold("plan", self.plan._repr_html_())
        )


class Computation:
    """The kernel of a joint program; with `split`, between the inputs before it and those from it on.

    Only the shapes of its data count. `params` names the variances that are given with the data, and `varied`
    those that are given `versions` values each, for as many kernels in one pass. A part of a larger kernel is
    computed with the `cut` of the whole.
    """

    def __init__(
        self,
        made: Joint,
        options: Options,
        params: tuple[str, ...],
        split: int | None,
        cut: Cut | None = None,
        varied: tuple[str, ...] = (),
        versions: int = 1,
    ) -> None:
        self.options, self.params, self.cut = options, params, cut
        self.varied, self.versions = varied, versions
        self.program, self.rows = made.program, Rows(made, split)
        self.forms = Forms(self.program)
        self.batched = frozenset(
            name for name, array in made.data.items() if array.ndim > self.program.data[name].ndim
        )
        self.shapes = {name: np.shape(array) for name, array in made.data.items()}
        empty = {name: np.broadcast_to(0.0, shape) for name, shape in self.shapes.items()}
        self.made = replace(made, data=empty)  # kernels keep computations, not the inputs they were made for
        self.missing: Missing | None = None  # what must be sampled, whatever the inputs are
        self.reasons: tuple[str, ...] = ()
        if options.method == "sample":
            self.missing = Missing(frozenset(self.forms.families.values()), "")
        self._recordings: dict[bool, Recording] = {}
        self._repeats: Repeats | None = None
        self._padded: tuple[Padding, Computation] | bool | None = False
        self.is_padded = False

    def __getstate__(self) -> dict[str, Any]:
        """What travels: the program and what must be sampled, nothing that was recorded."""
        made = replace(self.made, data=self.shapes)
        found = {"missing": self.missing, "reasons": self.reasons}
        return {"of": (made, self.options, self.params, self.rows.split, self.cut), "found": found}

    def __setstate__(self, state: dict[str, Any]) -> None:
        made, *rest = state["of"]
        data = {name: np.broadcast_to(0.0, shape) for name, shape in made.data.items()}
        self.__init__(replace(made, data=data), *rest)
        self.__dict__.update(state["found"])

    # Recording

    def recorder(
        self,
        tape: Tape,
        most: int | None = None,
        errors: bool = False,
        samples: Samples | None = None,
        traced: bool = False,
    ) -> Recorder:
        """A recorder of this program, for at most so many inputs at a time."""
        shapes = {
            name: (min(most, shape[0]), *shape[1:]) if most is not None and name in self.batched else shape
            for name, shape in self.shapes.items()
        }
        return self._recorder_of(self.program, self.forms, shapes, tape, errors, samples, traced)

    def _recorder_of(
        self,
        program: Program,
        forms: Forms,
        shapes: Mapping[str, tuple[int, ...]],
        tape: Tape,
        errors: bool = False,
        samples: Samples | None = None,
        traced: bool = False,
    ) -> Recorder:
        dtype, data = self.options.dtype, {}
        for name, shape in shapes.items():
            array, rank = tape.input(name, shape, dtype), program.data[name].ndim
            data[name] = PerInput(array[None, ...] if len(shape) > rank else array[None, None, ...], rank)
        params: dict[str, Any] = {name: tape.input(name, (), dtype) for name in self.params}
        for name in self.varied:
            params[name] = (
                PerInput(tape.input(name, (self.versions, 1), dtype), 0)
                if forms is self.forms
                else tape.input(name, (), dtype)
            )
        nudge = tape.input(NUDGE, (), dtype) if errors else None
        notes = Notes(remarks=dict.fromkeys(self.made.tangent.remarks if self.made.tangent else ()))
        return Recorder(
            program, forms, tape, data, params, RULES, notes, nudge, self.is_padded, traced, samples
        )

    @property
    def padded(self) -> tuple[Padding, Computation] | None:
        """The same with inputs of different lengths as one group, where that pays."""
        if self._padded is False:
            padding = pad(self.made) if len(self.made.groups) > 1 else None
            self._padded = None
            if padding is not None:
                made = replace(padding.made, data=padding.data(self.made.data))
                own = Computation(
                    made, self.options, self.params, self.rows.split, self.cut, self.varied, self.versions
                )
                own._padded, own.is_padded = None, True
                self._padded = padding, own
        assert not isinstance(self._padded, bool)
        return self._padded

    def recording(self, errors: bool) -> Recording | None:
        """The exact computation with or without errors, or None if something must be sampled.

        The second one without errors is with compiled loops, if they pay.
        """
        if self.missing is not None:
            return None
        known = self._recordings.get(errors)
        if known is None or (self.cut is None and not errors and known.ran and known.pays_compiling):
            options = self.options

            def make(tape: Tape, most: int | None) -> Recorder:
                return self.recorder(tape, most, errors)

            found = record(
                make, self.program, self.rows, options.memory, options.dtype, known is not None, self.cut
            )
            if isinstance(found, Missing):
                self._sample(found)
                return None
            self._recordings[errors] = found
        return self._recordings[errors]

    def _sample(self, missing: Missing) -> None:
        """Note families that must be sampled."""
        if self.options.method == "exact":
            raise LimitError(
                "this limit has no exact method",
                remedy=f'{missing.reason}. Use method="auto", which samples only what it must.',
            )
        before = self.missing.families if self.missing else frozenset()
        self.missing = Missing(before | missing.families, missing.reason)
        self.reasons = (*self.reasons, missing.reason)

    @property
    def repeats(self) -> Repeats:
        """The kernel with some families sampled."""
        if self._repeats is None:
            self._repeats = self._repeats_of(None)
        return self._repeats

    def _repeats_of(self, question: tuple[Any, ...] | None) -> Repeats:
        """The kernel, or what a question asks for, with all families sampled that must be."""
        while True:
            assert self.missing is not None
            families = self.missing.families
            made = Repeats(self.recorder, self.program, self.rows, self.options, families, question)
            found = made.at(self.options.first_points)
            if not isinstance(found, Missing):
                return made
            self._sample(found)

    # The plan

    def exact(self, errors: bool) -> tuple[Callable[[Values], Values], Recording] | None:
        """How data become those of an exact recording, and that; None if something must be sampled."""
        if self.missing is None and self.padded is not None:
            padding, own = self.padded
            found = own.recording(errors)
            if found is not None:
                return lambda given: {**given, **padding.data(given)}, found
            assert own.missing is not None
        found = self.recording(errors)
        return None if found is None else (lambda given: given, found)

    def plan(self, errors: bool = False) -> Plan:
        """What the kernel takes, without computing it."""
        shape = (self.rows.left_size, self.rows.right_size)
        exact = self.exact(errors)
        if exact is not None:
            return _plan_of(exact[1], len(self.program.statements), shape)
        return self._sampled_plan(self.options.first_points, self.options.repeats)

    def _sampled_plan(self, points: int, count: int) -> Plan:
        assert self.missing is not None
        repeats = self.repeats
        families, shape = tuple(sorted(self.missing.families)), (self.rows.left_size, self.rows.right_size)
        made = _plan_of(repeats.recording(points), len(self.program.statements), shape)
        rows = repeats.variables(points)
        sampling = Sampling(families, self.reasons, points, count, rows, repeats.dimensions)
        compiled = made.compiled or repeats.compiled
        return replace(made, sampling=sampling, compiled=compiled, bytes=made.bytes + repeats.bytes(points))

    # Running

    def given(self, data: Values, params: Values) -> dict[str, Any]:
        dtype = self.options.dtype
        found = {name: np.asarray(x, dtype) for name, x in (*data.items(), *params.items())}
        for name in data:
            _require_scale(name, found[name])
        return found

    def value(self, data: Values, params: Values) -> np.ndarray:
        """The kernel alone."""
        if self.options.tol is not None:
            return self.result(data, params).value
        exact = self.exact(errors=False)
        if exact is None:
            return self._sampled(data, params).value
        prepare, recording = exact
        given = self.given(data, params)
        (value,) = self._runs(recording, prepare(given), 0.0)
        for entries in self._near(recording, given, {0.0: value}):
            value[entries.rows, entries.cols] = entries.values[0]
        return value

    def several(self, data: Values, params: Values, varied: Sequence[Values]) -> np.ndarray | None:
        """(versions, rows, columns) of the kernels with varied variances; None if something must be sampled.

        What does not depend on them is computed once.
        """
        exact = self.exact(errors=False)
        if exact is None:
            return None
        prepare, recording = exact
        given, dtype = self.given(data, params), self.options.dtype
        table = {name: np.array([[v[name]] for v in varied], dtype) for name in self.varied}
        recording.ran = True
        value = finite(
            on_numpy.run(recording, {**prepare(given), **table}, dtype, self.versions, lambda: None)
        )
        for matrix, own in zip(value, varied, strict=True):
            for entries in self._near(recording, {**given, **self.given({}, own)}, {0.0: matrix}):
                matrix[entries.rows, entries.cols] = entries.values[0]
        return value

    def _near(self, recording: Recording, given: Values, kernels: Mapping[float, Any]) -> Iterator[Entries]:
        """The entries of nearly equal inputs at some nudges, where functions are steep."""
        if not recording.notes.steep:
            return iter(())
        names = (self.shapes, (*self.params, *self.varied))
        data, params = ({name: given[name] for name in own} for own in names)
        diagonals = {nudge: np.diagonal(kernel) for nudge, kernel in kernels.items()}
        return NearPairs(self.program, self.rows, data, params, self._twins, diagonals).entries()

    def _twins(self, program: Program, shapes: Mapping[str, tuple[int, ...]]) -> Recorder:
        """A recorder of a program of two inputs."""
        made = self._recorder_of(program, Forms(program), shapes, Tape(dtype=self.options.dtype), errors=True)
        return replace(made, rules=replace(RULES, second=second_of_twins))

    def _runs(self, recording: Recording, given: Values, *nudges: float) -> list[np.ndarray]:
        """The kernel, moved by so many of its error bounds."""
        count = sum(len(tiles.places) for tiles in recording.tiles)
        with bar(self.options.progress, count * len(nudges), "computing the kernel") as advance:
            recording.ran = True
            runs = (
                on_numpy.run(recording, {**given, NUDGE: nudge}, self.options.dtype, 1, advance)[0]
                for nudge in nudges
            )
            return [finite(run) for run in runs]

    def result(self, data: Values, params: Values) -> Result:
        """The kernel with errors and plan."""
        exact = self.exact(errors=True)
        if exact is None:
            return self._sampled(data, params)
        prepare, recording = exact
        own = self.given(data, params)
        given = prepare(own)
        with recording.lock:
            recording.notes.errors.clear()
            nudges = (0.0, 1.0) if recording.notes.inexact else (0.0,)
            value, *moved = self._runs(recording, given, *nudges)
            near = list(self._near(recording, own, dict(zip(nudges, (value, *moved), strict=True))))
            for entries in near:
                value[entries.rows, entries.cols] = entries.values[0]
            bound, scale = self.rounding(value), self.scale(value)
            for change in moved:
                change -= value
                np.abs(change, out=change)
                for entries in near:
                    change[entries.rows, entries.cols] = abs(entries.values[1] - entries.values[0])
                change *= 2
                bound = replace(bound, more=change)
            plan = _plan_of(recording, len(self.program.statements), value.shape)
        reached, tol = bound.relative(*scale), self.options.tol
        if tol is not None and reached > tol:
            raise LimitError(
                f"the tolerance {tol:g} is not reached",
                remedy=f"The exact methods have an error of {reached:.2g} here. Use a larger tol.",
            )
        return Result(value, bound, replace(plan, **largest(bound, value)))

    @property
    def has_landmarks(self) -> bool:
        """Whether its inputs can be drawn with landmarks: all that is sampled is in tables, of one shape."""
        if self.exact(errors=True) is not None or len(self.rows.groups) > 1 or self.repeats.tables is None:
            return False
        recorder = self.repeats.recording(self.options.first_points).recorder
        return not any(recorder.samples.drawn.values())

    def sampled_part(self, data: Values, params: Values, landmarks: Landmarks) -> Result:
        """The kernel of landmarks and others, each of which is drawn as with any others."""
        self.exact(errors=True)  # finds what must be sampled
        shared: dict[str, Any] = {"landmarks": landmarks}
        average, points = Averages(), self.options.first_points
        for some in self.repeats.kernels(
            self.given(data, params), points, range(self.options.repeats), shared
        ):
            average.add(finite(some))
        value, error = average.mean, average.error
        left, right = self.scale(value)
        outputs = len(value) // (landmarks.count + len(landmarks.numbers))
        # By Price's theorem a covariance that landmarks leave out changes E[f g] by at most as much times the
        # slopes of f and g, which are at most 1 for gates and states: all of it counts.
        dropped = np.kron(shared["dropped"], np.ones((outputs, outputs)))
        error += (dropped + WORTH * shared["carried"].share()) * left[:, None] * right
        bound = replace(self.rounding(value), more=error)
        return Result(value, bound, self._sampled_plan(points, average.count))

    def _sampled(self, data: Values, params: Values) -> Result:
        given, options, repeats = self.given(data, params), self.options, self.repeats
        points, numbers, average = options.first_points, range(options.repeats), Averages()
        shared: dict[str, Any] = {}
        while True:
            for some in repeats.kernels(given, points, numbers, shared):
                average.add(finite(some))
            value, share = average.mean, shared["carried"].share()
            (left, right), error = self.scale(value), average.error
            if share:
                error = np.maximum(error, WORTH * share * left[:, None] * right)
            bound = replace(self.rounding(value), more=error)
            more = options.further(points, average.count, bound.relative(left, right))
            if more is None:
                plan = self._sampled_plan(points, average.count)
                if share:
                    remark = f"one sample point carries {share:.0%} of a second moment: errors are larger"
                    plan = replace(plan, remarks=(*plan.remarks, remark))
                return Result(value, bound, replace(plan, **largest(bound, value)))
            if more[0] == points:
                numbers = range(average.count, more[1])
            else:
                points, numbers, average = more[0], range(more[1]), Averages()
                shared.pop("carried")

    def means(self) -> np.ndarray:
        """The mean of every row: what an Output adds to its readouts."""
        found = np.zeros(self.rows.left_size)
        for output, rows in zip(self.program.outputs, self.rows.left, strict=True):
            found[rows[rows >= 0]] = output.shift
        return found

    def diagonal(self, data: Values, params: Values) -> np.ndarray | None:
        """The variances of all outputs, from self blocks alone; None if something must be sampled."""
        made = [
            self.measure(data, params, output_second, o, o, Pair(True), exact=True) for o in self._outputs()
        ]
        if any(block is None for block in made):
            return None
        parts, numbers = [], []
        for o, block in zip(self._outputs(), made, strict=True):
            index = output_index(self.program, self.program.outputs[o])
            members = next(len(g.members) for g in self.rows.groups if o in g.outputs)
            size = int(np.prod(index, dtype=int))
            full = np.broadcast_to(block[0], (members, *index, *index)).reshape(members, size, size)
            parts.append(np.einsum("kii->ki", full).reshape(-1))
            numbers.append(self.rows.left[o].reshape(-1))
        return finite(np.concatenate(parts)[np.argsort(np.concatenate(numbers))])

    def _outputs(self) -> list[int]:
        return [o for group in self.rows.groups for o in group.outputs]

    def measure(self, data: Values, params: Values, *question: Any, exact: bool = False) -> Any:
        """Any quantity of single inputs, (1, inputs, ...), averaged over repeats where something is sampled.

        None is a structural zero, and with `exact` also what must be sampled.
        """
        given = self.given(data, params)
        if self.missing is None:
            recorder = self.recorder(Tape(dtype=self.options.dtype))
            found = recorder.ask(*question)
            if not recorder.missing:
                return None if found is None else self._measured(found, given)
            if not exact:
                self._sample(recorder.missing)
        if exact:
            return None
        asked, points, average = self._repeats_of(question), self.options.first_points, Averages()
        if asked.is_zero(points):
            return None
        shared: dict[str, Any] = {}
        for some in asked.quantities(given, points, range(self.options.repeats), shared):
            average.add(some)
        shared["carried"].share()
        return finite(average.mean)[None]

    def _measured(self, found: Any, given: Values) -> np.ndarray:
        prepared = Prepared(found.array.tape, [found.array])
        return finite(on_numpy.single_values(prepared, given)[found.array.step])

    # Errors

    def scale(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the rows and of the columns whose products are the scale of the entries."""
        if self.rows.symmetric:
            deviations = np.sqrt(np.clip(np.diagonal(value), 0, None))
            return deviations, deviations
        size = np.sqrt(largest_entry(value))
        return np.full(value.shape[0], size), np.full(value.shape[1], size)

    def rounding(self, value: np.ndarray) -> Bound:
        """An allowance for floating-point rounding: a few units per statement."""
        left, right = self.scale(value)
        return Bound(8 * float(np.finfo(self.options.dtype).eps) * len(self.program.statements) * left, right)


def _plan_of(recording: Recording, statements: int, shape: tuple[int, ...]) -> Plan:
    notes = recording.notes
    return Plan(
        notes.expectations(),
        statements,
        (shape[0], shape[1]),
        sum(len(tiles.places) for tiles in recording.tiles),
        recording.work,
        recording.bytes,
        recording.compiled,
        None,
        tuple(notes.remarks),
    )


def _require_scale(name: str, data: np.ndarray) -> None:
    """The squares of data are numbers, too."""
    limits, sizes = np.finfo(data.dtype), np.abs(data)
    least, most = (float(x) ** 0.25 for x in (limits.smallest_normal, limits.max))
    if sizes.max(initial=0.0) < most and not np.any((sizes < least) & (sizes > 0)):
        return  # most often, and at once: the largest of each vector takes longer
    largest = sizes.max(axis=-1, initial=0.0) if data.ndim else sizes
    if not np.all((largest == 0) | ((largest > least) & (largest < most))):
        raise LimitError(
            f"the numbers of `{name}` are too large or too small to be squared",
            remedy=f"Scale the inputs: the largest number of each vector is 0 or between {least:.0e} and "
            f"{most:.0e}, in {data.dtype.name}.",
        )


def finite(value: Any) -> Any:
    """The value, unless it has a NaN or an infinity: then there is no limit."""
    if not _is_finite(np.asarray(value)):
        raise LimitError(
            "this program has no limit on these inputs: an expectation is not finite",
            remedy="Either a variance that is divided by is 0 (layernorm or batchnorm of equal values), "
            "or a nonlinearity has a pole, grows too fast, or is not defined where its argument goes.",
        )
    return value


def _is_finite(value: np.ndarray, rows: int = 256) -> bool:
    """Whether all entries are finite, a few rows at a time: a large kernel fills the memory already."""
    parts = value if value.ndim > 1 else value[None]
    return all(bool(np.isfinite(parts[a : a + rows]).all()) for a in range(0, len(parts), rows))
