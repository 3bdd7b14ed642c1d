"""Print where the time of a kernel goes: python benchmarks/steps.py [ROW ...]

Runs the rows of the benchmark alone, on one thread, and prints the best time of each kind of recorded step.
"""

from __future__ import annotations

import sys
from collections import Counter
from math import inf
from time import perf_counter
from typing import Any
from unittest import mock

import sides
from cases import Case, cases

from netsor.limits.on_numpy import recording
from netsor.limits.on_numpy.fused import Fused
from netsor.limits.on_numpy.prepared import Prepared

ROUNDS = 100


class Watch:
    """Times every step of every tape by kind, and the whole call."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()

    def step(self, run: Any) -> Any:
        def timed(own: Prepared, k: int, *args: Any) -> Any:
            start = perf_counter()
            value = run(own, k, *args)
            self.spent[self.kind(own, k)] += perf_counter() - start
            return value

        return timed

    def loop(self, run: Any) -> Any:
        def timed(own: Fused, values: Any) -> Any:
            start = perf_counter()
            made = list(run(own, values))
            self.spent["compiled formulas"] += perf_counter() - start
            return made

        return timed

    @staticmethod
    def kind(own: Prepared, k: int) -> str:
        if k in own.tape.leaves:
            return "products of inputs, parts of what belongs to one side"
        return (
            "sums over windows"
            if "window_sums" in getattr(own.tape.steps[k].fn, "__module__", "")
            else "other steps"
        )


def profile(case: Case) -> dict[str, float]:
    """The best call: seconds by kind of step, and what is left of it."""
    watch, best, found = Watch(), inf, {}
    call = sides.make("netsor", case.specs(True)["netsor"], case.inputs)
    with (
        mock.patch.object(recording, "cores", return_value=1),
        mock.patch.object(Prepared, "_step", watch.step(Prepared._step)),
        mock.patch.object(Fused, "run", watch.loop(Fused.run)),
    ):
        call()
        call()  # with compiled loops, if they pay
        for _ in range(ROUNDS):
            watch.spent.clear()
            start = perf_counter()
            call()
            whole = perf_counter() - start
            if whole < best:
                best, found = whole, dict(watch.spent)
    return {**found, "the rest": best - sum(found.values()), "one call": best}


def main() -> None:
    sides.load("netsor")
    names = sys.argv[1:] or ["cnn-flatten"]
    for case in cases():
        if case.name in names:
            print(case.title)
            for kind, seconds in profile(case).items():
                print(f"  {kind:58} {1e3 * seconds:8.3f} ms")


if __name__ == "__main__":
    main()
