"""Products of a parameter and a value (embedding, hidden layer, readout), and of two values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from netsor.build.array_functions import contract
from netsor.build.graph_nodes import Node
from netsor.build.trace import current_trace
from netsor.lang import functions as fns
from netsor.models.axes import Axes, AxisFactor, common_sizes, finite, length, refine, shape_of
from netsor.models.operations.elementwise import (
    align,
    as_node,
    as_vector,
    elementwise,
    merge,
    mul,
    refine_axis,
    spread,
)
from netsor.models.operations.nodes import reshape_node, transpose_node
from netsor.models.operations.parameters import law_scale, matrix, parameter_value, zeros
from netsor.models.operations.reductions import total
from netsor.models.operations.shapes import (
    reshape,
    reshape_value,
    take,
    transpose_value,
    with_index,
    without_ones,
)
from netsor.models.reader import Reader
from netsor.models.scalars import ONE, WidthScale, both, product
from netsor.models.values import Constant, OutputValue, Parameter, Value, fixed, put


@dataclass(frozen=True)
class _Meeting:
    """A value and a parameter whose shared axes have equal factors.

    The axes of both are ordered (batch, contracted, free).
    """

    value: Value
    parameter: Parameter
    batch: int
    contracted: int
    original: tuple[int, ...]  # the contracted axes in the parameter's own order

    def factors(self, first: int, last: int | None = None) -> list[AxisFactor]:
        return [f for a in self.parameter.axes[first:last] for f in a]

    @property
    def free_value(self) -> Axes:
        return self.value.axes[self.batch + self.contracted :]

    @property
    def free_parameter(self) -> Axes:
        return self.parameter.axes[self.batch + self.contracted :]


def multiply(
    reader: Reader,
    v: Value,
    p: Parameter,
    contracted: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    positions: int = 1,
) -> Value | OutputValue:
    """Contract axes of a value with axes of a parameter; the result has axes (batch, free of v, free of p).

    contracted, batch  axes of v, and the corresponding axes of p
    positions          number of kernel positions, which the fan-in counts besides the contracted axes
    """
    vc, pc = contracted
    free = tuple(v.axes[i] for i in _rest(v, [*batch[0], *vc]))
    free_axes = tuple(p.axes[i] for i in _rest(p, [*batch[1], *pc]))
    along = tuple(v.axes[i] for i in batch[0])
    if v.is_zero or (p.is_constant and p.law.mean == 0):
        return zeros(along + free + free_axes)
    if p.is_constant:
        summed = total(
            reader, transpose_value(v, [*batch[0], *_rest(v, [*batch[0], *vc]), *vc]), _last(v, vc)
        )
        out = mul(reader, summed, Value((), float(p.law.mean), p.scale))
        assert isinstance(out, Value)
        return replace(out, axes=out.axes + fixed(free_axes))
    if p.law.mean:
        raise reader.refuse(
            f"the entries of the matrix `{p.name}` have mean {p.law.mean:g}",
            "Rule Input: the entries of an A-var have mean 0. Centre the initialiser.",
        )
    if v.is_data:
        return _embed(reader, v, p, contracted, positions)
    return _matmul(reader, _meet(reader, v, p, contracted, batch), positions)


def _rest(x: Value | Parameter, used: Sequence[int]) -> list[int]:
    return [i for i in range(len(x.axes)) if i not in used]


def _last(v: Value, axes: Sequence[int]) -> list[int]:
    return list(range(len(v.axes) - len(axes), len(v.axes)))


def _meet(
    reader: Reader,
    v: Value,
    p: Parameter,
    contracted: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> _Meeting:
    """Move the shared axes of a value and a parameter to the front, and refine them to equal factors."""
    vs, ps = [*batch[0], *contracted[0]], [*batch[1], *contracted[1]]
    for i, j in zip(vs, ps, strict=True):
        sizes = common_sizes(v.axes[i], p.axes[j])
        v = refine_axis(v, i, sizes)
        p = replace(p, axes=put(p.axes, j, refine(p.axes[j], sizes)))
        for f, g in zip(v.axes[i], p.axes[j], strict=True):
            merge(f, g)
    if not v.is_vector and any(f.width for i in contracted[0] for f in v.axes[i]):
        v = as_vector(reader, reader.fold(v))
    for i in vs:
        if any(not f.real for f in v.axes[i]):
            v = _with_members(v, i)
    order = [*vs, *_rest(v, vs)]
    porder = [*ps, *_rest(p, ps)]
    moved = replace(p, axes=tuple(p.axes[i] for i in porder), steps=(*p.steps, ("transpose", tuple(porder))))
    return _Meeting(transpose_value(v, order), moved, len(batch[0]), len(contracted[0]), tuple(contracted[1]))


def _with_members(v: Value, i: int) -> Value:
    """Create index axes for the finite factors of an axis that also contains a width."""
    factors = v.axes[i]
    apart = replace(v, axes=(*v.axes[:i], *((f,) for f in factors), *v.axes[i + 1 :]))
    for k, f in enumerate(factors):
        if f.width is None and not f.real:
            apart = with_index(apart, i + k)
    joined = tuple(f for a in apart.axes[i : i + len(factors)] for f in a)
    return replace(apart, axes=(*v.axes[:i], joined, *v.axes[i + 1 :]))


def _matmul(reader: Reader, m: _Meeting, positions: int) -> Value | OutputValue:
    """Apply a parameter as a hidden layer or as a readout."""
    p, shared = m.parameter, m.batch + m.contracted
    inner = m.factors(m.batch, shared)
    columns = [f for f in inner if f.width]
    rows = [f for a in m.free_parameter for f in a if f.width]
    if any(f.width for f in m.factors(0, m.batch)):
        raise reader.refuse(
            f"`{p.name}` holds a matrix for each coordinate of a width",
            "A matrix for each member of a finite axis (a group) has a limit, not one for each coordinate.",
        )
    if not columns:
        raise reader.refuse(
            f"the random matrix `{p.name}` of shape {tuple(s[0] for s in shape_of(p.axes))} mixes a "
            "finite axis",
            "A matrix of finite size stays random in the limit, and the network is then no Gaussian "
            "process. Let the axis grow with the width, or mix with fixed numbers.",
        )
    if len(columns) > 1 or len(rows) > 1:
        raise reader.refuse(
            f"`{p.name}` has more than two widths", "A matrix has one width of rows and one of columns."
        )
    cols = columns[0].size
    var, scale = _law(p, cols, math.prod(f.size[0] for f in inner if not f.width) * positions)
    lead = tuple(f.size[0] for f in m.factors(0, shared) if not f.width)
    if not rows:
        return _readout(reader, m, var, m.value.scale * scale, lead)
    sizes = tuple(f.size[0] for a in m.free_parameter for f in a if f.is_index)
    W = matrix(reader, p, var, lead + sizes, "hidden", tuple(range(m.batch, shared)))
    node = W.times(m.value.node, aligned=len(lead))
    kept = sum(f.is_index for f in m.factors(0, m.batch))
    if len(lead) > kept:
        node = node.sum(tuple(range(kept, len(lead))))
    k, rank = kept + len(sizes), len(node.index)
    order = [*range(kept), *range(k, rank), *range(kept, k)]
    node = transpose_node(node, order)
    return Value(m.value.axes[: m.batch] + m.free_value + m.free_parameter, node, m.value.scale * scale)


def _law(p: Parameter, cols: tuple[int, int], summed: int) -> tuple[float, WidthScale]:
    """Return var of the Matrix, whose entries have variance var / columns, and the remaining factor."""
    entry = p.law.var[0] / (cols[0] * summed) if p.law.fan_in else p.law.var[0]
    roots = WidthScale(math.sqrt(cols[0]), math.sqrt(cols[1]))
    ratio = WidthScale(1.0, p.scale.two / p.scale.one)
    if p.law.at_width or p.law.fan_in:
        roots = ONE
    elif not ratio.is_fixed:  # an explicit factor 1/sqrt(n), and entries of variance 1
        roots = roots * ratio
        ratio = ONE
    return entry * p.scale.one**2 * cols[0], law_scale(p, roots) * ratio


def _readout(
    reader: Reader, m: _Meeting, var: float, scale: WidthScale, lead: tuple[int, ...]
) -> OutputValue:
    if m.batch:
        raise reader.refuse(
            f"the readout `{m.parameter.name}` has a matrix for each member of an axis",
            "Use one readout for all.",
        )
    rows = product(shape_of(m.free_parameter))[0]
    v = matrix(reader, m.parameter, var, lead, "readout", tuple(range(m.contracted)), rows)
    axes = tuple(rows_axis(a) for a in m.free_parameter)
    return OutputValue((Value(m.free_value + axes, m.value.node, scale, v, len(lead)),))


def rows_axis(axis: tuple[AxisFactor, ...]) -> tuple[AxisFactor, ...]:
    """Mark an axis as the rows of a readout."""
    size = length(axis)
    return () if size == (1, 1) else (AxisFactor(size, rows=True),)


def _embed(
    reader: Reader, v: Value, p: Parameter, contracted: tuple[Sequence[int], Sequence[int]], positions: int
) -> Value:
    """Multiply a matrix with data."""
    vc, pc = contracted
    free_axes = tuple(p.axes[i] for i in _rest(p, pc))
    if not any(f.width for a in free_axes for f in a):
        raise reader.refuse(
            f"`{p.name}` maps data to a finite dimension",
            "No dimension of this layer grew with the width. Is it built with a fixed size? Let make(n) "
            "use n.",
        )
    for i in range(len(v.axes)):
        if v.axes[i]:
            v = with_index(v, i)
    order = [*_rest(v, vc), *vc]
    moved = transpose_value(v, order)
    kept_axes = moved.axes[: len(order) - len(vc)]
    m = math.prod(v.shape[i][0] for i in vc)
    entry = p.law.var[0] / (m * positions) if p.law.fan_in else p.law.var[0]
    index = tuple(f.size[0] for a in free_axes for f in a if f.is_index)
    porder = [*pc, *_rest(p, pc)]
    q = replace(p, axes=tuple(p.axes[i] for i in porder), steps=(*p.steps, ("transpose", tuple(porder))))
    U = matrix(reader, q, entry * p.scale.one**2 * m, index, "embedding", tuple(range(len(pc))))
    assert isinstance(moved.node, Node)
    lead = tuple(f.size[0] for a in kept_axes for f in a)
    flat = (*lead, m)
    node = U @ reshape_node(moved.node, flat)
    k, rank = len(index), len(node.index)
    node = transpose_node(node, [*range(k, rank), *range(k)])
    scale = law_scale(p, WidthScale(1.0, p.scale.two / p.scale.one))
    return Value(kept_axes + free_axes, node, v.scale * scale)


def lookup(reader: Reader, p: Parameter, ids: Value | Constant) -> Value:
    """Look up rows of an embedding table: the table times one-hot data max(0, 1 - |id - row|)."""
    rows = p.shape[0][0]
    if p.is_constant:
        shape = ids.shape
        return parameter_value(reader, replace(p, axes=(*(finite(s[0]) for s in shape), *p.axes[1:])))
    if len(p.widths) != 1 or (p.axes[0][:1] and p.axes[0][0].width):
        raise reader.refuse(
            f"the table `{p.name}` of shape {tuple(s[0] for s in p.shape)} has no fixed number of rows "
            "and a width",
            "A random table without a width stays random in the limit. Let its second dimension be the "
            f'width, or condition on the numbers that the model itself has: laws={{"{p.name}": "values"}}.',
        )
    axes, node = _ids(reader, ids, rows)
    hot = fns.relu(1.0 - fns.abs_(node[..., None] - np.arange(rows, dtype=float)))
    hot = hot / hot.sum(len(hot.index) - 1)[..., None]  # 0/0 for a token that is in no row
    if p.law.zero_rows:
        alive = np.ones(rows)
        alive[list(p.law.zero_rows)] = 0.0
        hot = hot * alive
    rows_read = multiply(reader, Value((*axes, (AxisFactor(both(rows)),)), hot), p, ([len(axes)], [0]))
    assert isinstance(rows_read, Value)
    return rows_read


def _ids(reader: Reader, ids: Value | Constant, rows: int) -> tuple[Axes, Node]:
    """Return the axes of an array of indices, and its node."""
    trace = current_trace("an embedding")
    if isinstance(ids, Constant):
        axes = tuple(finite(s) for s in ids.one.shape)
        values = np.asarray(ids.one, float)
        node = trace.constant(values.reshape([s for s in values.shape if s != 1]))
    else:
        v = ids
        for i in range(len(v.axes)):
            v = with_index(v, i) if v.axes[i] else v
        axes, node = v.axes, as_node(v).node
        assert isinstance(node, Node)
        values = trace.values_of(node)  # a check of values must not make the program depend on them
    if (values != np.rint(values)).any() or values.min() < 0 or values.max() >= rows:
        bad = values[(values != np.rint(values)) | (values < 0) | (values >= rows)].flat[0]
        raise reader.refuse(
            f"the token {bad:g} is looked up in a table of {rows} rows",
            f"Tokens are integers from 0 to {rows - 1}.",
        )
    return axes, node


# Products of two values


def einsum(
    reader: Reader,
    a: Value,
    b: Value,
    contracted: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Value:
    """Contract two values; the result has axes (batch, free of a, free of b)."""
    (ca, cb), (ba, bb) = contracted, batch
    fa, fb = _rest(a, [*ca, *ba]), _rest(b, [*cb, *bb])
    if a.is_zero or b.is_zero:
        return zeros(tuple(a.axes[i] for i in (*ba, *fa)) + tuple(b.axes[i] for i in fb))
    scale = a.scale * b.scale
    x = transpose_value(a.bare, [*ba, *fa, *ca])
    y = transpose_value(b.bare, [*bb, *fb, *cb])
    nb, na, nc = len(ba), len(fa), len(ca)
    summed_width = any(f.is_vector for z in (x, y) for axis in z.axes[len(z.axes) - nc :] for f in axis)
    if nc and not summed_width and not (a.is_vector and b.is_vector):
        out = _contraction(reader, y, x, nb, nc) if a.is_vector else _contraction(reader, x, y, nb, nc)
        if a.is_vector:
            k = len(fb)
            out = transpose_value(out, [*range(nb), *range(nb + k, nb + k + na), *range(nb, nb + k)])
        return replace(out, scale=scale)
    x = replace(x, axes=(*x.axes[: nb + na], *((),) * len(fb), *x.axes[nb + na :]))
    y = replace(y, axes=(*y.axes[:nb], *((),) * na, *y.axes[nb:]))
    out = elementwise(reader, lambda u, v: u * v, x, y)
    out = total(reader, out, list(range(nb + na + len(fb), len(out.axes))))
    return replace(out, scale=out.scale * scale)


def _contraction(reader: Reader, a: Value, x: Value, nb: int, nc: int) -> Value:
    """sum_j a[batch, i, j] x[batch, k, j] for numbers or C-vars a: `ns.contract`. Axes (batch, i, k)."""
    free_a, free_x = a.axes[nb : len(a.axes) - nc], x.axes[nb : len(x.axes) - nc]
    shared = product(shape_of(a.axes[len(a.axes) - nc :]))
    if product(shape_of(x.axes[len(x.axes) - nc :])) != shared:
        raise ValueError("the summed axes have different lengths")
    for v_axes in (a.axes, x.axes):
        assert len(v_axes) >= nb + nc
    a = reshape_value(as_node(a), [*shape_of(a.axes[:nb]), product(shape_of(free_a)), shared])
    a = with_index(with_index(a, nb + 1), nb)
    x = as_node(x)
    x = with_index(reshape_value(x, [*shape_of(x.axes[: len(x.axes) - nc]), shared]), len(x.axes) - nc)
    k = len(free_x)
    head_a = replace(a, axes=(*a.axes[:nb], *((),) * k), node=0.0)
    head_x = replace(x, axes=x.axes[: nb + k], node=0.0)
    (left, right), axes = align(reader, [head_a, head_x])
    wide_a = replace(left, axes=(*left.axes, a.axes[nb], a.axes[nb + 1]), node=a.node)
    wide_x = replace(right, axes=(*right.axes, x.axes[-1]), node=x.node)
    wide_a, wide_x = _same_index(wide_a), _same_index(wide_x)
    node = contract(spread(wide_a, (*axes, a.axes[nb], a.axes[nb + 1])), spread(wide_x, (*axes, x.axes[-1])))
    rows = a.axes[nb]
    out = without_ones(Value((*axes, rows), node))
    out = transpose_value(out, [*range(nb), nb + k, *range(nb, nb + k)])
    return reshape_value(out, [*shape_of(out.axes[:nb]), *shape_of(free_a), *shape_of(out.axes[nb + 1 :])])


def _same_index(v: Value) -> Value:
    """Reshape a node to the factors of its axes, which may be finer than before."""
    assert isinstance(v.node, Node)
    return replace(v, node=reshape_node(v.node, v.index()))


def gather(
    reader: Reader, x: Value | Parameter | OutputValue, axis: int, ids: Constant
) -> Value | OutputValue:
    """Take fixed members of a finite axis, in the shape of the indices."""
    if not np.array_equal(ids.one, ids.two):
        raise ValueError("the positions of members that are taken depend on the width")
    flat = ids.one.reshape(-1)
    n = x.shape[axis][0]
    out = take(reader, x, axis, [int(i) % n for i in flat])
    shape = out.shape
    return reshape(reader, out, [*shape[:axis], *(both(s) for s in ids.one.shape), *shape[axis + 1 :]])
