"""One network on inputs of given shapes: planned once, then computed for any values of these inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.build.joint_program import Joint
from netsor.errors import LimitError
from netsor.limits.assembly import Rows
from netsor.limits.error_probes import Probe, error_of, probes
from netsor.limits.finite import finite, in_range
from netsor.limits.methods.ladder import expectation
from netsor.limits.notes import Notes
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import Recording, record
from netsor.limits.options import Options
from netsor.limits.padding import Padding, pad
from netsor.limits.plan import Plan, require_patience
from netsor.limits.result import Result, Scale, plan_of
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.lincomb import cov, mean
from netsor.limits.rules.nonlin import first, second
from netsor.limits.rules.output import output_own, output_second
from netsor.limits.rules.pairs import Pair, PerInput
from netsor.limits.rules.recorder import Question, Recorder, Rules
from netsor.limits.rules.setting import Setting
from netsor.limits.sampled_families import TILE, Decision, decide
from netsor.limits.sampling.drawing import Samples, SharedState, sampled_mean
from netsor.limits.tape.tape import Tape
from netsor.limits.tiling import Cut
from netsor.progress import bar

if TYPE_CHECKING:
    from netsor.limits.sampling.kernel import Repeats, SampledKernel
    from netsor.limits.sampling.tables import Tables

RULES = Rules(mean, cov, first, second, expectation, sampled_mean)
Values = Mapping[str, Any]


class Computation:
    """The kernel of a joint program; with `split`, between the inputs before it and the inputs from it on.

    Only the shapes of the data matter. `params` names the variances that are given with the data. A part of
    a larger kernel uses the `cut` of the whole, so that it has the same numbers.
    """

    def __init__(
        self,
        made: Joint,
        options: Options,
        params: tuple[str, ...],
        split: int | None,
        cut: Cut | None = None,
    ) -> None:
        self.options, self.params, self.cut = options, params, cut
        self.program, self.rows = made.program, Rows(made, split)
        self.forms = Forms(self.program)
        ranks = {name: array.ndim for name, array in self.program.data.items()}
        self.batched = frozenset(name for name, array in made.data.items() if array.ndim > ranks[name])
        self.shapes = {name: np.shape(array) for name, array in made.data.items()}
        empty = {name: np.broadcast_to(0.0, shape) for name, shape in self.shapes.items()}
        self.made = replace(made, data=empty)  # kernels keep computations, which must not keep the inputs
        self._decisions: dict[Any, Decision] = {}
        self._recording: Recording | None = None
        self._probed: Recording | None = None
        self.is_padded = False  # whether inputs of different lengths form one group

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the program, but nothing that was decided or recorded."""
        shapes_alone = replace(self.made, data=self.shapes)
        return {"of": (shapes_alone, self.options, self.params, self.rows.split, self.cut)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        joint, *arguments = state["of"]
        data = {name: np.broadcast_to(0.0, shape) for name, shape in joint.data.items()}
        self.__init__(replace(joint, data=data), *arguments)

    # What is sampled

    def decision(self, question: Question | None = None) -> Decision:
        """Return what is sampled for the kernel, or for one question; method="exact" refuses samples."""
        decision = self._decision(question, False, self.options.method != "exact")
        if self.options.method == "exact" and not decision.exact:
            raise LimitError(
                "this limit has no exact method",
                remedy=f'{decision.reasons[0]}. Use method="auto", which samples only what it must.',
            )
        return decision

    def exact_setting(self, question: Question | None = None, traced: bool = False) -> Setting | None:
        """Return the setting of an exact recording, for JAX if `traced`; None if it must be sampled."""
        if self.options.method == "sample":
            return None
        decision = self._decision(question, traced, False)
        return decision.setting if decision.exact else None

    def _decision(self, question: Question | None, traced: bool, samples: bool) -> Decision:
        key = question, traced, samples
        if key not in self._decisions:
            members = {name: shape[0] for name, shape in self.shapes.items() if name in self.batched}
            drawn = self.forms.families.values() if self.options.method == "sample" else ()
            setting = Setting(self.forms, members, traced, frozenset(drawn))
            asked = self._questions() if question is None else [[question]]
            self._decisions[key] = decide(setting, asked, self._tables_of if samples else None)
        return self._decisions[key]

    def _questions(self) -> list[list[Question]]:
        """Return the questions of a recording: all blocks between groups, and of inputs with themselves."""
        asked, groups, symmetric = [], self.rows.groups, self.rows.symmetric
        for k in range(len(groups)):
            for m in range(k if symmetric else 0, len(groups)):
                left, right = self.rows.outputs(k, 0), self.rows.outputs(m, 1)
                mirrored = symmetric and k == m  # E[y y'] and E[y' y] are one block
                pairs = [(o, p) for o in left for p in right if not mirrored or p >= o]
                asked.append([(output_second, o, p, TILE) for o, p in pairs])
        for group in groups if symmetric else ():
            asked.append([(output_own, o) for o in group.outputs])
            if self.program.noise:
                pairs = product(group.outputs, repeat=2)
                asked.append([(output_second, o, p, Pair(True)) for o, p in pairs])
        return asked

    def _tables_of(self, setting: Setting) -> Tables | None:
        """Return the tables of the vectors of a loop over tokens; a program with noise has none."""
        if self.program.noise:
            return None
        from netsor.limits.sampling.tables import tables_of  # slow to load, and most kernels are exact

        size = 8 * self.rows.left_size * self.rows.right_size
        return tables_of(setting, size, self.options.memory, self.options.most_points)

    # Recording

    def recorder(
        self, setting: Setting, tape: Tape, most: int | None = None, samples: Samples | None = None
    ) -> Recorder:
        """Return a recorder of this program, for at most `most` inputs at a time."""
        dtype, data = self.options.dtype, {}
        for name, shape in self.shapes.items():
            batched = name in self.batched
            if batched and most is not None:
                shape = (min(most, shape[0]), *shape[1:])
            array, rank = tape.input(name, shape, dtype), self.program.data[name].ndim
            data[name] = PerInput(array[None, ...] if batched else array[None, None, ...], rank)
        params: dict[str, Any] = {name: tape.input(name, (), dtype) for name in self.params}
        notes = Notes(remarks=dict.fromkeys(self.made.tangent.remarks if self.made.tangent else ()))
        return Recorder(setting, tape, data, params, RULES, notes, self.is_padded, samples)

    @cached_property
    def padded(self) -> tuple[Padding, Computation] | None:
        """The same computation with inputs of different lengths as one group, or None if it does not pay."""
        padding = pad(self.made) if len(self.made.groups) > 1 and not self.is_padded else None
        if padding is None:
            return None
        joint = replace(padding.joint, data=padding.data(self.made.data))
        whole = Computation(joint, self.options, self.params, self.rows.split, self.cut)
        whole.is_padded = True
        return padding, whole

    def recording(self, errors: bool) -> Recording:
        """Return the exact recording of the kernel, or with `errors` one whose probes fit into memory."""
        last = self._recording
        # Loops are compiled as soon as a second run shows that they pay.
        if last is None or (self.cut is None and not errors and last.ran and last.pays_compiling):
            last = self._recording = self._record(last is not None, for_probes=False)
        if not errors or last.probing_workers:
            return last
        if self._probed is None:
            self._probed = self._record(False, for_probes=True)
        return self._probed

    def _record(self, compiled: bool, for_probes: bool) -> Recording:
        o, rows, setting = self.options, self.rows, self.exact_setting()
        assert setting is not None
        make = partial(self.recorder, setting)
        with bar(o.progress, 0, "planning the kernel"):
            return record(make, self.program, rows, o.memory, o.dtype, compiled, self.cut, for_probes)

    @cached_property
    def sampled(self) -> SampledKernel:
        """The kernel in which the families without an exact method are sampled."""
        from netsor.limits.sampling.kernel import SampledKernel  # most kernels are exact

        decision = self.decision()
        return SampledKernel(self._repeats_of(decision), decision.reasons)

    def _repeats_of(self, decision: Decision, question: Question | None = None) -> Repeats:
        """Return the kernel, or the quantity of a question, with sampled families."""
        from netsor.limits.sampling.kernel import Repeats

        make, setting = partial(self.recorder, decision.setting), decision.setting
        return Repeats(
            make, self.program, self.rows, self.options, setting.sampled, decision.tables, question
        )

    # The plan

    def exact(self, errors: bool) -> tuple[Callable[[Values], Values], Recording] | None:
        """Return how to prepare data for an exact recording, and that recording; None if it must sample."""
        # Padded inputs may share a recording. If that one must sample, try the groups one by one.
        if self.padded is not None:
            padding, whole = self.padded
            if whole.exact_setting() is not None:
                return lambda given: {**given, **padding.data(given)}, whole.recording(errors)
        return None if self.exact_setting() is None else (lambda given: given, self.recording(errors))

    def plan(self, errors: bool = False) -> Plan:
        """Return what the kernel takes, without computing it."""
        shape = (self.rows.left_size, self.rows.right_size)
        exact = self.exact(errors)
        if exact is not None:
            return plan_of(exact[1], len(self.program.statements), shape)
        return self.sampled.plan(self.options.first_points, self.options.repeats)

    # Running

    def given(self, data: Values, params: Values) -> dict[str, Any]:
        dtype = self.options.dtype
        arrays = {name: np.asarray(x, dtype) for name, x in (*data.items(), *params.items())}
        for name in data:
            _require_scale(name, arrays[name])
        return arrays

    def value(self, data: Values, params: Values, shared: SharedState | None = None) -> np.ndarray:
        """Return the kernel alone; `shared` keeps the choices of sampling in the first of several calls."""
        if self.options.tol is not None:
            return self.result(data, params).value
        exact = self.exact(errors=False)
        if exact is None:
            return self.sampled.result(self.given(data, params), False, shared).value
        prepare, recording = exact
        given = self.given(data, params)
        return self._run(recording, prepare(given), None, "computing the kernel")

    def _run(self, recording: Recording, given: Values, probe: Probe | None, what: str) -> np.ndarray:
        """Run a recording, with its steps perturbed by a probe if one is given: (rows, columns)."""
        if not recording.ran:
            plan = plan_of(recording, 0, (self.rows.left_size, self.rows.right_size))
            require_patience(plan, self.options.confirm)
        recording.ran, count = True, sum(len(tiles.places) for tiles in recording.tiles)
        rate = 3e8  # multiply-adds per second: a low first guess, until the first tiles are done
        with bar(self.options.progress, count, what, lambda: recording.work / rate) as advance:
            return on_numpy.run(recording, given, self.options.dtype, 1, advance, probe)[0]

    def result(self, data: Values, params: Values) -> Result:
        """Return the kernel with errors and plan."""
        exact = self.exact(errors=True)
        if exact is None:
            return self.sampled.result(self.given(data, params), errors=True)
        prepare, recording = exact
        given, statements = prepare(self.given(data, params)), len(self.program.statements)
        with recording.lock:
            # Errors are largest values over a run, so forget those of the run before.
            recording.notes.errors.clear()
            value = in_range(self._run(recording, given, None, "computing the kernel"))
            scale = Scale.of(value, self.rows.symmetric)

            def change(probe: Probe) -> np.ndarray:
                moved = self._run(recording, given, probe, "computing its errors")
                moved -= value  # in place, to avoid a third matrix of the kernel's size
                return moved

            counts = partial(scale.counts, statements, self.options.dtype)
            more = error_of(probes(change, recording.notes, self.forms.may_cancel, counts))
            plan = plan_of(recording, statements, value.shape)
            bound = scale.rounding(statements, self.options.dtype, more)
        remedy = "The exact methods have an error of {:.2g} here. Use a larger tol."
        scale.require(bound, self.options.tol, remedy)
        return Result.of(value, bound, plan)

    def diagonal(self, data: Values, params: Values) -> np.ndarray | None:
        """Return the variances of all outputs, (rows,), from self blocks; None if it must be sampled."""
        variances = np.zeros(self.rows.left_size, self.options.dtype)
        for o, rows in enumerate(self.rows.left):
            block = self.measure(data, params, output_second, o, o, Pair(True), exact=True)
            if block is None:
                return None
            members, *index = rows.shape
            full = np.broadcast_to(block[0], (members, *index, *index))
            flat = rows.reshape(members, -1)
            variances[flat] = np.einsum("kii->ki", full.reshape(members, flat.shape[1], flat.shape[1]))
        return finite(variances)

    def measure(self, data: Values, params: Values, *question: Any, exact: bool = False) -> Any:
        """Return a quantity of single inputs, (1, inputs, ...); if it is sampled, the average over repeats.

        None is a structural zero. With `exact`, None also means that something must be sampled.
        """
        given, setting = self.given(data, params), self.exact_setting(question)
        if setting is not None:
            answer = self.recorder(setting, Tape(dtype=self.options.dtype)).ask(*question)
            if answer is None:
                return None
            prepared = Prepared(answer.array.tape, [answer.array])
            return finite(on_numpy.single_values(prepared, given)[answer.array.step])
        if exact:
            return None
        mean = self._repeats_of(self.decision(question), question).mean(given)
        return None if mean is None else mean[None]


def _require_scale(name: str, data: np.ndarray) -> None:
    """Refuse data whose squares, or products of squares, under- or overflow."""
    limits, sizes = np.finfo(data.dtype), np.abs(data)
    least, most = (float(x) ** 0.25 for x in (limits.smallest_normal, limits.max))
    if sizes.max(initial=0.0) < most and not np.any((sizes < least) & (sizes > 0)):
        return  # the usual case, and fast: the largest number of each vector takes longer to find
    largest = sizes.max(axis=-1, initial=0.0) if data.ndim else sizes
    if not np.all((largest == 0) | ((largest > least) & (largest < most))):
        raise LimitError(
            f"the numbers of `{name}` are too large or too small to be squared",
            remedy=f"Scale the inputs: the largest number of each vector is 0 or between {least:.0e} and "
            f"{most:.0e}, in {data.dtype.name}.",
        )
