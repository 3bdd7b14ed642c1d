"""One network on inputs of given shapes: planned, then carried out on any values of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.build.network import Joint
from netsor.errors import LimitError
from netsor.expect.points.landmarks import Landmarks
from netsor.lang.program import Program
from netsor.limits.assembly import Rows
from netsor.limits.finite import finite, in_range
from netsor.limits.methods.ladder import expectation
from netsor.limits.near.gaps import second_of_twins
from netsor.limits.near.twins import Entries, NearPairs
from netsor.limits.notes import Notes
from netsor.limits.nudges import DOWN, NUDGE, STILL, TURN, Nudge, changes, farthest
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import Recording, record
from netsor.limits.options import Options
from netsor.limits.padding import Padding, pad
from netsor.limits.plan import Plan, require_patience
from netsor.limits.recursion.forms import Forms
from netsor.limits.recursion.moments import first, second
from netsor.limits.recursion.outputs import output_index, output_second
from netsor.limits.recursion.pairs import Pair, PerInput
from netsor.limits.recursion.recorder import Missing, Recorder, Rules
from netsor.limits.result import Result, Scale, plan_of
from netsor.limits.sampling.averages import Averages
from netsor.limits.sampling.values import Samples, sampled_mean
from netsor.limits.tape.tape import Tape
from netsor.limits.tiling import Cut
from netsor.progress import bar

if TYPE_CHECKING:
    from netsor.limits.sampling.kernel import SampledKernel
    from netsor.limits.sampling.repeats import Repeats

__all__ = ["Computation"]

RATE = 3e8  # multiply-adds in a second, about: how long a kernel takes as long as nothing of it is done
MOST_FINDS = 6  # of families that must be sampled: each takes a recording, and then all are sampled
RULES = Rules(first, second, expectation, sampled_mean)
Values = Mapping[str, Any]


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
        self.found_missing = 0
        if options.method == "sample":
            self.missing = Missing(frozenset(self.forms.families.values()), "")
        self._recordings: dict[bool, Recording] = {}
        self._sampled: SampledKernel | None = None
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
        nudge, turn = (tape.input(name, (), dtype) if errors else None for name in (NUDGE, TURN))
        notes = Notes(remarks=dict.fromkeys(self.made.tangent.remarks if self.made.tangent else ()))
        return Recorder(
            program, forms, tape, data, params, RULES, notes, nudge, turn, self.is_padded, traced, samples
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

            memory, compiled = options.memory, known is not None
            with bar(options.progress, 0, "planning the kernel"):
                found = record(make, self.program, self.rows, memory, options.dtype, compiled, self.cut)
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
        families = missing.families | (self.missing.families if self.missing else frozenset())
        self.found_missing += 1
        if self.found_missing > MOST_FINDS:
            families |= frozenset(self.forms.families.values())
        self.missing = Missing(families, missing.reason)
        self.reasons = tuple(dict.fromkeys((*self.reasons, missing.reason)))

    @property
    def sampled(self) -> SampledKernel:
        """The kernel with some families sampled: those that must be."""
        if self._sampled is None:
            repeats = self._repeats_of(None)
            assert self.missing is not None
            from netsor.limits.sampling.kernel import SampledKernel  # most kernels need none

            self._sampled = SampledKernel(repeats, self.missing.families, self.reasons)
        return self._sampled

    def _repeats_of(self, question: tuple[Any, ...] | None) -> Repeats:
        """The kernel, or what a question asks for, with all families sampled that must be."""
        from netsor.limits.sampling.repeats import Repeats

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
            return plan_of(exact[1], len(self.program.statements), shape)
        return self.sampled.plan(self.options.first_points, self.options.repeats)

    # Running

    def given(self, data: Values, params: Values) -> dict[str, Any]:
        dtype = self.options.dtype
        found = {name: np.asarray(x, dtype) for name, x in (*data.items(), *params.items())}
        for name in data:
            _require_scale(name, found[name])
        return found

    def value(self, data: Values, params: Values, held: dict[str, Any] | None = None) -> np.ndarray:
        """The kernel alone; with `held`, what sampling has chosen in the first of several calls stays."""
        if self.options.tol is not None:
            return self.result(data, params).value
        exact = self.exact(errors=False)
        if exact is None:
            return self.sampled.result(self.given(data, params), False, held).value
        prepare, recording = exact
        given = self.given(data, params)
        value = self._run(recording, prepare(given), STILL, "computing the kernel")
        for entries in self._near(recording, given, [STILL], [np.diagonal(value)]):
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
        value = on_numpy.run(recording, {**prepare(given), **table}, dtype, self.versions, lambda: None)
        for matrix, own in zip(value, varied, strict=True):
            at = {**given, **self.given({}, own)}
            for entries in self._near(recording, at, [STILL], [np.diagonal(matrix)]):
                matrix[entries.rows, entries.cols] = entries.values[0]
        return value

    def _near(
        self, recording: Recording, given: Values, nudges: list[Nudge], diagonals: list[np.ndarray]
    ) -> Iterator[Entries]:
        """The entries of nearly equal inputs at some nudges, where functions are steep."""
        if not recording.notes.steep or self.program.noise:  # equal inputs differ in their noise
            return iter(())
        names = (self.shapes, (*self.params, *self.varied))
        data, params = ({name: given[name] for name in own} for own in names)
        return NearPairs(self.program, self.rows, data, params, self._twins, nudges, diagonals).entries()

    def _twins(self, program: Program, shapes: Mapping[str, tuple[int, ...]]) -> Recorder:
        """A recorder of a program of two inputs."""
        made = self._recorder_of(program, Forms(program), shapes, Tape(dtype=self.options.dtype), errors=True)
        return replace(made, rules=replace(RULES, second=second_of_twins))

    def _run(self, recording: Recording, given: Values, nudge: Nudge, what: str) -> np.ndarray:
        """The kernel, moved by so many of its error bounds."""
        if not recording.ran:
            require_patience(
                plan_of(recording, 0, (self.rows.left_size, self.rows.right_size)), self.options.confirm
            )
        recording.ran, count = True, sum(len(tiles.places) for tiles in recording.tiles)
        with bar(self.options.progress, count, what, lambda: recording.work / RATE) as advance:
            return on_numpy.run(recording, {**given, **nudge}, self.options.dtype, 1, advance)[0]

    def result(self, data: Values, params: Values) -> Result:
        """The kernel with errors and plan."""
        exact = self.exact(errors=True)
        if exact is None:
            return self.sampled.result(self.given(data, params), errors=True)
        prepare, recording = exact
        own, statements = self.given(data, params), len(self.program.statements)
        given = prepare(own)
        with recording.lock:
            recording.notes.errors.clear()
            value = in_range(self._run(recording, given, STILL, "computing the kernel"))
            nudges, diagonals = [STILL], [np.diagonal(value).copy()]
            scale = Scale.of(value, self.rows.symmetric)

            def change(nudge: Nudge) -> np.ndarray:
                moved = self._run(recording, given, nudge, "computing its errors")
                nudges.append(nudge)
                diagonals.append(np.diagonal(moved).copy())
                moved -= value  # in place: it is as large as the kernel
                return moved

            counts = partial(scale.counts, statements, self.options.dtype)
            more = farthest(changes(change, recording.notes, counts))
            nudges.append(DOWN)
            diagonals.append(diagonals[0])
            for entries in self._near(recording, own, nudges, diagonals):
                still, *moved = entries.values
                value[entries.rows, entries.cols] = still
                if more is not None:
                    near = zip(nudges[1:], (x - still for x in moved), strict=True)
                    more[entries.rows, entries.cols] = farthest(near)
            scale = Scale.of(value, self.rows.symmetric)
            plan = plan_of(recording, statements, value.shape)
            bound = scale.rounding(statements, self.options.dtype, more)
        remedy = "The exact methods have an error of {:.2g} here. Use a larger tol."
        scale.require(bound, self.options.tol, remedy)
        return Result.of(value, bound, plan)

    def landmark_part(self, data: Values, params: Values, landmarks: Landmarks) -> Result:
        """The sampled kernel of landmarks and others, each of which is drawn as with any others."""
        self.exact(errors=True)  # finds what must be sampled
        return self.sampled.part(self.given(data, params), landmarks)

    @property
    def has_landmarks(self) -> bool:
        """Whether it is sampled, and its inputs can be drawn with landmarks."""
        return self.exact(errors=True) is None and self.sampled.has_landmarks

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
