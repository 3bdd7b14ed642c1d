"""Convolutions: a matrix for each position of the kernel, then the sum over its window.

They slide over the last index axes, (..., height, width) or (..., length); further axes run along.
Entries have variance var_w / fan_in, and the fan-in counts the kernel positions: each of the
matrices has the law of `Matrix(var_w / positions)`.
"""

from __future__ import annotations

from math import prod
from typing import Any

from netsor.build.functions import as_node, pad
from netsor.build.layers.dense import bias, label, scaled
from netsor.build.layers.space import back, in_front, integers, per_axis
from netsor.build.nodes import Node, apply, fail
from netsor.build.parameters import Matrix
from netsor.lang.index_maps import window

__all__ = ["Conv1d", "Conv2d"]


class _Convolution:
    dims: int

    def __init__(
        self,
        kernel: int | tuple[int, ...] = 3,
        stride: int | tuple[int, ...] = 1,
        dilation: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = "same",
        var_w: float = 1.0,
        var_b: float = 0.0,
        mean_b: float = 0.0,
        *,
        name: str = "",
    ) -> None:
        self.kernel = per_axis(kernel, self.dims, "kernel")
        self.stride = per_axis(stride, self.dims, "stride")
        self.dilation = per_axis(dilation, self.dims, "dilation")
        self.padding = self._padding(padding)
        var = scaled(var_w, prod(self.kernel), "var_w")
        self.W = Matrix(var, index=self.kernel, name=label("W", name))
        self.b = bias(var_b, mean_b, label("b", name))

    def _padding(self, padding: Any) -> str | tuple[int, ...]:
        """ "same", "valid", "circular", or the number of zeros at either end of each axis."""
        if padding in ("same", "valid", "circular") and isinstance(padding, str):
            return padding
        values = integers(padding)
        if values is not None and not isinstance(padding, list | tuple):
            values = values * self.dims
        if values is None or len(values) != self.dims or min(values) < 0:
            raise fail(
                f"padding={padding!r}",
                'Choose "same" (zeros around the block), "valid" (only windows that fit), "circular", or a '
                "number of zeros at either end of each axis, as in PyTorch.",
            )
        return values if any(values) else "valid"

    def __call__(self, x: Any) -> Node:
        x = as_node(x)
        positions = x.index[: len(x.index) - x.channels]
        if len(positions) < self.dims:
            raise fail(
                f"a {self.dims}-dimensional convolution meets positions of shape {positions}",
                f"Data have shape (..., {'height, width' if self.dims == 2 else 'length'}, channels); "
                f"a block has at least {self.dims} index {'axes' if self.dims > 1 else 'axis'}.",
            )
        padding: Any = self.padding
        if isinstance(padding, tuple):
            if len(set(padding)) > 1:
                x, padding = pad(x, tuple((p, p) for p in padding)), "valid"
            else:
                padding = padding[0]
        product = self.W @ in_front(x, self.dims)
        ones = (1,) * self.dims
        steps = {"stride": self.stride, "dilation": self.dilation}
        options = {name: value for name, value in steps.items() if value != ones}
        out = apply(window, product, dims=self.dims, padding=padding, **options)
        out = back(out, self.dims) + self.b
        out.space = self.dims
        return out


class Conv1d(_Convolution):
    """Convolution along one axis, of data (..., length, channels) or of a block of index shape (..., length).

    padding: "same" (zeros), "valid", "circular", or a number of zeros at either end.
    """

    dims = 1


class Conv2d(_Convolution):
    """Convolution of data (..., height, width, channels) or of a block of index shape (..., height, width).

    padding: "same" (zeros), "valid", "circular", or a number of zeros at either end of each axis.
    """

    dims = 2
