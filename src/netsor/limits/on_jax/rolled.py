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
from netsor.limits.tape.batches import Batch, Loop, Slot, Table
from netsor.limits.tape.graph import Graph, in_library

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
            self.computed[node] = (value.astype(self.real) if value.dtype.kind == "f" else value, None)
        for node, name in graph.inputs.items():
            self.computed[node] = (self.jnp.asarray(given[name], dtype=self.real), None)
        self._functions: dict[Any, Callable[..., Any]] = {}

    # Reading

    def one(self, node: int) -> Array:
        array, at = self.computed[node]
        return array if at is None else self.map(lambda x: x[at, ...], array)

    def many(self, nodes: Sequence[int]) -> Array:
        """Return the values of nodes, stacked along a leading axis."""
        entries = [self.computed[node] for node in nodes]
        used: dict[int, tuple[Any, dict[Any, None]]] = {}  # by id, an array and the positions read
        for array, at in entries:
            used.setdefault(id(array), (array, {}))[1][at] = None
        pieces, where = [], {}
        for key, (array, positions) in used.items():
            where |= {(key, at): len(where) + n for n, at in enumerate(positions)}
            whole = None in positions
            pieces.append(self.with_axis(array) if whole else self.taken(array, list(positions)))
        return self.taken(self.joined(pieces), [where[id(array), at] for array, at in entries])

    def stacked(self, nodes: Sequence[int]) -> Array:
        """Return the values of nodes, stacked unless there is only one."""
        return self.one(nodes[0]) if len(nodes) == 1 else self.many(nodes)

    def with_axis(self, tree: Any) -> Any:
        return self.map(lambda x: x[None], tree)

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
        node, count = part.nodes[0], len(part.nodes)
        # Stacking large arrays takes memory and time, and a few separate calls compile fast.
        if count < 4 or (count < 16 and self.graph.operation_of(node).size > 2**14):
            for v in part.nodes:
                reads = [(self.one(s), None) for s in self.graph.reads[v]]
                self.computed[v] = (self.call(v, reads, self.graph.numbers[v], 1), None)
            return
        reads = []
        for column in zip(*(self.graph.reads[v] for v in part.nodes), strict=True):
            same = len(set(column)) == 1
            reads.append((self.one(column[0]), None) if same else (self.many(column), 0))
        numbers = [self.numbers(column) for column in np.array([self.graph.numbers[v] for v in part.nodes]).T]
        value = self.call(node, reads, numbers, count)
        self.computed.update((v, (value, k)) for k, v in enumerate(part.nodes))

    def numbers(self, column: np.ndarray) -> Any:
        """Return a number if all are equal, else an array."""
        return column[0].item() if (column == column[0]).all() else self.number_array(column)

    def number_array(self, table: np.ndarray) -> Array:
        return self.jnp.asarray(table, dtype=self.real if table.dtype.kind == "f" else np.int32)

    def call(
        self, node: int, reads: Sequence[tuple[Any, int | None]], numbers: Sequence[Any], width: int
    ) -> Any:
        """Apply the operation of a node to values and numbers with or without a leading axis."""
        fixed = tuple(None if hasattr(x, "shape") else x for x in numbers)
        function = self._function(node, len(reads), fixed)
        args = [*reads, *((x, 0 if x.ndim else None) for x in numbers if hasattr(x, "shape"))]
        axes = tuple(axis for _, axis in args)
        if 0 in axes:
            return self.jax.vmap(function, in_axes=axes)(*(x for x, _ in args))
        value = function(*(x for x, _ in args))
        if width == 1:
            return value
        return self.map(lambda x: self.jnp.broadcast_to(x, (width, *x.shape)), value)

    def _function(self, node: int, reads: int, fixed: tuple[Any, ...]) -> Callable[..., Any]:
        key = (self.graph.operation[node], tuple((type(x), x) for x in fixed))
        if key not in self._functions:
            operation = in_library(self.graph.operation_of(node), self.jnp, self.real)

            def function(*args: Any) -> Any:
                arrays = iter(args[reads:])
                return operation(args[:reads], [next(arrays) if x is None else x for x in fixed])

            simple = getattr(operation.fn, "__module__", "").startswith(("_operator", "jax"))
            self._functions[key] = function if simple else self.jax.jit(function)
        return self._functions[key]


