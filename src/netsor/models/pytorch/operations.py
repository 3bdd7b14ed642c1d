"""Rules of ATen operations: functions, arithmetic, shapes, reductions."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from netsor.lang.functions import maximum, minimum
from netsor.models.axes import length, unknown
from netsor.models.operations import elementwise as each
from netsor.models.operations import reductions, shapes
from netsor.models.operations.masks import NO_WIDTH, dropped, mask
from netsor.models.operations.products import einsum as einsum_values
from netsor.models.operations.products import gather, multiply
from netsor.models.pytorch.graph import EMPTY, Pair, rule
from netsor.models.reader import Reader
from netsor.models.scalars import Size
from netsor.models.values import LARGE, Constant, OutputValue, Parameter, Traced, Value, fixed, number


def plain(x: Pair) -> Any:
    """Return a number that is equal at both widths."""
    if x[0] != x[1]:
        raise ValueError(f"{x[0]} depends on the width, where a fixed number is needed")
    return x[0]


def operand(reader: Reader, x: Any) -> Any:
    """An operand of arithmetic: a traced value, or a number at the two widths."""
    return number(float(x[0]), float(x[1])) if isinstance(x, tuple) else x


def axes_of(x: Any, dims: Any) -> list[int]:
    """Axes counted from 0; None means all."""
    rank = len(x.shape)
    if dims is None or dims == []:
        return list(range(rank))
    return [plain(d) % rank for d in (dims if isinstance(dims, list) else [dims])]


# Functions of one argument

for _name, _mine in {
    "abs": "abs",
    "cos": "cos",
    "erf": "erf",
    "erfc": "erfc",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "hardsigmoid": "hard_sigmoid",
    "hardswish": "hard_swish",
    "log": "log",
    "log1p": "log1p",
    "log_sigmoid": "log_sigmoid",
    "mish": "mish",
    "neg": "neg",
    "relu": "relu",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sign": "sign",
    "silu": "silu",
    "sin": "sin",
    "sqrt": "sqrt",
    "square": "square",
    "tanh": "tanh",
}.items():
    rule(_name)(lambda reader, self, result, mine=_mine: each.unary(reader, mine, self))


@rule("gelu")
def _gelu(reader: Reader, self: Traced, approximate: str, result: Any) -> Any:
    return each.unary(reader, "gelu_tanh" if approximate == "tanh" else "gelu", self)


@rule("leaky_relu")
def _leaky_relu(reader: Reader, self: Traced, negative_slope: Pair, result: Any) -> Any:
    return each.unary(reader, "leaky_relu", self, slope=float(plain(negative_slope)))


@rule("elu")
def _elu(reader: Reader, self: Traced, alpha: Pair, scale: Pair, input_scale: Pair, result: Any) -> Any:
    if plain(input_scale) != 1:
        raise reader.refuse("an elu with a scale of its input", "Scale the input before.")
    out = each.unary(reader, "elu", self, alpha=float(plain(alpha)))
    return each.mul(reader, out, float(plain(scale)))


@rule("selu")
def _selu(reader: Reader, self: Traced, result: Any) -> Any:
    """Klambauer et al. 2017: scale * elu(x, alpha)."""
    out = each.unary(reader, "elu", self, alpha=1.6732632423543772)
    return each.mul(reader, out, 1.0507009873554805)


@rule("hardtanh")
def _hardtanh(reader: Reader, self: Traced, min_val: Pair, max_val: Pair, result: Any) -> Any:
    return each.unary(reader, "hard_tanh", self, low=float(plain(min_val)), high=float(plain(max_val)))


@rule("clamp")
def _clamp(reader: Reader, self: Traced, min: Any, max: Any, result: Any) -> Any:
    low, high = (default if b is None else float(plain(b)) for b, default in ((min, -LARGE), (max, LARGE)))
    if low == 0 and high == LARGE:
        return each.unary(reader, "relu", self)
    return each.unary(reader, "hard_tanh", self, low=low, high=high)


@rule("clamp_min")
def _clamp_min(reader: Reader, self: Traced, min: Pair, result: Any) -> Any:
    return _clamp(reader, self, min, None, result)


@rule("relu6")
def _relu6(reader: Reader, self: Traced, result: Any) -> Any:
    return each.unary(reader, "hard_tanh", self, low=0.0, high=6.0)


@rule("softplus")
def _softplus(reader: Reader, self: Traced, beta: Pair, threshold: Pair, result: Any) -> Any:
    return each.unary(reader, "softplus", self, beta=float(plain(beta)))


@rule("glu")
def _glu(reader: Reader, self: Traced, dim: Pair, result: Any) -> Any:
    a, b = _chunk(reader, self, (2, 2), dim, None)
    return each.mul(reader, a, each.unary(reader, "sigmoid", b))


@rule("dropout")
def _dropout(reader: Reader, input: Traced, p: Pair, train: bool, result: Any) -> Any:
    return dropped(reader, input, 1 - plain(p)) if train and plain(p) else input


@rule("feature_dropout")
def _feature_dropout(reader: Reader, input: Traced, p: Pair, train: bool, result: Any) -> Any:
    """Apply dropout with one mask for all pixels of a channel."""
    return dropped(reader, input, 1 - plain(p), over=2) if train and plain(p) else input


@rule("native_dropout")
def _native_dropout(reader: Reader, input: Traced, p: Pair, train: bool, result: Any) -> Any:
    return [_dropout(reader, input, p, train, result), None]


@rule("alpha_dropout", "feature_alpha_dropout")
def _alpha_dropout(reader: Reader, input: Traced, p: Pair, train: bool, result: Any) -> Any:
    if train and plain(p):
        raise reader.refuse(
            f"alpha dropout with p = {plain(p):g} in training mode",
            "Plain dropout has a limit, this has no rule. Give train=False, or p = 0.",
        )
    return input


@rule("bernoulli")
def _bernoulli(reader: Reader, self: Any, result: Any, p: Any = None, **_: Any) -> Any:
    """Create zeros and ones along a width, as in-place dropout draws them."""
    if p is None:
        return _random(reader, result)
    like = _filled(self, result, 0.0, 0.0)
    if not any(f.width for f in like.factors):
        raise reader.refuse("random numbers without a width are drawn", NO_WIDTH)
    return mask(reader, plain(p), like.axes)


@rule(
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "multinomial"),
    *("normal", "normal_functional", "uniform", "exponential", "poisson"),
)
def _random(reader: Reader, result: Any, **_: Any) -> Any:
    raise reader.refuse(
        "the forward pass draws random numbers",
        "They are drawn anew for every input. Dropout has a limit (F.dropout, nn.Dropout); other random "
        "numbers are not part of the network's law: give train=False, or take them out.",
    )


@rule(
    "clone",
    "contiguous",
    "detach",
    "alias",
    "to",
    "_to_copy",
    "type_as",
    "lift_fresh_copy",
    "float",
)
def _same(reader: Reader, self: Traced, result: Any, **_: Any) -> Any:
    return self


# Arithmetic


@rule("add")
def _add(reader: Reader, self: Any, other: Any, result: Any, alpha: Pair = (1, 1)) -> Any:
    factor = float(plain(alpha))
    other = operand(reader, other) if factor == 1 else each.mul(reader, operand(reader, other), factor)
    return each.add(reader, operand(reader, self), other)


@rule("sub")
def _sub(reader: Reader, self: Any, other: Any, result: Any, alpha: Pair = (1, 1)) -> Any:
    factor = float(plain(alpha))
    other = operand(reader, other) if factor == 1 else each.mul(reader, operand(reader, other), factor)
    return each.add(reader, operand(reader, self), other, -1)


@rule("rsub")
def _rsub(reader: Reader, self: Any, other: Any, result: Any, alpha: Pair = (1, 1)) -> Any:
    return _sub(reader, other, self, result, alpha)


@rule("mul")
def _mul(reader: Reader, self: Any, other: Any, result: Any) -> Any:
    return each.mul(reader, operand(reader, self), operand(reader, other))


@rule("div")
def _div(reader: Reader, self: Any, other: Any, result: Any, rounding_mode: Any = None) -> Any:
    if rounding_mode is not None:
        raise reader.refuse(
            "a division with rounding", "Rounded functions are steps: use a fixed number of them."
        )
    return each.div(reader, operand(reader, self), operand(reader, other))


@rule("reciprocal")
def _reciprocal(reader: Reader, self: Any, result: Any) -> Any:
    return each.div(reader, 1.0, self)


@rule("pow")
def _pow(reader: Reader, self: Any, exponent: Any, result: Any) -> Any:
    if isinstance(exponent, Constant) and exponent.number is not None:
        exponent = (exponent.number,) * 2
    if not isinstance(exponent, tuple):
        raise reader.refuse("a power with an exponent that is computed", "Use a number as exponent.")
    return each.power(reader, operand(reader, self), plain(exponent))


@rule("maximum")
def _maximum(reader: Reader, self: Any, other: Any, result: Any) -> Any:
    return each.elementwise(reader, maximum, each.as_value(reader, self), each.as_value(reader, other))


@rule("minimum")
def _minimum(reader: Reader, self: Any, other: Any, result: Any) -> Any:
    return each.elementwise(reader, minimum, each.as_value(reader, self), each.as_value(reader, other))


@rule("gt", "ge")
def _greater(reader: Reader, self: Any, other: Any, result: Any) -> Any:
    return each.unary(reader, "step", each.add(reader, self, operand(reader, other), -1))


@rule("lt", "le")
def _less(reader: Reader, self: Any, other: Any, result: Any) -> Any:
    return each.unary(reader, "step", each.add(reader, operand(reader, other), self, -1))


@rule(
    "eq",
    "ne",
    "argmax",
    "argmin",
    "topk",
    "sort",
    "cumsum",
    "cumprod",
    "nonzero",
    "item",
    "_local_scalar_dense",
)
def _data_dependent(reader: Reader, result: Any, **_: Any) -> Any:
    raise reader.refuse(
        "an operation whose result depends on comparisons or on the order of values",
        "A program is straight-line, and its functions act coordinate by coordinate. Compute this from "
        "the data before the network, and give it as a part of the input: a tuple.",
    )


def mask_value(reader: Reader, mask: Any) -> Value:
    if isinstance(mask, Constant):
        return each.as_value(reader, Constant(mask.one.astype(float), mask.two.astype(float)))
    return each.as_value(reader, mask)


@rule("where")
def _where(reader: Reader, condition: Any, self: Any, other: Any, result: Any) -> Any:
    if isinstance(condition, Constant) and condition.number is not None:
        return operand(reader, self if condition.number else other)
    return each.select(reader, mask_value(reader, condition), _bounded(reader, self), _bounded(reader, other))


def _bounded(reader: Reader, x: Any) -> Any:
    """Replace an infinite number by a large one."""
    if not isinstance(x, tuple):
        return x
    one, two = (max(min(float(k), LARGE), -LARGE) for k in x)
    return number(one, two)


@rule("masked_fill")
def _masked_fill(reader: Reader, self: Any, mask: Any, value: Any, result: Any) -> Any:
    return _where(reader, mask, value, self, result)


# Shapes


@rule(
    *(
        "view",
        "reshape",
        "_unsafe_view",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
    ),
    *("_reshape_alias", "view_as", "squeeze_copy"),
)
def _reshape(reader: Reader, self: Traced, result: Any, **_: Any) -> Any:
    return shapes.reshape(reader, self, result)


@rule("permute")
def _permute(reader: Reader, self: Any, dims: list, result: Any) -> Any:
    return shapes.transpose(reader, self, axes_of(self, dims))


@rule("transpose", "t", "numpy_T", "mT")
def _transpose(reader: Reader, self: Any, result: Any, dim0: Pair = (-2, -2), dim1: Pair = (-1, -1)) -> Any:
    rank = len(self.shape)
    order = list(range(rank))
    if rank > 1:
        i, j = plain(dim0) % rank, plain(dim1) % rank
        order[i], order[j] = order[j], order[i]
    return shapes.transpose(reader, self, order)


@rule("movedim", "moveaxis")
def _movedim(reader: Reader, self: Any, source: Any, destination: Any, result: Any) -> Any:
    start, end = axes_of(self, source), axes_of(self, destination)
    unmoved = iter(i for i in range(len(self.shape)) if i not in start)
    order = [start[end.index(i)] if i in end else next(unmoved) for i in range(len(self.shape))]
    return shapes.transpose(reader, self, order)


@rule("expand", "expand_as", "broadcast_to")
def _expand(reader: Reader, self: Any, result: list[Size], **_: Any) -> Any:
    if isinstance(self, Parameter) and self.shape == result:
        return self
    new = len(result) - len(self.shape)
    return shapes.broadcast(reader, self, result, list(range(new, len(result))))


@rule("repeat")
def _repeat(reader: Reader, self: Any, repeats: list[Pair], result: list[Size]) -> Any:
    x = each.as_value(reader, self)
    new = len(result) - len(x.shape)
    x = replace(x, axes=((),) * new + x.axes)
    for d, k in enumerate(repeats):
        n = x.shape[d]
        if plain(k) > 1 and n == (1, 1):
            x = shapes.broadcast(
                reader,
                x,
                [s if i == d else t for i, (s, t) in enumerate(zip(result, x.shape, strict=True))],
                range(len(result)),
            )
        elif plain(k) > 1:
            x = shapes.take(reader, x, d, list(range(plain(n))) * plain(k))
    return x


@rule("repeat_interleave")
def _repeat_interleave(
    reader: Reader, self: Any, repeats: Any, result: Any, dim: Any = None, **_: Any
) -> Any:
    (d,) = axes_of(self, dim)
    n = plain(self.shape[d])
    return shapes.take(reader, self, d, np.repeat(np.arange(n), plain(repeats)).tolist())


@rule("select")
def _select(reader: Reader, self: Any, dim: Pair, index: Pair, result: list[Size]) -> Any:
    (d,) = axes_of(self, dim)
    size = self.shape[d]
    start = (index[0] % size[0], index[1] % size[1])
    part = shapes.slice_axis(reader, self, d, start, (start[0] + 1, start[1] + 1))
    return shapes.reshape(reader, part, result)


@rule("slice")
def _slice(reader: Reader, self: Any, dim: Pair, start: Any, end: Any, step: Pair, result: Any) -> Any:
    (d,) = axes_of(self, dim)
    size = self.shape[d]
    first = _bounds(start, size, (0, 0))
    last = _bounds(end, size, size)
    return shapes.slice_axis(reader, self, d, first, last, plain(step))


def _bounds(x: Any, size: Size, default: Size) -> Size:
    if x is None:
        return default
    one, two = (max(0, min(k + n if k < 0 else k, n)) for k, n in zip(x, size, strict=True))
    return one, two


@rule("narrow")
def _narrow(reader: Reader, self: Any, dim: Pair, start: Pair, length: Pair, result: Any) -> Any:
    (d,) = axes_of(self, dim)
    return shapes.slice_axis(reader, self, d, start, (start[0] + length[0], start[1] + length[1]))


def pieces(reader: Reader, x: Any, d: int, sizes: Sequence[Size]) -> list[Any]:
    out, start = [], (0, 0)
    for size in sizes:
        stop = (start[0] + size[0], start[1] + size[1])
        out.append(shapes.slice_axis(reader, x, d, start, stop))
        start = stop
    return out


@rule("split", "split_with_sizes")
def _split(
    reader: Reader, self: Any, dim: Pair, result: Any, split_size: Any = None, split_sizes: Any = None
) -> Any:
    (d,) = axes_of(self, dim)
    given = split_sizes if split_sizes is not None else split_size
    if isinstance(given, list):
        return pieces(reader, self, d, given)
    total = self.shape[d]
    count = -(-total[0] // given[0])
    last = (total[0] - given[0] * (count - 1), total[1] - given[1] * (count - 1))
    return pieces(reader, self, d, [given] * (count - 1) + [last])


@rule("chunk")
def _chunk(reader: Reader, self: Any, chunks: Pair, dim: Pair, result: Any) -> Any:
    (d,) = axes_of(self, dim)
    size = tuple(-(-n // plain(chunks)) for n in self.shape[d])
    return _split(reader, self, dim, result, split_size=size)


@rule("tensor_split")
def _tensor_split(
    reader: Reader, self: Any, dim: Pair, result: Any, sections: Any = None, indices: Any = None
) -> Any:
    """Split at given positions, or into a number of parts, the first of which may be longer by one."""
    (d,) = axes_of(self, dim)
    ends = [(0, 0), *(indices or ()), self.shape[d]]
    if indices is None:
        count = plain(sections)
        ends = [tuple(k * (n // count) + min(k, n % count) for n in self.shape[d]) for k in range(count + 1)]
    return pieces(reader, self, d, [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ends)])


@rule("unbind")
def _unbind(reader: Reader, self: Any, dim: Pair, result: Any) -> Any:
    (d,) = axes_of(self, dim)
    sizes = [s for i, s in enumerate(self.shape) if i != d]
    parts = pieces(reader, self, d, [(1, 1)] * plain(self.shape[d]))
    return [shapes.reshape(reader, part, sizes) for part in parts]


@rule("cat", "concat", "concatenate")
def _cat(reader: Reader, tensors: list, dim: Pair, result: Any) -> Any:
    (d,) = axes_of(tensors[-1], dim)
    return shapes.concatenate(reader, [t for t in tensors if len(t.shape) > 1 or t.shape != [(0, 0)]], d)


@rule("stack")
def _stack(reader: Reader, tensors: list, dim: Pair, result: Any) -> Any:
    rank = len(tensors[0].shape) + 1
    d = plain(dim) % rank
    parts = [shapes.reshape(reader, t, [*t.shape[:d], (1, 1), *t.shape[d:]]) for t in tensors]
    return shapes.concatenate(reader, parts, d)


@rule("flip")
def _flip(reader: Reader, self: Any, dims: list, result: Any) -> Any:
    for d in axes_of(self, dims):
        self = shapes.take(reader, self, d, list(range(plain(self.shape[d])))[::-1])
    return self


@rule("roll")
def _roll(reader: Reader, self: Any, shifts: list, dims: list, result: Any) -> Any:
    for shift, d in zip(shifts, axes_of(self, dims), strict=True):
        self = shapes.take(reader, self, d, np.roll(np.arange(plain(self.shape[d])), plain(shift)).tolist())
    return self


@rule("index", "index_select")
def _index(
    reader: Reader, self: Any, result: Any, indices: Any = None, dim: Any = None, index: Any = None
) -> Any:
    if index is not None:
        indices = [None] * plain(dim) + [index]
    used = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(used) != 1 or not isinstance(used[0][1], Constant):
        raise reader.refuse(
            "members are taken at positions that depend on the data, or on several axes at once",
            "Positions must be fixed numbers, one axis at a time. Tokens are looked up by nn.Embedding.",
        )
    d, at = used[0]
    if at.one.dtype == bool:
        at = Constant(np.flatnonzero(at.one), np.flatnonzero(at.two))
    return gather(reader, self, d, at)


# Constants, and writes into a copy


def _filled(x: Any, result: list[Size], one: float, two: float) -> Value:
    """Create a number at the two widths, with the axes of x where their lengths equal the result's."""
    axes = fixed(x.axes) if isinstance(x, Value) and len(x.axes) == len(result) else ((),) * len(result)
    axes = tuple(a if length(a) == size else unknown(size) for a, size in zip(axes, result, strict=True))
    return number(one, two, axes)


