"""A tape prepared to run on NumPy arrays, with compiled loops where they pay.

A run drops every array after its last use. So the workspace depends on what is needed at one time, not on the
length of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any

from netsor.limits.error_probes import Probe
from netsor.limits.on_numpy.fused import Fused, fuse
from netsor.limits.tape.tape import Span, Tape
from netsor.limits.tape.traced import Traced


class Prepared:
    """The steps that some outputs of a tape need, in order, and the last use of each value.

    A plain run skips error bounds. If prepared for probes, a run perturbs the steps that have a bound.
    """

    def __init__(self, tape: Tape, outputs: Iterable[Traced], for_probes: bool = False) -> None:
        self.requested, self._recorded = list(outputs), tape
        exact = (lambda x: x) if for_probes else tape.exact
        self.names: dict[int, list[int]] = {}  # by computed step, the requested steps that have its value
        for step, x in {x.step: x for x in self.requested}.items():
            self.names.setdefault(exact(x).step, []).append(step)
        tape = tape if for_probes else tape.without_bounds()
        self.tape, self.outputs = tape, set(self.names)
        needed = tape.needed(self.outputs)
        order = LayerOrder(tape, [k for k in needed if k not in tape.constants], self.outputs).order
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


class LayerOrder:
    """The order in which steps run, layer by layer; `left` counts, by step, the later steps that read it.

    A recording visits a recursion depth first. In a tangent kernel, all layers of the network would come
    before the first derivative, and a block of every layer would stay in memory until then. So rules of the
    same array run one after the other, as one loop if loops are compiled. Any other step runs as soon as it
    takes no more memory than it frees.
    """

    def __init__(self, tape: Tape, steps: list[int], outputs: set[int]) -> None:
        self.tape, self.outputs = tape, outputs
        self.reads = {
            k: {a.step for a in tape.steps[k].reads() if a.step not in tape.constants} for k in steps
        }
        self.readers: dict[int, list[int]] = {k: [] for k in steps}
        for k, reads in self.reads.items():
            for a in reads:
                self.readers[a].append(k)
        self.left = Counter({k: len(readers) for k, readers in self.readers.items()})
        self.order: list[int] = []
        self.done: set[int] = set()
        for k in steps:
            self.place(k)

    def place(self, first: int) -> None:
        """Add a step, and then the steps that free memory after it."""
        waiting = [(first, True)]
        while waiting:
            k, sure = waiting.pop()
            if k in self.done or not self.can_run(k) or not (sure or self.pays(k)):
                continue
            for a in sorted(self.reads[k] - self.done):
                self.add(a)  # reads a quantity of one side, which takes no memory
            self.add(k)
            near = {u for a in self.reads[k] if self.left[a] == 1 for u in self.readers[a]}
            near = sorted(near.union(self.readers[k]) - self.done, reverse=True)
            waiting += [(u, False) for u in near] + [(u, True) for u in self.rules_beside(k)]

    def add(self, k: int) -> None:
        self.order.append(k)
        self.done.add(k)
        self.left.subtract(self.reads[k])

    def rules_beside(self, k: int) -> list[int]:
        """Return the rules of the arrays that a rule reads: one loop computes them together."""
        if k not in self.tape.rules:
            return []
        shape = self.tape.shapes[k]
        full = [a for a in self.reads[k] if self.tape.shapes[a] == shape]
        rules = {u for a in full for u in self.readers[a] if u in self.tape.rules} - self.done
        return sorted((u for u in rules if self.tape.shapes[u] == shape), reverse=True)

    def can_run(self, k: int) -> bool:
        return all(a in self.done or a in self.tape.sides for a in self.reads[k])

    def pays(self, k: int) -> bool:
        """Return whether a step takes no more memory than it frees."""
        alone = (a for a in self.reads[k] if self.left[a] == 1 and a not in self.outputs)
        return self.size(k) <= sum(map(self.size, alone))

    def size(self, k: int) -> int:
        return 0 if k in self.tape.sides else self.tape.bytes(k)
