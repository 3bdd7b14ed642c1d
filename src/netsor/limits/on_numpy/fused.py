"""Loop fusion: the elementwise steps of a layer as one compiled loop. Needs Numba (the extra `fast`).

NumPy makes one pass over memory for each step, a compiled loop makes one for all. The source of a loop is
generated from the recorded steps. Equal layers have the same source, which is compiled once.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.expect.closed.arrays import product_error
from netsor.limits.on_numpy.compiled_loops import compiled_loop
from netsor.limits.tape.formulas import Formula

if TYPE_CHECKING:
    from netsor.limits.tape.tape import Tape

LEAST_ELEMENTS = 1024  # of a step in a loop: with fewer, NumPy takes little longer
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
    **{getattr(np, name): f"{name}({{0}})" for name in ("sqrt", "exp", "expm1", "log", "sin", "cos", "abs")},
    np.sign: "number({0} > 0) - number({0} < 0)",
    np.where: "{1} if {0} else {2}",
    np.arctan2: "atan2({0}, {1})",
    np.minimum: "min({0}, {1})",
    np.maximum: "max({0}, {1})",
    product_error: "fma({0}, {1}, -{2})",
    np.astype: "number(1.0) if {0} else number(0.0)",
}
FLOATS = {np.dtype(np.float64), np.dtype(np.float32)}


@dataclass
class Fused:
    """Steps that form one loop; `inputs` and `outputs` are the values that it reads and writes."""

    shape: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def compile(self, tape: Tape) -> None:
        """Write and compile the loop. Merge adjacent axes that every input either has or broadcasts."""
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
        self.loop = compiled_loop(self._source(tape), self.dtype)

    def _source(self, tape: Tape) -> str:
        depth = len(self.loops)
        names = {k: f"x{i}" for i, k in enumerate(self.inputs)}
        body = []
        for m, k in enumerate(self.members):
            fn, args, *_ = tape.steps[k]
            if isinstance(fn, Formula):
                reads = {f"a{i}": names[a.step] for i, a in enumerate(args)}
                body += _text(fn).format(p=f"t{m}_", **reads).split("\n")
                names[k] = f"t{m}_{len(fn.steps) - 1}"
            else:
                body.append(f"t{m} = {_expression(fn, args, names, self._number)}")
                names[k] = f"t{m}"
        place = ", ".join(f"i{d}" for d in range(depth))
        stores = [f"out{i}[{place}] = {names[k]}" for i, k in enumerate(self.outputs)]
        # Values that do not vary along an axis are loaded before its loop begins.
        loads: list[list[str]] = [[] for _ in range(depth + 1)]
        for i, view in enumerate(self.views):
            at = max((d + 1 for d in range(depth) if view[d] > 1), default=0)
            where = ", ".join(f"i{d}" if view[d] > 1 else "0" for d in range(depth))
            loads[at].append(f"x{i} = a{i}[{where}]")
        arguments = [f"out{i}" for i in range(len(self.outputs))] + [f"a{i}" for i in range(len(self.inputs))]
        arguments += [f"c{i}" for i in range(len(self.scalars))]
        block = [*loads[depth], *_simplified((*body, *stores))]
        for d in reversed(range(depth)):
            block = [*loads[d], f"for i{d} in range(out0.shape[{d}]):", *(f"    {line}" for line in block)]
        return "\n".join([f"def loop({', '.join(arguments)}):", *(f"    {line}" for line in block)]) + "\n"

    def _number(self, x: float) -> str:
        """Return a whole number as part of the source, so that the compiler can simplify.

        Other numbers are arguments, so that layers with different variances share a loop.
        """
        if float(x).is_integer():
            return _literal(x)
        self.scalars.append(self.dtype.type(x))
        return f"c{len(self.scalars) - 1}"

    def run(self, values: dict[int, Any]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the outputs, computed from the inputs."""
        arrays = [
            np.ascontiguousarray(values[k]).reshape(view)
            for k, view in zip(self.inputs, self.views, strict=True)
        ]
        results = [np.empty(self.loops, dtype) for dtype in self.dtypes]
        self.loop(*results, *arrays, *self.scalars)
        for k, array in zip(self.outputs, results, strict=True):
            yield k, array.reshape(self.shape)


@lru_cache(maxsize=1024)  # the loops of equal layers have equal statements
def _simplified(statements: tuple[str, ...]) -> list[str]:
    """Simplify `name = expression`: compute equal temporary values once, and drop factors 1.

    LLVM would find these too, but only after Numba has typed and inlined all of them, which takes most of the
    time of compiling.
    """
    names: dict[str, str] = {}  # by temporary value, the equal value that replaces it
    temporary = re.compile(r"\bt\d\w*")
    kept, name_of = [], {}
    for statement in statements:
        name, _, expression = statement.partition(" = ")
        expression = temporary.sub(lambda match: names.get(match[0], match[0]), expression)
        factor = expression.removesuffix(" * number(1.0)")
        if temporary.fullmatch(name) and (temporary.fullmatch(factor) or expression in name_of):
            names[name] = name_of.get(expression, factor)
            continue
        if temporary.fullmatch(name):
            name_of[expression] = name
        kept.append(f"{name} = {expression}")
    return kept


def _literal(x: float) -> str:
    return f"number({float(x)!r})"