class _Scan:
    """A loop as one jax.lax.scan.

    rows   by table, arrays with a leading axis of rounds, for what differs between rounds
    fixed  by table, what all rounds share
    state  the steps that the next round reads, or whose last values are read after the loop
    """

    def __init__(self, values: Values, loop: Loop) -> None:
        self.values, self.loop, self.jnp = values, loop, values.jnp
        self.rows: dict[Any, Any] = {}
        self.fixed: dict[Any, Any] = {}
        self.state = [g for g, step in enumerate(loop.steps) if g in loop.first or step.kept == "last"]
        self.reads = [[self._reader(slot) for slot in step.slots] for step in loop.steps]
        self.numbers = [
            [self._source("number", table, self._number) for table in step.columns(values.graph.numbers)]
            for step in loop.steps
        ]

    def _source(self, kind: str, table: Table, read: Callable[[Table], Any]) -> Callable[[Any], Any]:
        """Return the value of a table as a function of what differs between rounds."""
        same = bool((table == table[:1]).all())
        # Equal tables share a value.
        values, key = self.fixed if same else self.rows, (kind, table.shape, table.tobytes())
        if key not in values:
            values[key] = read(table[0] if same else table)
        return lambda row: (self.fixed if same else row)[key]

    def _number(self, table: Table) -> Any:
        """Return numbers (members,) of all rounds, or (rounds, members); members may share them."""
        if table.ndim == 1:
            return self.values.numbers(table)
        return self.values.number_array(table[:, 0] if (table == table[:, :1]).all() else table)

    def _nodes(self, table: np.ndarray) -> Any:
        """Return the values of nodes in the shape of their table; a width of 1 has no leading axis."""
        if table.ndim == 1:
            return self.values.stacked(table.tolist())
        flat = self.values.many(table.reshape(-1).tolist())
        if table.shape[1] == 1:
            return flat
        return self.values.map(lambda x: x.reshape((*table.shape, *x.shape[1:])), flat)

    # One round

    def body(self, state: dict[int, Any], row: Mapping[Any, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        results: list[Any] = []  # values of the steps so far
        for step, readers, sources in zip(self.loop.steps, self.reads, self.numbers, strict=True):
            reads = [read(results, state, row) for read in readers]
            numbers = [source(row) for source in sources]
            results.append(self.values.call(int(step.nodes[0, 0]), reads, numbers, step.width))
        kept = {g: results[g] for g, step in enumerate(self.loop.steps) if step.kept == "all"}
        return {g: results[g] for g in self.state}, kept

    def _reader(self, slot: Slot) -> Callable[..., tuple[Any, int | None]]:
        """Return a function that reads an argument and its axis of members; a width of 1 has no such axis."""
        values, steps, axis = self.values, self.loop.steps, 0 if slot.width > 1 else None
        given = None if slot.given is None else self._source("given", slot.given, self._nodes)
        index = None
        if slot.index is not None:
            index = self._source("index", slot.index, lambda table: table.astype(np.int32))

        def read(results: list[Any], state: Mapping[int, Any], row: Any) -> tuple[Any, int | None]:
            pieces = [(results[g], steps[g].width) for g in slot.now]
            pieces += [(state[g], steps[g].width) for g in slot.before]
            if given is not None:
                pieces.append((given(row), slot.width))
            if index is None and len(pieces) == 1:
                return pieces[0][0], axis
            entries = values.joined([x if width > 1 else values.with_axis(x) for x, width in pieces])
            if index is None:
                return entries, axis
            at = index(row)
            if slot.width == 1:
                return values.map(lambda x: x[at[0]], entries), axis
            return values.map(lambda x: self.jnp.take(x, at, axis=0), entries), axis

        return read

    # All rounds

    def _first(self) -> dict[int, Any]:
        """Return the state that the first round reads."""
        values, state = self.values, {}
        for g, nodes in self.loop.first.items():
            unread = next(iter(nodes.values()))  # positions that the first round does not read
            row = [nodes.get(position, unread) for position in range(self.loop.steps[g].width)]
            state[g] = values.map(self.jnp.asarray, values.stacked(row))
        if len(state) < len(self.state):
            one = values.map(lambda x: x[0], self.rows)
            like = values.jax.eval_shape(self.body, state, one)[0]
            # jax.lax.scan needs values to start with; the first round overwrites these zeros.
            zeros = values.map(lambda x: self.jnp.zeros(x.shape, x.dtype), like)
            state = {**zeros, **state}
        return state

    def run(self) -> None:
        values, steps = self.values, self.loop.steps
        state, kept = values.jax.lax.scan(self.body, self._first(), self.rows, length=self.loop.rounds)
        for g, step in enumerate(steps):
            if step.kept == "last":
                self._store(state[g], step.nodes[-1:])
            elif step.kept:
                wide = step.width > 1
                flat = values.map(lambda x: x.reshape((-1, *x.shape[2:])), kept[g]) if wide else kept[g]
                self._store(flat, step.nodes)

    def _store(self, value: Any, nodes: Table) -> None:
        places = [None] if nodes.size == 1 else range(nodes.size)
        for at, node in reversed(list(zip(places, nodes.reshape(-1).tolist(), strict=True))):
            self.values.computed[node] = (value, at)


@cache
def _register() -> None:
    """Register `Series` with JAX as a tree of arrays."""
    from jax.tree_util import register_dataclass  # type: ignore[import-not-found]

    register_dataclass(Series, ["coefs", "tail", "error", "square", "mark", "jumps"], ["rests", "rule"])
    register_dataclass(Jumps, ["places", "sizes", "coefs", "tail", "scale"], ["orders"])
