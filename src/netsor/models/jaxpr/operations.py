"""Rules of JAX primitives."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from netsor.lang.functions import maximum, minimum
from netsor.models.jaxpr.graph import rule
from netsor.models.operations import elementwise as each
from netsor.models.operations import reductions, shapes
from netsor.models.operations.products import einsum, gather, lookup, multiply
from netsor.models.operations.windows import (
    WindowShape,
    convolve,
    linear_on_space,
    max_pool,
    mean_pool,
    transposed_convolution,
)
from netsor.models.reader import Reader
from netsor.models.scalars import Size
from netsor.models.values import Constant, OutputValue, Parameter, Value

Params = dict[str, Any]
Shapes = list[list[Size]]


# Functions and arithmetic

for _primitive, _mine in {
    "abs": "abs",
    "cos": "cos",
    "erf": "erf",
    "erfc": "erfc",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "logistic": "sigmoid",
    "neg": "neg",
    "rsqrt": "rsqrt",
    "sign": "sign",
    "sin": "sin",
    "sqrt": "sqrt",
    "square": "square",
    "tanh": "tanh",
}.items():
    rule(_primitive)(lambda reader, ins, p, q, s, mine=_mine: each.unary(reader, mine, ins[0]))


@rule(
    "convert_element_type",
    "stop_gradient",
    "copy",
    "copy_p",
    "reduce_precision",
    "optimization_barrier",
    "pvary",
)
def _same(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return ins if len(s) > 1 else ins[0]


@rule("sharding_constraint", "name", "mesh_cast")
def _named(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return ins[0]


@rule("add", "add_any")
def _add(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.add(reader, *ins)


@rule("sub")
def _sub(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.add(reader, ins[0], ins[1], -1)


@rule("mul")
def _mul(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.mul(reader, *ins)


@rule("div")
def _div(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.div(reader, *ins)


@rule("integer_pow")
def _integer_pow(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.div(reader, 1.0, ins[0]) if p["y"] == -1 else each.power(reader, ins[0], p["y"])


@rule("pow")
def _pow(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    if not isinstance(ins[1], Constant) or ins[1].number is None:
        raise reader.refuse("a power with an exponent that is computed", "Use a number as exponent.")
    return each.power(reader, ins[0], ins[1].number)


@rule("max")
def _max(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    a, b = ins if not isinstance(ins[0], Constant) else ins[::-1]
    if isinstance(b, Constant) and b.number == 0:
        return each.unary(reader, "relu", a)
    if isinstance(b, Constant) and (b.one <= -1e30).all():
        return a
    return each.elementwise(reader, maximum, each.as_value(reader, a), each.as_value(reader, b))


@rule("min")
def _min(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.elementwise(reader, minimum, *(each.as_value(reader, x) for x in ins))


@rule("clamp")
def _clamp(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    low, x, high = ins
    return each.unary(reader, "hard_tanh", x, low=float(low.one), high=float(high.one))


@rule("gt", "ge")
def _greater(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.unary(reader, "step", each.add(reader, ins[0], ins[1], -1))


@rule("lt", "le")
def _less(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return each.unary(reader, "step", each.add(reader, ins[1], ins[0], -1))


@rule(
    "eq",
    "ne",
    "and",
    "or",
    "not",
    "rem",
    "floor",
    "round",
    "argmax",
    "argmin",
    "sort",
    "cumsum",
    "top_k",
    "cond",
)
def _data_dependent(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    raise reader.refuse(
        "an operation whose result depends on comparisons or on the order of values",
        "A program is straight-line, and its functions act coordinate by coordinate. Compute this from "
        "the data before the network, and give it as a part of the input: a tuple.",
    )


@rule("random_bits", "random_seed", "random_wrap", "random_unwrap", "random_fold_in", "threefry2x32")
def _random(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    raise reader.refuse(
        "the forward pass draws random numbers",
        "They are drawn anew for every input, and are not part of the network's law. Use evaluation mode.",
    )


@rule("select_n")
def _select(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    which, *cases = ins
    if isinstance(which, Constant):
        if which.number is not None:
            return cases[int(which.number)]
        which = Constant(which.one.astype(float), which.two.astype(float))
    return each.select(reader, each.as_value(reader, which), cases[1], cases[0])


# Shapes


@rule("broadcast_in_dim")
def _broadcast(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x, dims = ins[0], list(p["broadcast_dimensions"])
    kept = [s[0][d] for d in dims]
    if isinstance(x, Parameter) and x.shape == kept and dims == sorted(dims):
        sizes = [(1, 1) if d not in dims else s[0][d] for d in range(len(s[0]))]
        if all(s[0][d] == (1, 1) for d in range(len(s[0])) if d not in dims) or _is_bias(x):
            return shapes.reshape(reader, x, sizes)
    return shapes.broadcast(reader, x, s[0], dims)


def _is_bias(p: Parameter) -> bool:
    """Whether an operand is a random parameter without a width, which can only be the bias of an output."""
    return not p.is_constant and not p.widths


@rule("reshape", "squeeze", "expand_dims")
def _reshape(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return shapes.reshape(reader, ins[0], s[0])


@rule("transpose")
def _transpose(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return shapes.transpose(reader, ins[0], p["permutation"])


@rule("slice")
def _slice(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x = ins[0]
    steps = p["strides"] or (1,) * len(p["start_indices"])
    for k, step in enumerate(steps):
        start = (p["start_indices"][k], q["start_indices"][k])
        x = shapes.slice_axis(reader, x, k, start, (p["limit_indices"][k], q["limit_indices"][k]), step)
    return x


@rule("dynamic_slice")
def _dynamic_slice(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x, *starts = ins
    for k, at in enumerate(starts):
        if not isinstance(at, Constant):
            raise _moving(reader)
        sizes = (p["slice_sizes"][k], q["slice_sizes"][k])
        limit = x.shape[k]
        start = tuple(
            min(max(int(a), 0), n - m) for a, n, m in zip((at.one, at.two), limit, sizes, strict=True)
        )
        x = shapes.slice_axis(reader, x, k, (start[0], start[1]), (start[0] + sizes[0], start[1] + sizes[1]))
    return x


def _moving(reader: Reader) -> Exception:
    return reader.refuse(
        "members are taken at positions that depend on the data",
        "Positions must be fixed numbers. Tokens are looked up in a table of parameters: table[tokens].",
    )


@rule("split")
def _split(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    out, start = [], (0, 0)
    for a, b in zip(p["sizes"], q["sizes"], strict=True):
        stop = (start[0] + a, start[1] + b)
        out.append(shapes.slice_axis(reader, ins[0], p["axis"], start, stop))
        start = stop
    return out


@rule("concatenate")
def _concatenate(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return shapes.concatenate(reader, ins, p["dimension"])


@rule("pad")
def _pad(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x = each.as_value(reader, ins[0])
    if not isinstance(ins[1], Constant) or ins[1].number != 0:
        raise reader.refuse("padding with a number other than 0", "Pad with zeros.")
    for k, (before, after, between) in enumerate(p["padding_config"]):
        if between:
            raise reader.refuse("padding between members", "Pad at the ends.")
        x = shapes.pad(x, k, before, after)
    return x


@rule("stack")
def _stack(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    k = p["axis"]
    parts = [each.as_value(reader, x) for x in ins]
    parts = [shapes.reshape(reader, x, [*x.shape[:k], (1, 1), *x.shape[k:]]) for x in parts]
    return shapes.concatenate(reader, parts, k)


@rule("unstack")
def _unstack(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    k = p["axis"]
    parts = [shapes.slice_axis(reader, ins[0], k, (i, i), (i + 1, i + 1)) for i in range(len(s))]
    return [shapes.reshape(reader, part, shape) for part, shape in zip(parts, s, strict=True)]


@rule("tile")
def _tile(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x = each.as_value(reader, ins[0])
    for k, (times, (one, two)) in enumerate(zip(p["reps"], x.shape, strict=True)):
        if times > 1 and one != two:
            raise reader.refuse("a width is repeated", "Let a layer change the width.")
        x = shapes.take(reader, x, k, list(range(one)) * times) if times > 1 else x
    return x


@rule("rev")
def _rev(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x = each.as_value(reader, ins[0])
    for k in p["dimensions"]:
        one, two = x.shape[k]
        if one != two:
            raise reader.refuse("a width is reversed", "The order of a width has no meaning in the limit.")
        x = shapes.take(reader, x, k, list(range(one))[::-1])
    return x


# Reductions


@rule("reduce_sum")
def _reduce_sum(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return reductions.total(reader, ins[0], p["axes"])


@rule("reduce_max")
def _reduce_max(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return reductions.extreme(reader, ins[0], p["axes"])


@rule("reduce_min")
def _reduce_min(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    return reductions.extreme(reader, ins[0], p["axes"], "min")


# Products


@rule("dot_general")
def _dot_general(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    (ca, cb), (ba, bb) = p["dimension_numbers"]
    a, b = ins
    if isinstance(b, Parameter) and not isinstance(a, Parameter):
        return multiply(reader, _input(reader, a), b, (ca, cb), (ba, bb))
    if isinstance(a, Parameter) and not isinstance(b, Parameter):
        out = multiply(reader, _input(reader, b), a, (cb, ca), (bb, ba))
        nb, nfb, rank = len(ba), len(b.shape) - len(cb) - len(bb), len(out.axes)
        return shapes.transpose(reader, out, [*range(nb), *range(nb + nfb, rank), *range(nb, nb + nfb)])
    return einsum(reader, _input(reader, a), _input(reader, b), (ca, cb), (ba, bb))


def _input(reader: Reader, x: Any) -> Value:
    if isinstance(x, OutputValue):
        raise reader.refuse(
            "a layer acts on an output, the result of a layer from a width to a finite number of rows",
            "Rule Output: such a layer ends the network, since a finite layer (a bottleneck) stays random "
            "in the limit. Let its size grow with the width.",
        )
    return each.as_value(reader, x)


@rule("conv_general_dilated")
def _conv(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x, w = ins
    if not isinstance(w, Parameter):
        raise reader.refuse("a convolution with a computed kernel", "A kernel is a parameter of the model.")
    spec = p["dimension_numbers"]
    lhs, rhs, out = spec.lhs_spec, spec.rhs_spec, spec.out_spec
    kernel = shapes.transpose(reader, w, rhs)
    size = tuple(w.shape[i][0] for i in rhs[2:])
    strides, dilation, up = p["window_strides"], p["rhs_dilation"], p["lhs_dilation"]
    space = list(lhs[2:])
    if any(k != 1 for k in up):
        convolved = _transposed(reader, x, kernel, lhs, size, p, [s[0][i][0] for i in out[2:]])
    else:
        window = WindowShape(size, tuple(strides), tuple((a, b) for a, b in p["padding"]), tuple(dilation))
        groups = (p["feature_group_count"], q["feature_group_count"])
        convolved = convolve(reader, x, kernel, lhs[1], space, window, groups)
    order = [0] * len(out)
    for i, j in zip(lhs, out, strict=True):
        order[j] = i
    return shapes.transpose(reader, convolved, order)


def _transposed(
    reader: Reader,
    x: Any,
    kernel: Parameter,
    lhs: Sequence[int],
    size: tuple[int, ...],
    p: Params,
    sizes: list[int],
) -> Value:
    """Convolve an input with zeros between its members: the transpose of a strided convolution.

    If the input is spread by a factor `up`, kernel position j adds x[i] to output i * up - j + padding. That
    is a transposed convolution with the kernel reversed.
    """
    if any(k != 1 for k in (*p["window_strides"], *p["rhs_dilation"])) or p["feature_group_count"] != 1:
        raise reader.refuse(
            "a transposed convolution with strides, dilation or groups of its own", "Use one of them."
        )
    dims = len(size)
    pads = tuple(
        (k - 1 - before, k - 1 - after) for k, (before, after) in zip(size, p["padding"], strict=True)
    )
    window = WindowShape(size, tuple(p["lhs_dilation"]), pads, (1,) * dims)
    flipped = shapes.transpose(reader, kernel, [1, 0, *range(2, 2 + dims)])
    return transposed_convolution(reader, x, flipped, lhs[1], list(lhs[2:]), window, sizes, reverse=True)


# Windows


def _window(p: Params) -> tuple[list[int], WindowShape]:
    sizes, strides = p["window_dimensions"], p["window_strides"]
    dims = [k for k, n in enumerate(sizes) if n > 1 or strides[k] > 1]
    dilation = p.get("window_dilation") or (1,) * len(sizes)
    window = WindowShape(
        tuple(sizes[k] for k in dims),
        tuple(strides[k] for k in dims),
        tuple(tuple(p["padding"][k]) for k in dims),
        tuple(dilation[k] for k in dims),
    )
    return dims, window


@rule("reduce_window_max")
def _max_pool(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    dims, window = _window(p)
    return max_pool(reader, ins[0], dims, window)


@rule("reduce_window_sum")
def _sum_pool(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    dims, window = _window(p)
    if not any(a or b for a, b in window.pads) and set(window.dilation) == {1}:
        return each.mul(reader, mean_pool(reader, ins[0], dims, window), float(math.prod(window.size)))

    def pool(images: np.ndarray) -> np.ndarray:
        padding = ((0, 0), *window.pads)
        out = jax.lax.reduce_window(
            jnp.asarray(images),
            0.0,
            jax.lax.add,
            (1, *window.size),
            (1, *window.stride),
            padding,
            None,
            (1, *window.dilation),
        )
        return np.asarray(out, float)

    return linear_on_space(reader, ins[0], dims, pool)


@rule("reduce_window")
def _reduce_window(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    inner = [e.primitive.name for e in p["jaxpr"].eqns]
    if inner not in (["max"], ["add"]):
        raise reader.refuse(
            f"a window that is reduced by {inner}", "Maxima and sums over windows can be read."
        )
    return (_max_pool if inner == ["max"] else _sum_pool)(reader, ins[:1], p, q, s)


# Tables


@rule("gather")
def _gather(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    x, at = ins
    d = p["dimension_numbers"]
    single = len(d.start_index_map) == 1 and d.start_index_map == d.collapsed_slice_dims
    is_table = isinstance(x, Parameter) and not x.is_constant and len(x.widths) == 1
    looked_up = single and is_table and d.start_index_map == (0,)
    if not isinstance(at, Constant):
        if not looked_up:
            raise _moving(reader)
        return lookup(reader, x, shapes.reshape(reader, at, at.shape[:-1]))
    if looked_up:
        return lookup(reader, x, _positions(at))
    one, two = _ranges([n for n, _ in x.shape], at.one, p), _ranges([n for _, n in x.shape], at.two, q)
    if one and two and [r.step for r in one] == [r.step for r in two]:
        for k, (a, b) in enumerate(zip(one, two, strict=True)):
            x = shapes.slice_axis(reader, x, k, (a.start, b.start), (a.stop, b.stop), a.step)
        return shapes.reshape(reader, x, s[0])
    if not single:
        raise reader.refuse(
            "members are taken on several axes at once", "Take those of one axis after the other: x[i][:, j]."
        )
    return gather(reader, x, d.start_index_map[0], _positions(at))


def _positions(at: Constant) -> Constant:
    """The positions along one axis; a gather has another axis, with one position for each axis."""
    return Constant(at.one[..., 0], at.two[..., 0])


def _ranges(shape: Sequence[int], at: np.ndarray, p: Params) -> list[range] | None:
    """The members of each axis, if a gather takes slices of all axes; else None.

    JAX before 0.8.2 turns x[..., ::2] and x[1::2, 3] into gathers, later versions into slices. Apply the
    gather to an array of positions to see whether slices have the same result.
    """
    if not at.size:
        return None
    members = [range(n) for n in shape]
    for k, axis in enumerate(p["dimension_numbers"].start_index_map):
        first, *more = np.unique(at[..., k]).tolist()
        if more:
            members[axis] = range(first, more[-1] + 1, more[0] - first)
        else:
            members[axis] = range(first, first + p["slice_sizes"][axis])
    if any(r.start < 0 or r.stop > n for r, n in zip(members, shape, strict=True)):
        return None
    positions = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    options = {name: p[name] for name in ("dimension_numbers", "slice_sizes", "mode", "fill_value")}
    taken = np.asarray(jax.lax.gather(jnp.asarray(positions), jnp.asarray(at), **options))
    return members if np.array_equal(taken.ravel(), positions[np.ix_(*members)].ravel()) else None


@rule("iota")
def _iota(reader: Reader, ins: list[Any], p: Params, q: Params, s: Shapes) -> Any:
    one, two = (jax.lax.broadcasted_iota(k["dtype"], k["shape"], k["dimension"]) for k in (p, q))
    return Constant(np.asarray(one), np.asarray(two))
