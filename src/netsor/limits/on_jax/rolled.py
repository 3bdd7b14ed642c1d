"""The values of a recorded graph in JAX, as a few batched operations and loops.

JAX compiles every operation that it traces, so the steps of a deep network or a long sequence would compile
for minutes. So nodes of one operation are computed at once along a leading axis (jax.vmap), and repeated
nodes in one jax.lax.scan; `tape.batches` finds both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from netsor.expect.hermite.expansion import Series
from netsor.expect.hermite.singularities import Jumps
from netsor.limits.tape.batches import Batch, BodyStep, Loop, Slot
from netsor.limits.tape.graph import Graph, Operation, in_library

Array = Any


class Values:
    """The values of the nodes of a graph so far.

    computed  by node, an array and its position on the leading axis, or None if it is the whole array
    """

    def __init__(self, graph: Graph, given: Mapping[str, Array]) -> None:
        import jax  # type: ignore[import-not-found]

        _register()
        self.jax, self.jnp, self.graph = jax, jax.numpy, graph
        arrays = [jax.numpy.asarray(a) for a in given.values()]
        self.real = jax.numpy.result_type(*(a.dtype for a in arrays), jax.numpy.bfloat16)
        self.real = self.real if arrays else jax.numpy.result_type(float)
        self.computed: dict[int, tuple[Array, int | None]] = {}
        for node, value in graph.constants.items():
            self.computed[node] = (self._constant(value), None)
        for node, name in graph.inputs.items():
            self.computed[node] = (self.jnp.asarray(given[name], dtype=self.real), None)
        self._functions: dict[Any, Callable[..., Any]] = {}

    def _constant(self, value: np.ndarray) -> np.ndarray:
        return value.astype(self.real) if value.dtype.kind == "f" else value

    # Reading

    def one(self, node: int) -> Array:
        array, at = self.computed[node]
        return array if at is None else self.map(lambda x: x[at, ...], array)

    def many(self, nodes: Sequence[int]) -> Array:
        """Return the values of nodes, stacked along a leading axis."""
        arrays: dict[
            int, tuple[Array, bool, dict[int, int]]
        ] = {}  # by id: the array, whether it is a single value, and the positions that are read
        where = []
        for node in nodes:
            array, at = self.computed[node]
            _, _, used = arrays.setdefault(id(array), (array, at is None, {}))
            where.append((id(array), used.setdefault(at or 0, len(used))))
        offset, offsets, pieces = 0, {}, []
        for key, (array, whole, used) in arrays.items():
            offsets[key] = offset
            offset += len(used)
            pieces.append(self.map(lambda x: x[None], array) if whole else self.taken(array, list(used)))
        return self.taken(self.joined(pieces), [offsets[key] + at for key, at in where])

    def map(self, fn: Callable[..., Any], *trees: Any) -> Any:
        return self.jax.tree_util.tree_map(fn, *trees)

    def joined(self, trees: list[Any]) -> Any:
        """Concatenate along the leading axis."""
        return trees[0] if len(trees) == 1 else self.map(lambda *x: self.jnp.concatenate(x), *trees)

    def taken(self, tree: Any, index: Sequence[int]) -> Any:
        """Return entries of the leading axis; a slice if they are consecutive."""
        size = self.jax.tree_util.tree_leaves(tree)[0].shape[0]
        if list(index) == list(range(size)):
            return tree
        if list(index) == list(range(index[0], index[0] + len(index))):
            return self.map(lambda x: x[index[0] : index[0] + len(index)], tree)
        picked = np.asarray(index, np.int32)
        return self.map(lambda x: self.jnp.take(x, picked, axis=0), tree)

    # Computing

    def run(self, part: Batch | Loop) -> None:
        if isinstance(part, Loop):
            _Scan(self, part).run()
            return
        operation = self.operation(part.nodes[0])
        count = len(part.nodes)
        # Stacking large arrays takes memory and time, and a few separate calls compile fast.
        if count < 4 or (count < 16 and operation.size > 2**14):
            for v in part.nodes:
                reads = [(self.one(s), None) for s in self.graph.reads[v]]
                self.computed[v] = (self.call(v, reads, [(x, None) for x in self.graph.numbers[v]], 1), None)
            return
        reads = [
            self._column(column) for column in zip(*(self.graph.reads[v] for v in part.nodes), strict=True)
        ]
        numbers = [self.numbers(column) for column in np.array([self.graph.numbers[v] for v in part.nodes]).T]
        value = self.call(part.nodes[0], reads, numbers, count)
        self.computed.update((v, (value, k)) for k, v in enumerate(part.nodes))

    def operation(self, node: int) -> Operation:
        operation = self.graph.operations[self.graph.operation[node]]
        assert operation is not None
        return operation

    def _column(self, nodes: tuple[int, ...]) -> tuple[Array, int | None]:
        same = all(v == nodes[0] for v in nodes)
        return (self.one(nodes[0]), None) if same else (self.many(nodes), 0)

    def numbers(self, column: np.ndarray) -> tuple[Any, int | None]:
        """Return a number if all are equal, else an array and its axis."""
        if (column == column[0]).all():
            return column[0].item(), None
        return self.number_array(column), 0

    def number_array(self, table: np.ndarray) -> Array:
        return self.jnp.asarray(table, dtype=self.real if table.dtype.kind == "f" else np.int32)

    def call(
        self, node: int, reads: list[tuple[Any, Any]], numbers: list[tuple[Any, Any]], width: int
    ) -> Any:
        """Apply the operation of a node to values with or without a leading axis."""
        fixed = tuple(None if hasattr(x, "shape") else x for x, _ in numbers)
        function = self._function(node, len(reads), fixed)
        args = [*reads, *((x, axis) for x, axis in numbers if hasattr(x, "shape"))]
        axes = tuple(axis for _, axis in args)
        if any(axis == 0 for axis in axes):
            return self.jax.vmap(function, in_axes=axes)(*(x for x, _ in args))
        value = function(*(x for x, _ in args))
        if width == 1:
            return value
        return self.map(lambda x: self.jnp.broadcast_to(x, (width, *x.shape)), value)

    def _function(self, node: int, reads: int, fixed: tuple[Any, ...]) -> Callable[..., Any]:
        key = (self.graph.operation[node], tuple((type(x), x) for x in fixed))
        if key not in self._functions:
            operation = in_library(self.operation(node), self.jnp, self.real)

            def function(*args: Any) -> Any:
                arrays = iter(args[reads:])
                return operation(args[:reads], [next(arrays) if x is None else x for x in fixed])

            simple = getattr(operation.fn, "__module__", "").startswith(("_operator", "jax"))
            self._functions[key] = function if simple else self.jax.jit(function)
        return self._functions[key]


class _Scan:
    """A loop as one jax.lax.scan.

    rows   tables and arrays with a leading axis of rounds, for what differs between rounds
    fixed  what all rounds share
    """

    def __init__(self, values: Values, loop: Loop) -> None:
        self.values, self.loop, self.jnp = values, loop, values.jnp
        self.rows: dict[str, Any] = {}
        self.fixed: dict[str, Any] = {}
        for k, table in enumerate(loop.given):
            self._add_given(f"given {k}", table)
        for g, step in enumerate(loop.steps):
            for s, slot in enumerate(step.slots):
                if slot.index is not None:
                    self._add(f"index {g} {s}", slot.index.astype(np.int32))
            self._add_numbers(g, step)
        for c, carried in enumerate(loop.carries):
            if carried.index is not None:
                self._add(f"carry {c}", carried.index.astype(np.int32))

    def _add(self, name: str, table: np.ndarray) -> None:
        if (table == table[:1]).all():
            self.fixed[name] = table[0]
        else:
            self.rows[name] = table

    def _add_given(self, name: str, table: np.ndarray) -> None:
        rounds, width = table.shape
        if (table == table[:1]).all():
            row = table[0].tolist()
            self.fixed[name] = self.values.one(row[0]) if width == 1 else self.values.many(row)
            return
        flat = self.values.many(table.reshape(-1).tolist())
        if width > 1:
            flat = self.values.map(lambda x: x.reshape((rounds, width, *x.shape[1:])), flat)
        self.rows[name] = flat

    def _add_numbers(self, g: int, step: BodyStep) -> None:
        numbers = self.values.graph.numbers
        table = np.array([[numbers[v] for v in row] for row in step.nodes.tolist()])
        for k in range(table.shape[2] if table.ndim == 3 else 0):
            name, column = f"number {g} {k}", table[:, :, k]
            if (column == column[0, 0]).all():
                self.fixed[name] = (column[0, 0].item(), None)
            else:
                alike = (column == column[:, :1]).all()
                self.rows[name] = self.values.number_array(column[:, 0] if alike else column)

    # One round

    def _row(self, name: str, row: Mapping[str, Any]) -> Any:
        return row[name] if name in row else self.fixed.get(name)

    def body(self, state: Any, row: Any) -> tuple[Any, Any]:
        results: list[Any] = []  # values of the steps so far
        for g, step in enumerate(self.loop.steps):
            reads = [
                self._read(results, slot, state["carried"], row, f"index {g} {s}")
                for s, slot in enumerate(step.slots)
            ]
            node = int(step.nodes[0, 0])
            count = len(self.values.graph.numbers[node])
            numbers = [self._number(row, f"number {g} {k}") for k in range(count)]
            results.append(self.values.call(node, reads, numbers, step.width))
        carried = []
        for c, carry in enumerate(self.loop.carries):
            pieces = [(results[g], self.loop.steps[g].width) for g in carry.steps]
            carried.append(self._picked(pieces, carry.index, self._row(f"carry {c}", row), len(carry.first)))
        last = {g: results[g] for g in self._last()}
        kept = {g: results[g] for g, step in enumerate(self.loop.steps) if step.kept == "all"}
        return {"carried": carried, "last": last}, kept

    def _number(self, row: Mapping[str, Any], name: str) -> tuple[Any, int | None]:
        if name in self.fixed:
            return self.fixed[name]
        return row[name], 0 if row[name].ndim else None

    def _read(
        self, results: list[Any], slot: Slot, carried: list[Any], row: Any, name: str
    ) -> tuple[Any, int | None]:
        if slot.shared is not None:
            return self.values.one(slot.shared), None
        pieces = [(results[g], self.loop.steps[g].width) for g in slot.now]
        if slot.carried is not None:
            pieces.append((carried[slot.carried], slot.width))
        if slot.given is not None:
            pieces.append((self._row(f"given {slot.given}", row), slot.width))
        value = self._picked(pieces, slot.index, self._row(name, row), slot.width)
        return value, 0 if slot.width > 1 else None

    def _picked(self, pieces: list[tuple[Any, int]], index: Any, chosen: Any, width: int) -> Any:
        """Return entries of values put one after the other; a width of 1 has no leading axis."""
        if index is None and len(pieces) == 1:
            return pieces[0][0]
        tree = self.values.map
        row = self.values.joined([x if n > 1 else tree(lambda y: y[None], x) for x, n in pieces])
        if width == 1:
            at = 0 if index is None else chosen[0]
            return tree(lambda x: x[at], row)
        return row if index is None else tree(lambda x: self.jnp.take(x, chosen, axis=0), row)

    # All rounds

    def _last(self) -> list[int]:
        """Return the steps whose values in the last round are read after the loop."""
        return [g for g, step in enumerate(self.loop.steps) if step.kept == "last"]

    def run(self) -> None:
        values, loop = self.values, self.loop
        first = [
            values.one(int(c.first[0])) if len(c.first) == 1 else values.many(c.first.tolist())
            for c in loop.carries
        ]
        first = [values.map(self.jnp.asarray, x) for x in first]
        state: Any = {"carried": first, "last": {}}
        if self._last():
            one = values.map(lambda x: x[0], self.rows)
            like = values.jax.eval_shape(self.body, state, one)[0]["last"]
            # jax.lax.scan needs values to start with; these zeros are overwritten by the first round.
            state["last"] = values.map(lambda x: self.jnp.zeros(x.shape, x.dtype), like)
        state, kept = values.jax.lax.scan(self.body, state, self.rows, length=loop.rounds)
        for g, value in state["last"].items():
            self._store(loop.steps[g], value, loop.steps[g].nodes[-1:])
        for g, value in kept.items():
            step = loop.steps[g]
            if step.width > 1:
                value = values.map(lambda x: x.reshape((-1, *x.shape[2:])), value)
            self._store(step, value, step.nodes)

    def _store(self, step: BodyStep, value: Any, nodes: np.ndarray) -> None:
        if nodes.size == 1:
            self.values.computed[int(nodes[0, 0])] = (value, None)
            return
        for at, node in reversed(list(enumerate(nodes.reshape(-1).tolist()))):
            self.values.computed[node] = (value, at)


@cache
def _register() -> None:
    """Register `Series` with JAX as a tree of arrays."""
    from jax.tree_util import register_dataclass  # type: ignore[import-not-found]

    register_dataclass(Series, ["coefs", "tail", "error", "square", "mark", "jumps"], ["rests", "rule"])
    register_dataclass(Jumps, ["places", "sizes", "coefs", "tail", "scale"], ["orders"])
