"""The steps inside an elementary rule, recorded once for all its uses.

A closed form is some forty elementwise operations, and a recording has thousands of uses of the same one. So
the operations are recorded once on small tapes; a use is one step. What belongs to one side of a tile is
known from that recording, too: it is computed before the tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from netsor.limits.tape.traced import Traced

if TYPE_CHECKING:
    from netsor.limits.tape.tape import Tape

__all__ = ["FULL", "LEFT", "RIGHT", "Formula", "formula_of"]

FULL, LEFT, RIGHT = 0, 1, 2  # what an argument belongs to: a pair of inputs, or one side of it
Word = tuple[str, int] | float  # a value ("made", step) or ("read", argument), or a number


class Formula:
    """An elementary rule as a list of operations on what it reads.

    reads    what a use is called with: an argument of the rule (FULL), or a function of those of one side,
             as a step of `single`
    lines    (function, words) in order; the last one is the result
    """

    def __init__(self, rule: Callable[..., Any], kinds: tuple[Any, ...], dtype: str, tapes: Any) -> None:
        self.single, tile = tapes(dtype), tapes(dtype)
        args: list[Any] = []
        for k, kind in enumerate(kinds):
            if kind == FULL:
                args.append(tile.input(str(k), (1, 2, 2), dtype))
            elif kind in (LEFT, RIGHT):
                span = (0, 2) if kind == LEFT else (2, 4)
                args.append(tile.side(self.single.input(str(k), (1, 2), dtype), span, kind))
            else:
                args.append(kind[1])
        made = rule(*args)
        words: dict[int, Word] = {}
        self.reads: list[tuple[int, int]] = []  # (kind, number of the argument or step of `single`)
        self.lines: list[tuple[Any, tuple[Word, ...]]] = []
        for k in tile.needed([made.step]):
            if k in tile.constants:
                words[k] = float(tile.constants[k].item())
            elif k in tile.leaves:
                words[k] = ("read", len(self.reads))
                self.reads.append(tile.origin(k))
            else:
                step = tile.steps[k]
                own = tuple(words[a.step] if isinstance(a, Traced) else a for a in step.args)
                words[k] = ("made", len(self.lines))
                self.lines.append((step.fn, own))
        self.dtype = made.dtype
        names = self.single.names()
        self.used = {  # for each step of `single` that is read, the arguments that it is a function of
            step: tuple(int(name) for name in names if self.single.depends(step, name))
            for kind, step in self.reads
            if kind != FULL
        }

    def __call__(self, *values: Any) -> Any:
        made: list[Any] = []
        for fn, words in self.lines:
            args = [
                w if not isinstance(w, tuple) else (made if w[0] == "made" else values)[w[1]] for w in words
            ]
            made.append(fn(*args))
        return made[-1]

    def arguments(self, tape: Tape, args: list[Any]) -> list[Traced]:
        """What a use of the rule on a tape reads."""
        found = []
        for kind, number in self.reads:
            if kind == FULL:
                found.append(args[number])
            else:
                found.append(self._hoisted(tape, kind, number, args))
        return found

    def _hoisted(self, tape: Tape, kind: int, step: int, args: list[Any]) -> Traced:
        """A function of the arguments of one side, as a quantity of that side."""
        used = self.used[step]
        sides = [tape.side_of(args[k]) for k in used]
        key = (self, step, *(s.array.step for s in sides))
        array = tape.hoisted.get(key)
        if array is None:
            values = {self.single.place(str(k)): s.array for k, s in zip(used, sides, strict=True)}
            array = tape.hoisted[key] = self._replayed(step, values)
        return tape.side(array, sides[0].span, kind)

    def _replayed(self, step: int, values: dict[int, Any]) -> Any:
        """A step of `single` with other arrays in place of its inputs."""
        for k in self.single.needed([step]):
            if k in values:
                continue
            if k in self.single.constants:
                values[k] = float(self.single.constants[k].item())
                continue
            fn, own, options, _ = self.single.steps[k]
            filled = [values[a.step] if isinstance(a, Traced) else a for a in own]
            tape = next(a.tape for a in filled if isinstance(a, Traced))
            values[k] = tape.elementwise(fn, *filled, dtype=self.single.dtypes[k], **options)
        return values[step]


@lru_cache(maxsize=1024)
def formula_of(rule: Callable[..., Any], kinds: tuple[Any, ...], dtype: str, tapes: Any) -> Formula | None:
    """The formula of a rule for arguments of these kinds; None if it is a single operation or a constant."""
    made = Formula(rule, kinds, dtype, tapes)
    return made if len(made.lines) > 1 else None
