"""Rules of ATen operations: convolutions, pools, normalisations, attention, embeddings."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from netsor.models.operations import elementwise as each
from netsor.models.operations.masks import dropped
from netsor.models.operations.products import einsum, lookup
from netsor.models.operations.reductions import batchnorm, normalise, softmax
from netsor.models.operations.shapes import pad as pad_axis
from netsor.models.operations.shapes import reshape, take
from netsor.models.operations.windows import (
    WindowShape,
    convolve,
    linear_on_space,
    max_pool,
    mean_pool,
    transposed_convolution,
)
from netsor.models.pytorch.graph import Pair, rule
from netsor.models.pytorch.operations import mask_value, plain
from netsor.models.reader import Reader
from netsor.models.values import Constant, OutputValue, Parameter, Value, number

F = torch.nn.functional


# Convolution and pooling


def _numbers(x: Any, dims: int) -> tuple[int, ...]:
    values = tuple(plain(k) for k in x) if isinstance(x, list) else (plain(x),)
    return values if len(values) == dims else values * dims


def _window(size: Any, stride: Any, padding: Any, dilation: Any, dims: int) -> WindowShape:
    sizes = _numbers(size, dims)
    pads = tuple((k, k) for k in _numbers(padding, dims))
    return WindowShape(sizes, _numbers(stride, dims) if stride else sizes, pads, _numbers(dilation, dims))


@rule("conv1d", "conv2d", "conv3d", "convolution")
def _conv(
    reader: Reader,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Pair,
    result: Any,
    transposed: bool = False,
    **_: Any,
) -> Any:
    dims = len(weight.shape) - 2
    if not isinstance(weight, Parameter):
        raise reader.refuse("a convolution with a computed kernel", "A kernel is a parameter of the model.")
    kernel = [s[0] for s in weight.shape[2:]]
    space = list(range(len(input.shape) - dims, len(input.shape)))
    channel = space[0] - 1
    if transposed:
        return _conv_transpose(reader, input, weight, bias, stride, padding, None, groups, dilation, result)
    if padding == "same":
        window = WindowShape(
            tuple(kernel), (1,) * dims, _same_pads(kernel, _numbers(dilation, dims)), _numbers(dilation, dims)
        )
    else:
        window = _window(
            [(k, k) for k in kernel], stride, (0, 0) if padding == "valid" else padding, dilation, dims
        )
    out = convolve(reader, input, weight, channel, space, window, groups)
    return _with_bias(reader, out, bias, dims)


def _same_pads(kernel: list[int], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple((t // 2, t - t // 2) for t in totals)


def _with_bias(reader: Reader, out: Any, bias: Any, dims: int) -> Any:
    """Add a bias for each channel, the same at all positions."""
    if bias is None:
        return out
    if isinstance(bias, Parameter):
        bias = reshape(reader, bias, [*bias.shape, *[(1, 1)] * dims])
    return each.add(reader, out, bias)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    reader: Reader,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Pair,
    dilation: Any,
    result: Any,
) -> Any:
    if plain(groups) != 1:
        raise reader.refuse("a transposed convolution in groups", "Use one group.")
    dims = len(weight.shape) - 2
    space = list(range(len(input.shape) - dims, len(input.shape)))
    window = _window(list(weight.shape[2:]), stride, padding, dilation, dims)
    sizes = [plain(s) for s in result[-dims:]]
    return _with_bias(
        reader, transposed_convolution(reader, input, weight, space[0] - 1, space, window, sizes), bias, dims
    )


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices")
def _max_pool(
    reader: Reader,
    self: Any,
    kernel_size: list,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    result: Any,
) -> Any:
    if ceil_mode:
        raise reader.refuse("a pool with ceil_mode=True", "Pad the input instead.")
    dims = len(kernel_size)
    space = list(range(len(self.shape) - dims, len(self.shape)))
    out = max_pool(reader, self, space, _window(kernel_size, stride, padding, dilation, dims))
    return out if result is not None else [out, None]


@rule("avg_pool1d", "avg_pool2d")
def _avg_pool(
    reader: Reader, self: Any, kernel_size: list, stride: Any, padding: Any, result: Any, **options: Any
) -> Any:
    dims = len(kernel_size)
    window = _window(kernel_size, stride, padding, (1, 1), dims)
    plainly = {"kernel_size": window.size, "stride": window.stride, "padding": [a for a, _ in window.pads]}
    plainly |= {k: _plainly(v) for k, v in options.items()}
    if any(plainly["padding"]) or plainly.get("ceil_mode") or plainly.get("divisor_override"):
        pool = torch.ops.aten.avg_pool1d if dims == 1 else torch.ops.aten.avg_pool2d
        return spatial(lambda t: pool(t, **plainly), reader, self, dims)
    return mean_pool(reader, self, list(range(len(self.shape) - dims, len(self.shape))), window)


def spatial(fn: Callable[..., Any], reader: Reader, x: Any, dims: int) -> Any:
    """Apply a linear map of images by its matrix, which PyTorch computes from images with one pixel 1."""
    space = list(range(len(x.shape) - dims, len(x.shape)))
    return linear_on_space(
        reader, x, space, lambda images: fn(torch.as_tensor(images)[:, None])[:, 0].numpy()
    )


def _linear_rule(names: tuple[str, ...], dims: int) -> None:
    for name in names:

        def run(
            reader: Reader, self: Any = None, result: Any = None, name: str = name, **options: Any
        ) -> Any:
            x = self if self is not None else options.pop("input")
            plainly = {k: _plainly(v) for k, v in options.items()}
            return spatial(lambda t: getattr(torch.ops.aten, name)(t, **plainly), reader, x, dims)

        rule(name)(run)


def _plainly(x: Any) -> Any:
    if isinstance(x, list):
        return [_plainly(k) for k in x]
    return plain(x) if isinstance(x, tuple) else x


_linear_rule(("adaptive_avg_pool1d", "upsample_nearest1d", "upsample_linear1d"), 1)
_linear_rule(
    (
        *(
            "avg_pool2d",
            "adaptive_avg_pool2d",
            "_adaptive_avg_pool2d",
            "upsample_nearest2d",
            "upsample_bilinear2d",
        ),
        *("_upsample_nearest_exact2d", "reflection_pad2d", "replication_pad2d", "upsample_bicubic2d"),
    ),
    2,
)


@rule("pad", "constant_pad_nd")
def _pad(reader: Reader, self: Any, pad: list, result: Any, mode: str = "constant", value: Any = None) -> Any:
    dims = len(pad) // 2
    if value is not None and plain(value) != 0:
        raise reader.refuse(f"padding with {plain(value):g}", "Zeros, reflections and copies can be read.")
    widths = _plainly(pad)
    if mode == "constant":
        return _padded_with_zeros(reader, self, widths)
    if any(s[0] != s[1] for s in self.shape[len(self.shape) - dims :]):
        raise reader.refuse("a width is padded", "Let a layer change the width.")
    return spatial(lambda t: F.pad(t, widths, mode=mode), reader, self, dims)


def _padded_with_zeros(reader: Reader, x: Any, widths: list[int]) -> Any:
    """Pad the last axes with zeros; `widths` begin with the last axis."""
    v = each.as_value(reader, x)
    for k, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        axis = len(v.axes) - 1 - k
        if (before or after) and v.shape[axis][0] != v.shape[axis][1]:
            raise reader.refuse("a width is padded", "Let a layer change the width.")
        v = pad_axis(v, axis, before, after)
    return v


@rule("pixel_shuffle")
def _pixel_shuffle(reader: Reader, self: Any, upscale_factor: Pair, result: Any) -> Any:
    raise reader.refuse(
        "pixel_shuffle, which moves channels into space", "Use an upsampling and a convolution instead."
    )


# Embeddings


@rule("embedding")
def _embedding(reader: Reader, weight: Any, indices: Any, result: Any, **_: Any) -> Any:
    if not isinstance(weight, Parameter):
        raise reader.refuse("an embedding with a computed table", "The table is a parameter of the model.")
    return lookup(reader, weight, indices)


# Normalisation


def _affine(reader: Reader, h: Any, weight: Any, bias: Any, axis: int) -> Any:
    """Apply a gain and a bias along the axes from `axis` on."""
    rank = len(h.shape)
    for p, op in ((weight, each.mul), (bias, each.add)):
        if p is not None:
            v = each.as_value(reader, p)
            v = replace(v, axes=v.axes + ((),) * (rank - axis - len(v.axes)))
            neutral = v.is_number and v.node == (1.0 if op is each.mul else 0.0)
            h = h if neutral and v.scale.one == v.scale.two == 1.0 else op(reader, h, v)
    return h


@rule("layer_norm", "native_layer_norm")
def _layer_norm(
    reader: Reader,
    input: Any,
    normalized_shape: list,
    weight: Any,
    bias: Any,
    eps: Pair,
    result: Any,
    **_: Any,
) -> Any:
    first = len(input.shape) - len(normalized_shape)
    h = normalise(reader, input, list(range(first, len(input.shape))), plain(eps))
    out = _affine(reader, h, weight, bias, first)
    return out if result is not None else [out, None, None]


@rule("rms_norm")
def _rms_norm(reader: Reader, input: Any, normalized_shape: list, weight: Any, eps: Any, result: Any) -> Any:
    first = len(input.shape) - len(normalized_shape)
    small = float(torch.finfo(torch.get_default_dtype()).eps) if eps is None else plain(eps)
    h = normalise(reader, input, list(range(first, len(input.shape))), small, centre=False)
    return _affine(reader, h, weight, None, first)


@rule("group_norm")
def _group_norm(
    reader: Reader, input: Any, num_groups: Pair, weight: Any, bias: Any, eps: Pair, result: Any, **_: Any
) -> Any:
    x = each.as_value(reader, input)
    groups, channels = num_groups, x.shape[1]
    if groups == channels:
        h = normalise(reader, x, list(range(2, len(x.shape))), plain(eps))
        return _affine(reader, h, weight, bias, 1)
    inner = (channels[0] // groups[0], channels[1] // groups[1])
    apart = reshape(reader, x, [x.shape[0], groups, inner, *x.shape[2:]])
    h = normalise(reader, apart, list(range(2, len(apart.shape))), plain(eps))
    return _affine(reader, reshape(reader, h, x.shape), weight, bias, 1)


@rule(
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"
)
def _native_batch_norm(reader: Reader, result: Any, **options: Any) -> Any:
    """Normalise over the batch; the new running statistics are unused."""
    return [_batch_norm(reader, result=result, **options), None, None, None, None]


@rule("batch_norm", "instance_norm")
def _batch_norm(
    reader: Reader,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    eps: Pair,
    result: Any,
    training: bool = False,
    use_input_stats: bool | None = None,
    **_: Any,
) -> Any:
    x = each.as_value(reader, input)
    rank = len(x.shape)
    space = list(range(2, rank))
    if use_input_stats:
        return _affine(reader, batchnorm(reader, x, space, plain(eps)), weight, bias, 1)
    if training or running_mean is None:
        return _affine(reader, batchnorm(reader, x, [0, *space], plain(eps)), weight, bias, 1)
    mean, var = (each.as_value(reader, s) for s in (running_mean, running_var))
    mean, var = (replace(s, axes=s.axes + ((),) * len(space)) for s in (mean, var))
    h = each.add(reader, x, mean, -1)
    std = each.unary(reader, "sqrt", each.add(reader, var, number(plain(eps))))
    return _affine(reader, each.div(reader, h, std), weight, bias, 1)


# Attention


@rule("scaled_dot_product_attention")
def _attention(
    reader: Reader,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: Pair,
    is_causal: bool,
    scale: Any,
    enable_gqa: bool,
    result: Any,
) -> Any:
    q, k, v = (each.as_value(reader, x) for x in (query, key, value))
    n = len(q.shape) - 2
    if enable_gqa and q.shape[n - 1] != k.shape[n - 1]:
        times = plain(q.shape[n - 1]) // plain(k.shape[n - 1])
        k, v = (_repeated_heads(reader, x, n - 1, times) for x in (k, v))
    along = list(range(n))
    scores = einsum(reader, q, k, ([n + 1], [n + 1]), (along, along))
    d = q.shape[-1]
    factor = (
        number(1 / math.sqrt(d[0]), 1 / math.sqrt(d[1]))
        if scale is None
        else number(float(scale[0]), float(scale[1]))
    )
    masked = _masked(reader, each.mul(reader, scores, factor), attn_mask, is_causal)
    weights = softmax(reader, masked, n + 1)
    if plain(dropout_p):
        weights = dropped(reader, weights, 1 - plain(dropout_p))
    return einsum(reader, weights, v, ([n + 1], [n]), (along, along))


def _repeated_heads(reader: Reader, x: Value, axis: int, times: int) -> Any:
    """Repeat heads of keys and values that several heads of queries share."""
    return take(reader, x, axis, np.repeat(np.arange(plain(x.shape[axis])), times).tolist())


def _masked(reader: Reader, scores: Any, mask: Any, causal: bool) -> Any:
    """Set scores to large negative numbers where a query does not see a key."""
    if causal:
        size = tuple(plain(s) for s in scores.shape[-2:])
        triangle = np.tri(*size)
        mask = Constant(triangle > 0, triangle > 0)
    if mask is None:
        return scores
    if isinstance(mask, Constant) and mask.one.dtype == bool:
        mask = Constant(*(np.where(m, 0.0, -np.inf) for m in (mask.one, mask.two)))
    if isinstance(mask, Constant) and mask.number == 0:
        return scores
    if isinstance(scores, OutputValue):
        raise reader.refuse("a mask on an output", "Masks act on attention scores.")
    return each.add(reader, reader.fold(scores), mask_value(reader, mask))
