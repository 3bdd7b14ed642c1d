"""The operations inside a closed form, recorded once for all its uses.

A closed form has some forty elementwise operations, and a recording uses the same one thousands of times. So
its operations are recorded once, on small tapes, and each use is one step. This recording also shows which
operations depend on one side of a tile alone; these run before the tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from netsor.limits.tape.traced import Traced

if TYPE_CHECKING:
    from netsor.limits.tape.tape import Tape, TapeStep

FULL, LEFT, RIGHT = 0, 1, 2  # an argument belongs to a pair of inputs, or to one side of it


class Formula:
    """An elementary rule as a list of operations.

    reads    by step, what a use reads: (FULL, number of an argument), or (LEFT or RIGHT, step of `single`)
             for a function of the arguments of that side
    numbers  by step, the constants
    steps    the operations in order; the last one gives the result
    used     by step of `single` that is read, the arguments that it depends on
    """

    def __init__(self, rule: Callable[..., Any], kinds: tuple[Any, ...], dtype: str, tapes: Any) -> None:
        self.single, tile = tapes(True, dtype), tapes(True, dtype)
        # Tiny arrays of the right kind record the operations; their lengths do not matter.
        args: list[Any] = []
        self.places: dict[int, int] = {}  # by argument of one side, its step of `single`
        for k, kind in enumerate(kinds):
            if kind == FULL:
                args.append(tile.input(str(k), (1, 2, 2), dtype))
            elif kind in (LEFT, RIGHT):
                array, span = self.single.input(str(k), (1, 2), dtype), (0, 2) if kind == LEFT else (2, 4)
                args.append(tile.side(array, span, kind))
                self.places[k] = array.step
            else:
                args.append(kind[1])
        result = rule(*args)
        self.reads: dict[int, tuple[int, int]] = {}
        self.numbers: dict[int, float] = {}
        self.steps: dict[int, TapeStep] = {}
        for k in tile.needed([result.step]):
            if k in tile.constants:
                self.numbers[k] = float(tile.constants[k].item())
            elif k in tile.leaves:
                side = tile.sides.get(k)
                number = int(tile.leaves[k].arrays[0]) if side is None else side.array.step
                self.reads[k] = FULL if side is None else side.axis, number
            else:
                self.steps[k] = tile.steps[k]
        self.dtype = result.dtype
        self.used: dict[int, list[int]] = {}
        for kind, step in self.reads.values():
            if kind != FULL:
                needed = set(self.single.needed([step]))
                self.used[step] = [k for k, place in self.places.items() if place in needed]

    def __call__(self, *values: Any) -> Any:
        computed = {**self.numbers, **dict(zip(self.reads, values, strict=True))}
        for k, (fn, args, *_) in self.steps.items():
            computed[k] = fn(*(computed[a.step] if isinstance(a, Traced) else a for a in args))
        return computed[next(reversed(self.steps))]

    def arguments(self, tape: Tape, args: list[Any]) -> list[Traced]:
        """Return what a use of the rule reads on this tape."""
        return [
            args[number] if kind == FULL else self._hoisted(tape, kind, number, args)
            for kind, number in self.reads.values()
        ]

    def _hoisted(self, tape: Tape, kind: int, step: int, args: list[Any]) -> Traced:
        """Return a function of the arguments of one side, as a quantity of that side."""
        used = self.used[step]
        sides = [tape.sides[args[k].step] for k in used]
        values = {self.places[k]: side.array for k, side in zip(used, sides, strict=True)}
        key = (self, step, *(side.array.step for side in sides))
        array = tape.once(key, lambda: self._replayed(step, values))
        return tape.side(array, sides[0].span, kind)

    def _replayed(self, step: int, values: dict[int, Any]) -> Any:
        """Record a step of `single` again, with other arrays in place of its inputs."""
        for k in self.single.needed([step]):
            if k in values:
                continue
            if k in self.single.constants:
                values[k] = float(self.single.constants[k].item())
                continue
            fn, args, options, *_ = self.single.steps[k]
            filled = [values[a.step] if isinstance(a, Traced) else a for a in args]
            tape = next(a.tape for a in filled if isinstance(a, Traced))
            values[k] = tape.elementwise(fn, *filled, dtype=self.single.dtypes[k], **options)
        return values[step]


@lru_cache(maxsize=1024)
def formula_of(rule: Callable[..., Any], kinds: tuple[Any, ...], dtype: str, tapes: Any) -> Formula | None:
    """Return the formula of a rule for arguments of these kinds; None if it has at most one operation."""
    formula = Formula(rule, kinds, dtype, tapes)
    return formula if len(formula.steps) > 1 else None