def _constant_rule(value: float, *names: str) -> None:
    rule(*names)(lambda reader, self, result, **_: _filled(self, result, value, value))


_constant_rule(0.0, "zeros_like", "new_zeros", "zero", *EMPTY)  # memory that is read must be written before
_constant_rule(1.0, "ones_like", "new_ones")


@rule("full_like", "new_full")
def _full(reader: Reader, self: Any, result: list[Size], fill_value: Pair, **_: Any) -> Any:
    return _filled(self, result, float(fill_value[0]), float(fill_value[1]))


@rule("fill")
def _fill(reader: Reader, self: Any, result: list[Size], value: Any) -> Any:
    if isinstance(value, tuple):
        return _full(reader, self, result, value)
    return shapes.broadcast(reader, value, result, [])


@rule("copy")
def _copy(reader: Reader, self: Any, src: Any, result: list[Size], **_: Any) -> Any:
    return _expand(reader, src, result)


@rule("slice_scatter")
def _slice_scatter(
    reader: Reader, self: Any, src: Any, dim: Pair, start: Any, end: Any, step: Pair, result: Any
) -> Any:
    (d,) = axes_of(self, dim)
    size = self.shape[d]
    first, last = _bounds(start, size, (0, 0)), _bounds(end, size, size)
    return shapes.write(reader, self, src, d, first, last, plain(step))


