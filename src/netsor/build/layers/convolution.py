"""Convolutions: a matrix for each position of the kernel, then the sum over its window.

Entries have variance var_w / fan_in, and the fan-in counts the kernel positions: each of the
matrices has the law of `Matrix(var_w / positions)`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from netsor.build.layers.dense import bias
from netsor.build.nodes import Node, apply, fail
from netsor.build.parameters import Matrix
from netsor.lang.index_maps import window

__all__ = ["Conv1d", "Conv2d", "per_axis"]


def per_axis(value: int | tuple[int, ...], dims: int, what: str) -> tuple[int, ...]:
    """One positive integer per axis, from a number or a tuple."""
    values = (value,) * dims if not isinstance(value, list | tuple) else tuple(value)
    if len(values) != dims or any(not isinstance(v, int | np.integer) or v < 1 for v in values):
        each = f"or a tuple of {dims}" if dims > 1 else "or a tuple of one"
        raise fail(f"{what}={value!r}", f"Give an integer >= 1, {each}, one for each axis of space.")
    return tuple(int(v) for v in values)


class _Convolution:
    dims: int

    def __init__(
        self,
        kernel: int | tuple[int, ...] = 3,
        stride: int | tuple[int, ...] = 1,
        dilation: int | tuple[int, ...] = 1,
        padding: str = "same",
        var_w: float = 1.0,
        var_b: float = 0.0,
        mean_b: float = 0.0,
        *,
        name: str = "",
    ) -> None:
        self.kernel = per_axis(kernel, self.dims, "kernel")
        self.stride = per_axis(stride, self.dims, "stride")
        self.dilation = per_axis(dilation, self.dims, "dilation")
        if padding not in ("same", "valid", "circular"):
            raise fail(
                f"padding={padding!r}",
                'Choose "same" (zeros around the block), "valid" (only windows that fit) or "circular".',
            )
        self.padding = padding
        label = f"W{name}" if name else None
        self.W = Matrix(var_w / prod(self.kernel), index=self.kernel, name=label)
        self.b = bias(var_b, mean_b, f"b{name}" if name else None)

    def __call__(self, x: Any) -> Node:
        product = self.W @ x
        if len(product.index) < 2 * self.dims:
            seen = product.index[self.dims :]
            raise fail(
                f"a {self.dims}-dimensional convolution meets positions of shape {seen}",
                f"Data have shape ({'height, width' if self.dims == 2 else 'length'}, channels); "
                f"a block has {self.dims} index axes.",
            )
        ones = (1,) * self.dims
        steps = {"stride": self.stride, "dilation": self.dilation}
        options = {name: value for name, value in steps.items() if value != ones}
        out = apply(window, product, dims=self.dims, padding=self.padding, **options)
        return out + self.b


class Conv1d(_Convolution):
    """Convolution along one axis, of data (length, channels) or of a block of index shape (length,).

    padding: "same" (zeros), "valid" or "circular".
    """

    dims = 1


class Conv2d(_Convolution):
    """Convolution of data (height, width, channels) or of a block of index shape (height, width).

    padding: "same" (zeros), "valid" or "circular".
    """

    dims = 2