def _expression(fn: Any, args: tuple[Any, ...], names: dict[int, str], number: Callable[[float], str]) -> str:
    """Return the expression of a step, from the names of what it reads."""
    operands = args[:1] if fn is np.astype else args
    return TEMPLATES[fn].format(*(names[a.step] if hasattr(a, "step") else number(a) for a in operands))


@cache
def _text(formula: Formula) -> str:
    """Return the lines of a formula, with {p} before the names of its values and {a0} for its arguments."""
    names = {k: f"{{a{i}}}" for i, k in enumerate(formula.reads)}
    names |= {k: _literal(x) for k, x in formula.numbers.items()}
    lines = []
    for i, (k, (fn, args, *_)) in enumerate(formula.steps.items()):
        lines.append(f"{{p}}{i} = {_expression(fn, args, names, _literal)}")
        names[k] = f"{{p}}{i}"
    return "\n".join(lines)


def fuse(tape: Tape, order: list[int], wanted: set[int]) -> list[int | Fused]:
    """Return the steps of a tape, with the large elementwise steps gathered into loops.

    A loop has the rules of one layer, and what is computed from their results. No loop begins with a multiple
    of data or ends with the bias of the next layer, so that loops of equal layers are equal: these are
    compiled once. A step that does not fit closes the open loop, unless it is independent of it.
    """
    parts: list[int | Fused] = []
    group, data = Fused(()), set(tape.leaves)

    def close() -> None:
        nonlocal group
        # Calling a Numba loop takes as long as two NumPy steps; but a formula alone is many NumPy steps.
        pays = len(group.members) > 2 or any(k in tape.rules for k in group.members)
        parts.extend([group] if pays else group.members)
        group = Fused(())

    for k in order:
        is_multiple = _takes_number(tape, k, operator.mul, operator.truediv)
        of_data = is_multiple and not _reads(tape, k).isdisjoint(data)
        joins = _is_fusable(tape, k)
        stays = _fits(tape, k, group) if joins else _reads(tape, k).isdisjoint(group.members)
        if group.members and not stays:
            close()
        if of_data:
            data.add(k)
        if joins and (group.members or not of_data):
            group.shape = tape.shapes[k]
            group.members.append(k)
        else:
            parts.append(k)
    close()
    _connect(tape, parts, wanted)
    for part in parts:
        if isinstance(part, Fused):
            part.compile(tape)
    return parts


def _reads(tape: Tape, k: int) -> set[int]:
    return {a.step for a in tape.steps[k].reads()}


def _fits(tape: Tape, k: int, group: Fused) -> bool:
    """Return whether a step belongs to the layer of an open loop.

    After the first rule of a loop, the layer has rules of the same arrays and steps that read their results;
    it ends before the bias of the next layer.
    """
    if tape.shapes[k] != group.shape:
        return False
    rules = [m for m in group.members if m in tape.rules]
    if not rules:
        return True
    before, reads = group.members[: group.members.index(rules[0])], _reads(tape, k)
    if k not in tape.rules:
        return not reads.isdisjoint(group.members) and not _takes_number(tape, k, operator.add)
    full = {a for m in rules for a in _reads(tape, m) if tape.shapes[a] == group.shape}
    return not reads.isdisjoint(full) and reads.isdisjoint(set(group.members) - set(before))


def _takes_number(tape: Tape, k: int, *functions: Any) -> bool:
    """Return whether a step applies one of these functions to an array and a number."""
    fn, args, *_ = tape.steps[k]
    return fn in functions and any(prod(getattr(a, "shape", ())) == 1 for a in args)


def _connect(tape: Tape, parts: list[int | Fused], wanted: set[int]) -> None:
    """Determine which values each loop reads, and which of its values are read outside."""
    read: set[int] = set(wanted)
    for part in parts:
        members = part.members if isinstance(part, Fused) else [part]
        outside = [a.step for k in members for a in tape.steps[k].reads() if a.step not in members]
        read.update(outside)
        if isinstance(part, Fused):
            part.inputs = list(dict.fromkeys(outside))
    for part in parts:
        if isinstance(part, Fused):
            part.outputs = [k for k in part.members if k in read]


def _is_fusable(tape: Tape, k: int) -> bool:
    """Return whether a step is large, elementwise, in the table of templates, and of one real type."""
    fn, args, options, *_ = tape.steps[k]
    shape = tape.shapes[k]
    share = tape.share if len(shape) > 1 and shape[1] > 1 else 1.0
    work = prod(shape) * (16 if k in tape.rules else 1)  # a formula takes NumPy at least 16 calls
    if options or k in tape.leaves or work < LEAST_ELEMENTS * share:
        return False
    if not (
        all(f in TEMPLATES for f, *_ in fn.steps.values()) if isinstance(fn, Formula) else fn in TEMPLATES
    ):
        return False
    if fn is np.astype:
        return tape.dtypes[args[0].step] == np.dtype(bool) and tape.dtypes[k] in FLOATS
    kinds = {tape.dtypes[a.step] for a in tape.steps[k].reads()} - {np.dtype(bool)}
    plain = all(hasattr(a, "step") or isinstance(a, int | float) for a in args)
    return plain and len(kinds) <= 1 and kinds <= FLOATS and tape.dtypes[k] in FLOATS | {np.dtype(bool)}