@rule("select_scatter")
def _select_scatter(reader: Reader, self: Any, src: Any, dim: Pair, index: Pair, result: Any) -> Any:
    (d,) = axes_of(self, dim)
    size = self.shape[d]
    start = (index[0] % size[0], index[1] % size[1])
    part = shapes.reshape(reader, src, [*src.shape[:d], (1, 1), *src.shape[d:]])
    return shapes.write(reader, self, part, d, start, (start[0] + 1, start[1] + 1))


@rule("index_put")
def _index_put(
    reader: Reader, self: Any, indices: list, values: Any, accumulate: bool, result: list[Size]
) -> Any:
    used = [(d, i) for d, i in enumerate(indices) if i is not None]
    d, at = used[0]
    if not accumulate and len(used) == 1 and _is_mask(at) and math.prod(s[0] for s in values.shape) == 1:
        missing = len(result) - d - len(at.shape)
        condition = shapes.reshape(reader, mask_value(reader, at), [*at.shape, *[(1, 1)] * missing])
        return each.select(reader, condition, shapes.reshape(reader, values, []), self)
    if accumulate or len(used) != 1 or not isinstance(at, Constant) or len(at.shape) != 1:
        raise reader.refuse(
            "members are written at positions that depend on the data, or on several axes at once",
            "Positions must be fixed numbers, one axis at a time, each of them once; torch.where takes a "
            "condition for every member.",
        )
    return _put(reader, self, d, at, values, result)


