"""Elementwise steps of a tape as compiled loops. Needs Numba (the extra `fast`); without it NumPy runs them.

A layer of a recursion is some forty elementwise operations on a tile. NumPy makes one pass over memory for
each; a compiled loop makes one for all. The loops are written from the recorded steps, so the formulas stay
where they are. Layers of one kind have the same source, which is compiled once.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.expect.closed.arrays import product_error
from netsor.limits.on_numpy.loops import compiled_loop
from netsor.limits.tape.formulas import Formula

if TYPE_CHECKING:
    from netsor.limits.tape.tape import Tape

__all__ = ["Fused", "fuse"]

FEWEST_STEPS, LEAST_ELEMENTS = 3, 1024
MANY = 16  # operations of a rule, about, each of which would be a call of NumPy
TEMPLATES: dict[Any, str] = {
    operator.add: "{0} + {1}",
    operator.sub: "{0} - {1}",
    operator.mul: "{0} * {1}",
    operator.truediv: "{0} / {1}",
    operator.neg: "-{0}",
    operator.lt: "{0} < {1}",
    operator.le: "{0} <= {1}",
    operator.gt: "{0} > {1}",
    operator.ge: "{0} >= {1}",
    operator.eq: "{0} == {1}",
    operator.ne: "{0} != {1}",
    operator.and_: "{0} & {1}",
    operator.or_: "{0} | {1}",
    np.sqrt: "sqrt({0})",
    np.exp: "exp({0})",
    np.expm1: "expm1({0})",
    np.log: "log({0})",
    np.sin: "sin({0})",
    np.cos: "cos({0})",
    np.sign: "number({0} > 0) - number({0} < 0)",
    np.abs: "abs({0})",
    np.where: "{1} if {0} else {2}",
    np.arctan2: "atan2({0}, {1})",
    np.minimum: "min({0}, {1})",
    np.maximum: "max({0}, {1})",
    inspect.unwrap(product_error): "fma({0}, {1}, -{2})",
    np.astype: "number(1.0) if {0} else number(0.0)",
}
FLOATS, BOOL = {np.dtype(np.float64), np.dtype(np.float32)}, np.dtype(bool)


@dataclass
class Fused:
    """Steps that are one loop: `inputs` and `outputs` are the values that it reads and writes."""

    shape: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def write(self, tape: Tape) -> None:
        """Its source; axes on which all inputs agree in being broadcast or not are one axis."""
        shapes = [tape.shapes[k] for k in self.inputs]
        padded = [(1,) * (len(self.shape) - len(shape)) + shape for shape in shapes]
        patterns = [tuple(s[d] > 1 for s in padded) for d in range(len(self.shape))]
        kept = [d for d in range(len(self.shape)) if self.shape[d] > 1]
        runs = [list(run) for _, run in groupby(kept, key=lambda d: patterns[d])] or [[]]
        self.loops = tuple(prod(self.shape[d] for d in run) for run in runs)
        self.views = [tuple(prod(s[d] for d in run) for run in runs) for s in padded]
        self.dtypes = [tape.dtypes[k] for k in self.outputs]
        self.scalars: list[Any] = []
        self.dtype = next(d for d in (tape.dtypes[k] for k in (*self.inputs, *self.members)) if d.kind == "f")
        self.source = self._source(tape)

    def compile(self) -> None:
        self.loop = compiled_loop(self.source, self.dtype)

    def _source(self, tape: Tape) -> str:
        depth = len(self.loops)
        names = {k: f"x{i}" for i, k in enumerate(self.inputs)}
        body = []
        for m, k in enumerate(self.members):
            fn, args, *_ = tape.steps[k]
            if isinstance(fn, Formula):
                reads = {f"a{i}": names[a.step] for i, a in enumerate(args)}
                body += _text(fn).format(p=f"t{m}_", **reads).split("\n")
                names[k] = f"t{m}_{len(fn.lines) - 1}"
            else:
                body.append(f"t{m} = {self._expression(fn, args, names)}")
                names[k] = f"t{m}"
        stores = [f"out{i}[{_index(depth)}] = {names[k]}" for i, k in enumerate(self.outputs)]
        loads: list[list[str]] = [[] for _ in range(depth + 1)]
        for i, view in enumerate(self.views):
            at = max((d + 1 for d in range(depth) if view[d] > 1), default=0)
            where = ", ".join(f"i{d}" if view[d] > 1 else "0" for d in range(depth))
            loads[at].append(f"x{i} = a{i}[{where}]")
        arguments = [f"out{i}" for i in range(len(self.outputs))] + [f"a{i}" for i in range(len(self.inputs))]
        arguments += [f"c{i}" for i in range(len(self.scalars))]
        lines = [f"def loop({', '.join(arguments)}):", *(f"    {line}" for line in loads[0])]
        for d in range(depth):
            pad = "    " * (d + 1)
            lines.append(f"{pad}for i{d} in range(out0.shape[{d}]):")
            lines += [f"{pad}    {line}" for line in loads[d + 1]]
        pad = "    " * (depth + 1)
        return "\n".join([*lines, *(f"{pad}{line}" for line in (*body, *stores))]) + "\n"

    def _expression(self, fn: Any, args: tuple[Any, ...], names: dict[int, str]) -> str:
        """A step in the loop. Whole numbers are part of it, which lets the compiler simplify; others are its
        arguments, so that layers of different variances share a loop.
        """
        words = []
        for a in args[:1] if fn is np.astype else args:
            if hasattr(a, "step"):
                words.append(names[a.step])
            elif float(a).is_integer():
                words.append(f"number({float(a)!r})")
            else:
                self.scalars.append(self.dtype.type(a))
                words.append(f"c{len(self.scalars) - 1}")
        return TEMPLATES[fn].format(*words)

    def run(self, values: dict[int, Any]) -> Iterator[tuple[int, np.ndarray]]:
        """The outputs from the inputs."""
        arrays = [
            np.ascontiguousarray(values[k]).reshape(view)
            for k, view in zip(self.inputs, self.views, strict=True)
        ]
        made = [np.empty(self.loops, dtype) for dtype in self.dtypes]
        self.loop(*made, *arrays, *self.scalars)
        for k, array in zip(self.outputs, made, strict=True):
            yield k, array.reshape(self.shape)


@cache
def _text(formula: Formula) -> str:
    """The lines of a formula, with {p} before the names of its values and {a0} for what it reads."""

    def word(x: Any) -> str:
        if isinstance(x, tuple):
            return f"{{p}}{x[1]}" if x[0] == "made" else f"{{a{x[1]}}}"
        return f"number({float(x)!r})"

    lines = []
    for k, (fn, words) in enumerate(formula.lines):
        own = words[:1] if fn is np.astype else words
        lines.append(f"{{p}}{k} = {TEMPLATES[fn].format(*map(word, own))}")
    return "\n".join(lines)


def fuse(tape: Tape, order: list[int], wanted: set[int]) -> list[int | Fused]:
    """The order of a tape with its large elementwise steps gathered into loops.

    The loops of equal layers are equal, and compiled once. Where no two are, they take in all they can.
    """
    done = _gathered(tape, order, wanted, alike=True)
    loops = [part for part in done if isinstance(part, Fused)]
    if len({part.source for part in loops}) == len(loops):
        done = _gathered(tape, order, wanted, alike=False)
    for part in done:
        if isinstance(part, Fused):
            part.compile()
    return done


def _gathered(tape: Tape, order: list[int], wanted: set[int], alike: bool) -> list[int | Fused]:
    """Steps and loops; a step that depends on nothing in the open loop goes before it, another closes it.

    A loop has the rules of one layer, with what is made of their results. With `alike`, none begins with a
    multiple of data or ends with the bias of the next layer: that makes the loops of equal layers equal.
    """
    done: list[int | Fused] = []
    group, data = Fused(()), set(tape.leaves)

    def close() -> None:
        nonlocal group
        many = len(group.members) >= FEWEST_STEPS or any(_is_formula(tape, k) for k in group.members)
        done.extend([group] if many else group.members)
        group = Fused(())

    for k in order:
        of_data = alike and _is_multiple(tape, k) and not _reads(tape, k).isdisjoint(data)
        joins = _is_fusable(tape, k)
        stays = _fits(tape, k, group, alike) if joins else _reads(tape, k).isdisjoint(group.members)
        if group.members and not stays:
            close()
        if of_data:
            data.add(k)
        if joins and (group.members or not of_data):
            group.shape = tape.shapes[k]
            group.members.append(k)
        else:
            done.append(k)
    close()
    _connect(tape, done, wanted)
    for part in done:
        if isinstance(part, Fused):
            part.write(tape)
    return done


def _reads(tape: Tape, k: int) -> set[int]:
    return {a.step for a in tape.steps[k].reads()}


def _fits(tape: Tape, k: int, group: Fused, alike: bool) -> bool:
    """Whether a step belongs to the layer of an open loop.

    After its first rule these are rules of the same arrays, and what reads results of them; of loops that are
    to be alike up to the bias of the next layer.
    """
    if tape.shapes[k] != group.shape:
        return False
    rules = [m for m in group.members if m in tape.cuts]
    if not rules:
        return True
    before, reads = group.members[: group.members.index(rules[0])], _reads(tape, k)
    if k not in tape.cuts:
        return not reads.isdisjoint(group.members) and not (alike and _is_shift(tape, k))
    full = {a for m in rules for a in _reads(tape, m) if tape.shapes[a] == group.shape}
    return not reads.isdisjoint(full) and reads.isdisjoint(set(group.members) - set(before))


def _is_formula(tape: Tape, k: int) -> bool:
    return isinstance(tape.steps[k].fn, Formula)


def _is_multiple(tape: Tape, k: int) -> bool:
    """Whether a step multiplies or divides by a number."""
    fn, args, *_ = tape.steps[k]
    return fn in (operator.mul, operator.truediv) and any(prod(getattr(a, "shape", ())) == 1 for a in args)


def _is_shift(tape: Tape, k: int) -> bool:
    """Whether a step adds a number."""
    fn, args, *_ = tape.steps[k]
    return fn is operator.add and any(prod(getattr(a, "shape", ())) == 1 for a in args)


def _connect(tape: Tape, done: list[int | Fused], wanted: set[int]) -> None:
    """What each loop reads and what others read from it."""
    owner = {k: part for part in done if isinstance(part, Fused) for k in part.members}
    read: set[int] = set(wanted)
    for part in done:
        for k in part.members if isinstance(part, Fused) else [part]:
            for a in tape.steps[k].reads():
                if owner.get(a.step) is not owner.get(k) or not isinstance(part, Fused):
                    read.add(a.step)
                if isinstance(part, Fused) and owner.get(a.step) is not part and a.step not in part.inputs:
                    part.inputs.append(a.step)
    for part in done:
        if isinstance(part, Fused):
            part.outputs = [k for k in part.members if k in read]


def _is_fusable(tape: Tape, k: int) -> bool:
    """A large step of real numbers of one type that the table knows."""
    fn, args, options, _ = tape.steps[k]
    shape = tape.shapes[k]
    share = tape.share if len(shape) > 1 and shape[1] > 1 else 1.0
    work = prod(shape) * (MANY if _is_formula(tape, k) else 1)
    if options or k in tape.leaves or work < LEAST_ELEMENTS * share:
        return False
    if not (all(f in TEMPLATES for f, _ in fn.lines) if isinstance(fn, Formula) else fn in TEMPLATES):
        return False
    if fn is np.astype:
        return tape.dtypes[args[0].step] == BOOL and tape.dtypes[k] in FLOATS
    kinds = {tape.dtypes[a.step] for a in tape.steps[k].reads()} - {BOOL}
    plain = all(hasattr(a, "step") or isinstance(a, int | float) for a in args)
    return plain and len(kinds) <= 1 and kinds <= FLOATS and tape.dtypes[k] in FLOATS | {BOOL}


def _index(depth: int) -> str:
    return ", ".join(f"i{d}" for d in range(depth))
