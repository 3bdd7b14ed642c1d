"""A tape made ready to run on NumPy arrays, with compiled loops where they pay.

A run drops every array after its last use, so the workspace is what a tape needs at one time, whatever the
length of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from netsor.limits.on_numpy.fused import Fused, fuse
from netsor.limits.on_numpy.ordering import ordered
from netsor.limits.tape.tape import Span, Tape
from netsor.limits.tape.traced import Traced

__all__ = ["Prepared"]

Given = Mapping[Any, Any]


class Prepared:
    """The steps that some outputs of a tape need, in order, and where each value is used last."""

    def __init__(self, tape: Tape, outputs: Iterable[Traced]) -> None:
        self.tape, self.outputs = tape, {x.step for x in outputs}
        needed = tape.needed(self.outputs)
        order = ordered(tape, [k for k in needed if k not in tape.constants], self.outputs)
        self.order: list[int | Fused] = fuse(tape, order, self.outputs) if tape.compiled else [*order]
        last: dict[int, int] = {}
        for at, part in enumerate(self.order):
            for k in self._reads(part):
                last[k] = at
        self.drops: list[list[int]] = [[] for _ in self.order]
        for value, at in last.items():
            if value not in tape.constants:
                self.drops[at].append(value)
        self.held = {k: tape.constants[k] for k in needed if k in tape.constants}

    def _reads(self, part: int | Fused) -> list[int]:
        return part.inputs if isinstance(part, Fused) else [a.step for a in self.tape.steps[part].reads()]

    def run(self, given: Given, spans: Mapping[Span, Span] | None = None) -> Iterator[tuple[int, Any]]:
        """(step, value) of every output; `spans` puts other inputs in place of those recorded."""
        values: dict[int, Any] = dict(self.held)
        for k in self.outputs & values.keys():
            yield k, values[k]
        for part, drops in zip(self.order, self.drops, strict=True):
            if isinstance(part, Fused):
                made = part.run(values)
            else:
                made = ((part, self._step(part, values, given, spans or {})),)
            for k, value in made:
                values[k] = value
                if k in self.outputs:
                    yield k, value
            for k in drops:
                del values[k]

    def _step(self, k: int, values: dict[int, Any], given: Given, spans: Mapping[Span, Span]) -> Any:
        read = self.tape.leaves.get(k)
        if read is not None:
            return read(given, spans)
        fn, args, options, _ = self.tape.steps[k]
        return fn(*[_filled(a, values) for a in args], **options)

    def _is_side(self, part: int | Fused) -> bool:
        return isinstance(part, int) and self.tape.is_side(part)

    @property
    def work(self) -> int:
        """Multiply-adds of a run, about."""
        shapes, costs = self.tape.shapes, self.tape.costs
        return sum(prod(shapes[k]) * costs.get(k, 1) for part in self.order for k in _members(part))

    @property
    def elements(self) -> float:
        """Of the result of a step, on average; what is read of single inputs does not count."""
        shapes, parts = self.tape.shapes, (part for part in self.order if not self._is_side(part))
        sizes = [prod(part.shape if isinstance(part, Fused) else shapes[part]) for part in parts]
        return sum(sizes) / max(1, len(sizes))

    def peak(self) -> int:
        """The largest number of bytes that a run holds at one time, without inputs and constants."""
        shapes, dtypes = self.tape.shapes, self.tape.dtypes
        now = most = 0
        for part, drops in zip(self.order, self.drops, strict=True):
            made = part.outputs if isinstance(part, Fused) else [part]
            now += sum(prod(shapes[k]) * dtypes[k].itemsize for k in made)
            most = max(most, now)
            now -= sum(prod(shapes[k]) * dtypes[k].itemsize for k in drops)
        return most


def _members(part: int | Fused) -> list[int]:
    return part.members if isinstance(part, Fused) else [part]


def _filled(x: Any, values: Mapping[int, Any]) -> Any:
    if isinstance(x, Traced):
        return values[x.step]
    return [_filled(y, values) for y in x] if isinstance(x, list) else x