def _put(reader: Reader, x: Any, d: int, at: Constant, values: Any, result: list[Size]) -> Any:
    """Write values at fixed positions of a finite axis."""
    places = np.flatnonzero(at.one) if at.one.dtype == bool else at.one % plain(result[d])
    if not np.array_equal(at.one, at.two) or len(set(places.tolist())) < len(places):
        raise reader.refuse(
            "members are written at positions that depend on the width, or twice at one position",
            "Positions are fixed numbers, each of them once.",
        )
    part = _expand(reader, values, [*result[:d], (len(places),) * 2, *result[d + 1 :]])
    return shapes.put_members(reader, x, part, d, places.tolist())


def _is_mask(x: Any) -> bool:
    """Whether indices are boolean conditions, constant or computed."""
    return x.one.dtype == bool and len(x.shape) > 1 if isinstance(x, Constant) else True


@rule("index_fill")
def _index_fill(reader: Reader, self: Any, dim: Pair, index: Any, value: Any, result: list[Size]) -> Any:
    (d,) = axes_of(self, dim)
    return _index_put(
        reader, self, [*[None] * d, index], each.as_value(reader, operand(reader, value)), False, result
    )


@rule("index_copy")
def _index_copy(reader: Reader, self: Any, dim: Pair, index: Any, source: Any, result: list[Size]) -> Any:
    (d,) = axes_of(self, dim)
    return _index_put(reader, self, [*[None] * d, index], source, False, result)


