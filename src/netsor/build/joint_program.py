"""One program for a network on a set of inputs: inputs of one shape share its statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from netsor.arguments import a_type
from netsor.build.network import Network, check_network, read_network, write_program
from netsor.build.parameters import Matrix, Vector
from netsor.build.source_lines import fail
from netsor.build.trace import Requirement, Trace, numbers
from netsor.errors import DataError
from netsor.garbage import search_put_off
from netsor.lang.program import Program
from netsor.lang.tangent import Tangent


@dataclass(frozen=True)
class InputGroup:
    """Inputs of one shape, which share statements."""

    members: tuple[int, ...]  # their positions in the set
    outputs: tuple[int, ...]  # positions of their Output statements in the program
    data: tuple[str, ...] = ()  # names of their arrays
    member_outputs: tuple[tuple[int, ...], ...] = ()  # of each member, if they differ

    def outputs_of(self, k: int) -> tuple[int, ...]:
        """The Output statements of member k."""
        return self.member_outputs[k] if self.member_outputs else self.outputs


@dataclass(frozen=True)
class Joint:
    """A network on a set of inputs: one program in which inputs of one shape share their statements."""

    program: Program
    data: dict[str, Any]  # the program's arrays; in a group of several members, (members, ...)
    groups: tuple[InputGroup, ...]
    concrete: bool = False  # whether the network read the values of its data
    requirements: tuple[tuple[int, Requirement], ...] = ()  # (group, condition on its data), from layers
    tangent: Tangent | None = None  # for a tangent kernel: its relation to the network's own program
    parameters: Mapping[str, Matrix | Vector] = field(default_factory=dict)  # by name in the program


@search_put_off()
def joint(net: Network, inputs: list[Any], finite: bool = False) -> Joint:
    """Write one program for a set of inputs; trace the network once per shape.

    A network that reads the values of its data is traced once per input. For `finite` width the program of a
    tangent network is another one.
    """
    check_network(net)
    if not inputs:
        raise fail("the set of inputs is empty", "Give at least one input.", DataError)
    by_shape: dict[Any, list[int]] = {}
    for i, x in enumerate(inputs):
        by_shape.setdefault(_shape(x, f"input {i} of the set"), []).append(i)
    trace, outputs, stacked, concrete = Trace(), [], {}, False
    queue, groups = list(by_shape.values()), []  # of a group: members, its part of `outputs`, names of arrays
    requirements: list[tuple[int, Requirement]] = []
    while queue:
        members = queue.pop(0)
        name = f"x{len(groups) + 1}"
        trace.concrete = False
        readouts = read_network(net, trace, inputs[members[0]], name)
        if trace.concrete:
            # Another input of this shape may take another branch, so each is read on its own.
            queue[:0] = [[i] for i in members[1:]]
            members, concrete = members[:1], True
        arrays = _stack(inputs, name, members)
        asked = [(len(groups), r) for r in trace.requirements[len(requirements) :]]
        _check_requirements(asked, trace.data, inputs, name, members[1:])
        requirements += asked
        stacked |= arrays
        groups.append((tuple(members), len(outputs), len(outputs) + len(readouts), tuple(arrays)))
        outputs += readouts
    program, counts, parameters, tangent = write_program(net, trace, outputs, inputs[0], finite)
    data = {name: stacked.get(name, array) for name, array in program.data.items()}
    at = (0, *accumulate(counts))  # where the statements of an output begin
    joined = tuple(InputGroup(m, tuple(range(at[k], at[end])), names) for m, k, end, names in groups)
    return Joint(program, data, joined, concrete, tuple(requirements), tangent, parameters)


def _check_requirements(
    requirements: list[tuple[int, Requirement]],
    data: dict[str, Any],
    inputs: list[Any],
    name: str,
    members: Sequence[int],
) -> None:
    """Check the data of the inputs `members`, on which the network is not traced."""
    for i in members if requirements else ():
        arrays = {**data, **_stack(inputs, name, [i])}
        for _, requirement in requirements:
            requirement(arrays)


def _shape(x: object, what: str) -> Any:
    return tuple(_shape(part, what) for part in x) if isinstance(x, tuple) else numbers(x, what).shape


def data_of(joined: Joint, inputs: list[Any]) -> dict[str, np.ndarray]:
    """Return the data of a joint program for other inputs of the same shapes."""
    given: dict[str, np.ndarray] = {}
    for k, group in enumerate(joined.groups):
        name, asked = f"x{k + 1}", [r for r in joined.requirements if r[0] == k]
        _check_requirements(asked, dict(joined.program.data), inputs, name, group.members)
        given |= _stack(inputs, name, group.members)
    return {name: given.get(name, array) for name, array in joined.program.data.items()}


def _stack(inputs: list[Any], name: str, members: Sequence[int]) -> dict[str, np.ndarray]:
    """Stack the inputs `members`, (members, ...), under the names that the trace gives to their parts."""
    first = inputs[members[0]]
    if isinstance(first, tuple):
        stacked: dict[str, np.ndarray] = {}
        for k in range(len(first)):
            parts = [x[k] if isinstance(x, tuple) else None for x in inputs]
            stacked |= _stack(parts, f"{name}_{k}", members)
        return stacked
    if len(members) > 1 and all(type(inputs[i]) is np.ndarray for i in members):
        batch = np.stack([inputs[i] for i in members])
        # Check the whole batch at once. If it fails, the loop below names the input at fault.
        if batch.dtype.kind in "iuf" and np.isfinite(batch).all():
            return {name: numbers(batch, "the set of inputs")}
    arrays = [numbers(inputs[i], f"input {i} of the set") for i in members]
    return {name: arrays[0] if len(arrays) == 1 else np.stack(arrays)}


def as_inputs(x: object) -> list[Any]:
    """List a set of inputs: the rows of an array, or the members of a list (a tuple is one input)."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise fail(
            "the set of inputs is a masked array",
            "Masked entries have no value: fill or leave them out first, as in x.filled(0.0).",
            DataError,
        )
    if isinstance(x, np.ndarray) and x.ndim > 0:
        return list(x)
    if isinstance(x, list):
        return x
    kind = "a single number" if isinstance(x, np.ndarray) else a_type(x)
    raise fail(
        f"the set of inputs is {kind}" if x is not None else "no set of inputs is given",
        "Give an array whose first axis runs over inputs, or a list of inputs: [x] for one.",
        DataError,
    )
