"""Properties of expressions: their text, and the maps on index axes against loops over positions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import USER, expressions

from netsor.lang import parse_expr
from netsor.lang.blocks import Block
from netsor.lang.expr import Apply, Const, Expr, Slice, refs, rename, subtrees
from netsor.lang.functions import MIXINGS, neg
from netsor.lang.index_maps import at, avgpool, contract, patches, window
from netsor.lang.ops import Op
from netsor.lang.show import show_expr

many = settings(max_examples=10 * settings().max_examples)
some = settings(max_examples=2 * settings().max_examples)


# Text


@many
@given(expressions())
def test_text_reads_back(expr: Expr) -> None:
    back = parse_expr(show_expr(expr), functions=USER)
    assert back == expr
    assert hash(back) == hash(expr)
    assert show_expr(back) == show_expr(expr)


@pytest.mark.parametrize("value", [2.0, -0.0, 1e-320])
@pytest.mark.parametrize("wrap", [1, 2])
def test_minus_a_number_reads_back(value: float, wrap: int) -> None:
    """`-(2)` is the function minus applied to 2; the number -2 is written `-2`."""
    expr: Expr = Const(value)
    for _ in range(wrap):
        expr = Apply(neg, (expr,))
    assert parse_expr(show_expr(expr)) == expr


@given(expressions())
def test_renaming_back_is_no_renaming(expr: Expr) -> None:
    there = {name: f"new_{i}" for i, name in enumerate(refs(expr))}
    back = {new: old for old, new in there.items()}
    assert rename(rename(expr, there), back) == expr
    assert sorted(refs(rename(expr, there))) == sorted(there.values())


@given(expressions())
def test_subtrees_come_after_their_parts(expr: Expr) -> None:
    seen: set[Expr] = set()
    node = None
    for node in subtrees(expr):
        assert node not in seen
        assert set(getattr(node, "args", ())) <= seen
        seen.add(node)
    assert node == expr


# Index maps against loops. Blocks have batch axes in front and perhaps a width axis behind; a map acts
# on the index axes between them, the same for every batch member and coordinate.

Array = np.ndarray
SIZES = st.integers(1, 4)
PADDINGS = st.sampled_from(["same", "valid", "circular"])


@st.composite
def blocks(draw: Callable, index: tuple[int, ...]) -> Block:
    """A block of this index shape, with or without batch axes and a width axis."""
    batch = draw(st.sampled_from([(), (2,)]))
    vector = draw(st.booleans())
    shape = (*batch, *index, *((3,) if vector else ()))
    array = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape)
    return Block(array, len(index), vector)


def members(block: Block) -> Array:
    """The array with its index axes in front."""
    first = block.array.ndim - block.rank - block.vector
    return np.moveaxis(block.array, range(first), range(block.rank, block.rank + first))


def assert_equals(found: Block, wanted: Array, rank: int, like: Block) -> None:
    assert found.rank == rank
    assert found.vector == like.vector
    np.testing.assert_allclose(members(found), wanted, rtol=1e-12, atol=1e-12)


def places(size: int, kernel: int, stride: int, dilation: int, padding: str) -> list[list[int | None]]:
    """For every output the input positions of its window, None for those outside.

    `valid`: all windows that fit. `same`: an output for each stride, zeros around, as equal on both
    sides as possible with the odd one at the end. `circular`: an output for each stride, centred.
    """
    reach = dilation * (kernel - 1) + 1
    if padding == "valid":
        starts = [s for s in range(0, size, stride) if s + reach <= size]
    else:
        count = ceil(size / stride)
        missing = max((count - 1) * stride + reach - size, 0)
        left = missing // 2 if padding == "same" else (reach - 1) // 2
        starts = [o * stride - left for o in range(count)]
    out: list[list[int | None]] = []
    for start in starts:
        spots = [start + j * dilation for j in range(kernel)]
        if padding == "circular":
            out.append([s % size for s in spots])
        else:
            out.append([s if 0 <= s < size else None for s in spots])
    return out


def grid(tables: list[list[list[int | None]]]) -> dict[tuple, list[tuple]]:
    """For every output position in several dimensions: (kernel position, input position or None)."""
    found: dict[tuple, list[tuple]] = {}
    for out in product(*(range(len(t)) for t in tables)):
        pairs = []
        for j in product(*(range(len(t[0])) for t in tables)):
            spots = tuple(t[o][k] for t, o, k in zip(tables, out, j, strict=True))
            pairs.append((j, None if None in spots else spots))
        found[out] = pairs
    return found


def refused(op: Op, *indices: tuple[int, ...], **options: object) -> bool:
    try:
        op.shape(*indices, **options)
    except ValueError:
        return True
    return False


@some
@given(st.data(), st.integers(1, 2), PADDINGS)
def test_window_is_a_sum_over_positions(data: st.DataObject, dims: int, padding: str) -> None:
    per_axis = st.lists(st.integers(1, 3), min_size=dims, max_size=dims).map(tuple)
    kernel, stride, dilation = (data.draw(per_axis) for _ in range(3))
    space = data.draw(st.lists(SIZES, min_size=dims, max_size=dims).map(tuple))
    rest = data.draw(st.sampled_from([(), (2,)]))
    x = data.draw(blocks((*kernel, *space, *rest)))
    tables = [places(*p, padding) for p in zip(space, kernel, stride, dilation, strict=True)]
    options = {"dims": dims, "stride": stride, "dilation": dilation, "padding": padding}
    if not all(tables):
        assert refused(window, x.index, **options)
        return
    shape = tuple(map(len, tables))
    array = members(x)
    wanted = np.zeros(shape + array.shape[2 * dims :])
    for out, pairs in grid(tables).items():
        for j, spot in pairs:
            if spot is not None:
                wanted[out] += array[j + spot]
    assert_equals(window.run(x, **options), wanted, x.rank - dims, x)
    assert window.shape(x.index, **options) == shape + rest


@some
@given(st.data(), st.integers(1, 2), PADDINGS)
def test_pools_are_maxima_and_means_over_positions(data: st.DataObject, dims: int, padding: str) -> None:
    per_axis = st.lists(st.integers(1, 3), min_size=dims, max_size=dims).map(tuple)
    size, stride = data.draw(per_axis), data.draw(per_axis)
    space = data.draw(st.lists(SIZES, min_size=dims, max_size=dims).map(tuple))
    x = data.draw(blocks((*space, *data.draw(st.sampled_from([(), (2,)])))))
    tables = [places(n, k, s, 1, padding) for n, k, s in zip(space, size, stride, strict=True)]
    options = {"size": size, "stride": stride, "padding": padding}
    if not all(tables):
        assert refused(avgpool, x.index, **options)
        assert refused(patches, x.index, **options)
        return
    array = members(x)
    shape = tuple(map(len, tables)) + array.shape[dims:]
    means, maxima = np.zeros(shape), np.zeros(shape)
    for out, pairs in grid(tables).items():
        inside = np.stack([array[spot] for _, spot in pairs if spot is not None])
        means[out], maxima[out] = inside.mean(axis=0), inside.max(axis=0)
    assert_equals(avgpool.run(x, **options), means, x.rank, x)
    assert_equals(MIXINGS["max"].run(patches.run(x, **options), axis=0), maxima, x.rank, x)


@some
@given(st.data())
def test_contract_is_a_sum_of_products(data: st.DataObject) -> None:
    rows, cols = data.draw(SIZES), data.draw(SIZES)
    lead = data.draw(st.sampled_from([(), (2,), (1,)]))
    own = data.draw(st.sampled_from([(), (2,), (3, 2)]))
    a, x = data.draw(blocks((*lead, rows, cols))), data.draw(blocks((*own, cols)))
    if a.vector:
        a = Block(a.array[..., 0], a.rank)
    batched = [b for b in (a, x) if b.array.ndim > b.rank + b.vector]
    size = batched[0].array.shape[0] if batched else 1
    wanted = [contract_loops(one(a, i), one(x, i), x.vector) for i in range(size)]
    found = contract.run(a, x)
    assert found.rank == max(a.rank - 1, x.rank)
    together = np.stack(wanted) if batched else wanted[0]
    np.testing.assert_allclose(found.array, together, rtol=1e-12, atol=1e-12)


def one(block: Block, i: int) -> Array:
    """Member i of a batch; a value that all share is the same for each."""
    return block.array[i] if block.array.ndim > block.rank + block.vector else block.array


def contract_loops(a: Array, x: Array, vector: bool) -> Array:
    """out[..., i] = sum_j a[..., i, j] x[..., j], where the axes before broadcast."""
    x = x if vector else x[..., None]
    lead = np.broadcast_shapes(a.shape[:-2], x.shape[:-2])
    a = np.broadcast_to(a, lead + a.shape[-2:])
    x = np.broadcast_to(x, lead + x.shape[-2:])
    out = np.zeros((*lead, a.shape[-2], x.shape[-1]))
    for p in np.ndindex(lead):
        for i, j in product(range(a.shape[-2]), range(a.shape[-1])):
            out[p][i] += a[p][i, j] * x[p][j]
    return out if vector else out[..., 0]


@many
@given(st.data())
def test_indexing_is_that_of_numpy(data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(1, 3), max_size=3).map(tuple))
    x = data.draw(blocks(index))
    ends = st.none() | st.integers(-4, 4)
    slices = st.builds(Slice, ends, ends, st.sampled_from([None, 1, 2, -1, -2]))
    items = tuple(data.draw(st.one_of(st.integers(-n, n - 1), slices)) for n in index[: data.draw(SIZES)])
    for _ in range(data.draw(st.integers(0, 2))):
        where = data.draw(st.integers(0, len(items)))
        items = (*items[:where], None, *items[where:])
    key = tuple(i.builtin if isinstance(i, Slice) else i for i in items)
    example = np.zeros(index)[key]
    if 0 in example.shape:
        assert refused(at, index, index=items)
        return
    assert at.shape(index, index=items) == example.shape
    assert_equals(at.run(x, index=items), members(x)[key], example.ndim, x)


@given(st.integers(1, 3), st.integers(1, 3))
def test_an_index_beyond_the_axis_is_refused(size: int, beyond: int) -> None:
    assert refused(at, (size,), index=(size + beyond - 1,))
    assert refused(at, (size,), index=(-size - beyond,))
    assert refused(at, (size,), index=(0, 0))