# Reductions


def _kept(reader: Reader, x: Any, axes: list[int], keep: bool, before: list[Size]) -> Any:
    return (
        shapes.reshape(reader, x, [(1, 1) if i in axes else s for i, s in enumerate(before)]) if keep else x
    )


@rule("sum")
def _sum(reader: Reader, self: Any, result: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    axes = axes_of(self, dim)
    return _kept(reader, reductions.total(reader, self, axes), axes, keepdim, self.shape)


@rule("mean")
def _mean(reader: Reader, self: Any, result: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return reductions.mean(reader, self, axes_of(self, dim), keepdim)


@rule("var")
def _var(
    reader: Reader,
    self: Any,
    result: Any,
    dim: Any = None,
    keepdim: bool = False,
    correction: Any = (1, 1),
    **options: Any,
) -> Any:
    axes = axes_of(self, dim)
    n = math.prod(s[0] for i, s in enumerate(self.shape) if i in axes)
    m = math.prod(s[1] for i, s in enumerate(self.shape) if i in axes)
    lost = (
        (1 if options["unbiased"] else 0)
        if "unbiased" in options
        else (1 if correction is None else plain(correction))
    )
    d = each.add(reader, self, reductions.mean(reader, self, axes, keep=True), -1)
    out = reductions.mean(reader, each.unary(reader, "square", d), axes, keepdim)
    return each.mul(reader, out, number(n / (n - lost), m / (m - lost)))


@rule("std")
def _std(reader: Reader, self: Any, result: Any, **options: Any) -> Any:
    return each.unary(reader, "sqrt", _var(reader, self, result, **options))


@rule("amax")
def _amax(reader: Reader, self: Any, result: Any, dim: Any = None, keepdim: bool = False) -> Any:
    axes = axes_of(self, dim)
    return _kept(reader, reductions.extreme(reader, self, axes), axes, keepdim, self.shape)


@rule("amin")
def _amin(reader: Reader, self: Any, result: Any, dim: Any = None, keepdim: bool = False) -> Any:
    axes = axes_of(self, dim)
    return _kept(reader, reductions.extreme(reader, self, axes, "min"), axes, keepdim, self.shape)


@rule("max")
def _max(
    reader: Reader, self: Any, result: Any, dim: Any = None, keepdim: bool = False, other: Any = None
) -> Any:
    if other is not None:
        return _maximum(reader, self, other, result)
    axes = axes_of(self, dim)
    out = _kept(reader, reductions.extreme(reader, self, axes), axes, keepdim, self.shape)
    return out if dim is None else [out, None]


@rule("softmax", "_softmax", "_safe_softmax")
def _softmax(reader: Reader, self: Any, dim: Pair, result: Any, **_: Any) -> Any:
    (d,) = axes_of(self, dim)
    return reductions.softmax(reader, self, d)


@rule("log_softmax", "_log_softmax")
def _log_softmax(reader: Reader, self: Any, dim: Pair, result: Any, **_: Any) -> Any:
    return each.unary(reader, "log", _softmax(reader, self, dim, result))


# Products


def product(reader: Reader, a: Any, b: Any, contracted: Any, batch: Any = ((), ())) -> Any:
    """Contract a and b, either of which may be a parameter; axes (batch, free of a, free of b)."""
    (ca, cb), (ba, bb) = contracted, batch
    if isinstance(b, Parameter) and not isinstance(a, Parameter):
        return multiply(reader, _input(reader, a), b, contracted, batch)
    if isinstance(a, Parameter) and not isinstance(b, Parameter):
        out = multiply(reader, _input(reader, b), a, (cb, ca), (bb, ba))
        nb, nfb = len(ba), len(b.shape) - len(cb) - len(bb)
        rank = len(out.axes)
        return shapes.transpose(reader, out, [*range(nb), *range(nb + nfb, rank), *range(nb, nb + nfb)])
    return einsum_values(reader, _input(reader, a), _input(reader, b), contracted, batch)


def _input(reader: Reader, x: Any) -> Value:
    if isinstance(x, OutputValue):
        raise reader.refuse(
            "a layer acts on an output, the result of a layer from a width to a finite number of rows (a "
            "bottleneck)",
            "Rule Output: such a layer ends the network, since a finite layer stays random in the limit. "
            "Let its size grow with the width: nn.Linear(n, n // 2).",
        )
    return each.as_value(reader, x)


@rule("mm", "bmm", "matmul", "mv", "dot")
def _matmul(reader: Reader, result: Any, **pair: Any) -> Any:
    a, b = pair.values()
    ra, rb = len(a.shape), len(b.shape)
    contracted = ([ra - 1], [max(rb - 2, 0)])
    batch = min(ra, rb) - 2
    if batch <= 0 or ra != rb:
        out = product(reader, a, b, contracted)
        if rb > 2 and ra == 2:  # axes: row of a, batch of b, column of b
            return shapes.transpose(reader, out, [*range(1, rb - 1), 0, rb - 1])
        return out
    along = list(range(batch))
    return product(reader, a, b, contracted, (along, along))


@rule("addmm", "baddbmm")
def _addmm(
    reader: Reader, self: Any, result: Any, beta: Pair = (1, 1), alpha: Pair = (1, 1), **pair: Any
) -> Any:
    out = _matmul(reader, result, **pair)
    for x, factor in ((out, alpha),):
        out = each.mul(reader, x, operand(reader, factor)) if factor != (1, 1) else x
    if plain(beta) == 0:
        return out
    return each.add(reader, out, self if plain(beta) == 1 else each.mul(reader, self, float(plain(beta))))


@rule("linear")
def _linear(reader: Reader, input: Any, weight: Any, bias: Any, result: Any) -> Any:
    out = product(reader, input, weight, ([len(input.shape) - 1], [len(weight.shape) - 1]))
    return out if bias is None else each.add(reader, out, bias)


@rule("einsum")
def _einsum(reader: Reader, equation: str, tensors: list, result: Any, **_: Any) -> Any:
    left, out = equation.replace(" ", "").split("->")
    if "." in left or len(tensors) != 2:
        raise reader.refuse(f"einsum `{equation}`", "Write it with two operands and a letter for every axis.")
    la, lb = left.split(",")
    shared = [c for c in la if c in lb]
    contracted, batch = [c for c in shared if c not in out], [c for c in shared if c in out]
    axes = ([la.index(c) for c in contracted], [lb.index(c) for c in contracted])
    along = ([la.index(c) for c in batch], [lb.index(c) for c in batch])
    contraction = product(reader, tensors[0], tensors[1], axes, along)
    order = batch + [c for c in la if c not in shared] + [c for c in lb if c not in shared]
    return shapes.transpose(reader, contraction, [order.index(c) for c in out])
