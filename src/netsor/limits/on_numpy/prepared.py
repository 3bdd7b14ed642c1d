"""A tape prepared to run on NumPy arrays, with compiled loops where they pay.

A run drops every array after its last use. So the workspace depends on what is needed at one time, not on the
length of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any

from netsor.limits.error_probes import Probe
from netsor.limits.on_numpy.fused import Fused, fuse
from netsor.limits.on_numpy.ordering import ordered
from netsor.limits.tape.tape import Span, Tape
from netsor.limits.tape.traced import Traced


class Prepared:
    """The steps that some outputs of a tape need, in order, and the last use of each value.

    A plain run skips error bounds. If prepared for probes, a run perturbs the steps that have a bound.
    """

    def __init__(self, tape: Tape, outputs: Iterable[Traced], for_probes: bool = False) -> None:
        self.requested, self.for_probes, self._recorded = list(outputs), for_probes, tape
        exact = (lambda x: x) if for_probes else tape.exact
        self.names: dict[int, list[int]] = {}  # by computed step, the requested steps that have its value
        for x in self.requested:
            names = self.names.setdefault(exact(x).step, [])
            if x.step not in names:
                names.append(x.step)
        tape = tape if for_probes else tape.without_bounds()
        self.tape, self.outputs = tape, set(self.names)
        needed = tape.needed(self.outputs)
        order = ordered(tape, [k for k in needed if k not in tape.constants], self.outputs)
        repeats = max((x.shape[0] for x in self.requested if x.shape), default=1)
        # Loops have the recorded number of repeats as a fixed shape, but a probe runs a single repeat.
        fused = tape.compiled and not (for_probes and repeats > 1)
        self.order: list[int | Fused] = fuse(tape, order, self.outputs) if fused else [*order]
        last = {k: at for at, part in enumerate(self.order) for k in self._reads(part)}
        self.drops: list[list[int]] = [[] for _ in self.order]
        for value, at in last.items():
            if value not in tape.constants:  # constants are kept for the next run
                self.drops[at].append(value)
        self.constants = {k: tape.constants[k] for k in needed if k in tape.constants}

    @cached_property
    def probing(self) -> Prepared:
        """The same outputs, prepared for probes."""
        return Prepared(self._recorded, self.requested, for_probes=True)

    def _reads(self, part: int | Fused) -> list[int]:
        return part.inputs if isinstance(part, Fused) else [a.step for a in self.tape.steps[part].reads()]

    def run(
        self,
        given: Mapping[Any, Any],
        spans: Mapping[Span, Span] | None = None,
        probe: Probe | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield (step, value) of every output.

        spans   the inputs of this run, by the span that was recorded
        probe   perturbs steps by their error bounds
        """
        values: dict[int, Any] = dict(self.constants)
        for k in self.outputs & values.keys():
            yield from ((name, values[k]) for name in self.names[k])
        for part, drops in zip(self.order, self.drops, strict=True):
            if isinstance(part, Fused):
                computed = part.run(values)
            elif part in self.tape.leaves:
                computed = ((part, self.tape.leaves[part].read(given, spans or {})),)
            else:
                computed = ((part, self._step(part, values, probe)),)
            for k, value in computed:
                values[k] = value
                if k in self.outputs:
                    yield from ((name, value) for name in self.names[k])
            for k in drops:
                del values[k]

    def _step(self, k: int, values: dict[int, Any], probe: Probe | None) -> Any:
        fn, args, options, _, bound = self.tape.steps[k]
        read_values = [_filled(a, values) for a in args]
        if bound is not None and probe is not None:
            return bound(probe, *read_values)
        return fn(*read_values, **options)

    @property
    def work(self) -> int:
        """Approximate multiply-adds of a run."""
        steps = (k for part in self.order for k in (part.members if isinstance(part, Fused) else [part]))
        return sum(prod(self.tape.shapes[k]) * self.tape.costs.get(k, 1) for k in steps)

    @property
    def elements(self) -> float:
        """Average size of the results of steps, without steps that only read single inputs."""
        shapes = [part.shape for part in self.order if isinstance(part, Fused)]
        steps = (part for part in self.order if isinstance(part, int))
        shapes += [self.tape.shapes[k] for k in steps if k not in self.tape.sides]
        return sum(map(prod, shapes)) / max(1, len(shapes))

    def peak(self) -> int:
        """Return the largest number of bytes that a run holds at one time, without inputs and constants."""
        now = most = 0
        for part, drops in zip(self.order, self.drops, strict=True):
            now += sum(map(self.tape.bytes, part.outputs if isinstance(part, Fused) else [part]))
            most = max(most, now)
            now -= sum(map(self.tape.bytes, drops))
        return most


def _filled(x: Any, values: Mapping[int, Any]) -> Any:
    if isinstance(x, Traced):
        return values[x.step]
    return [_filled(y, values) for y in x] if isinstance(x, list) else x
