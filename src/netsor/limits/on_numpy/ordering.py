"""The order in which the steps of a tape run.

A recording visits a recursion depth first. In a tangent kernel, all layers of the network would come before
the first derivative, and a block of every layer would stay in memory until then. So rules of the same array
run one after the other, as one loop if loops are compiled. Any other step runs as soon as it takes no more
memory than it frees. The result is an order layer by layer, which keeps the arrays of one layer at a time.
"""

from __future__ import annotations

from collections import Counter

from netsor.limits.tape.tape import Tape


def ordered(tape: Tape, steps: list[int], outputs: set[int]) -> list[int]:
    """Return the steps in the order described above; they come in the order of recording."""
    return _Order(tape, steps, outputs).order


class _Order:
    """The order of steps while it grows; `left` counts, by step, the later steps that read it."""

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
