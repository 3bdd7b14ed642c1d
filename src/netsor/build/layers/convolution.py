"""Convolutions: a `Matrix(var_w / positions)` W_j for each kernel position j, then a sum over windows."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from netsor.build.array_functions import as_node, pad
from netsor.build.graph_nodes import Node, apply
from netsor.build.layers.dense import bias, flag, label, number, scaled
from netsor.build.layers.spatial_axes import integers, on_last_axes, per_axis
from netsor.build.parameters import Matrix, Vector
from netsor.build.source_lines import fail
from netsor.lang.functions import mul
from netsor.lang.index_maps import AROUND, take, window, windows


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
        transposed: bool = False,
        local: int | tuple[int, ...] | None = None,
        depthwise: bool = False,
        name: str = "",
    ) -> None:
        self.kernel = per_axis(kernel, self.dims, "kernel")
        self.stride = per_axis(stride, self.dims, "stride")
        self.dilation = per_axis(dilation, self.dims, "dilation")
        self.padding = self._padding(padding)
        self.transposed, self.depthwise = flag("transposed", transposed), flag("depthwise", depthwise)
        self.local = None if local is None else per_axis(local, self.dims, "local")
        if self.transposed + self.depthwise + (local is not None) > 1:
            raise fail("a convolution of two kinds", "Choose one of transposed, local and depthwise.")
        # The fan-in counts the kernel positions, each with its own matrix.
        var, index = scaled(var_w, prod(self.kernel), "var_w"), self.kernel + (self.local or ())
        self.W: Any = (Vector if self.depthwise else Matrix)(var, index=index, name=label("W", name))
        self.b: Any = bias(var_b, mean_b, label("b", name))
        if self.b and self.local:
            mean = np.full(self.local, number("mean_b", mean_b))
            self.b = Vector(var_b, mean, index=self.local, name=label("b", name))

    def _padding(self, padding: object) -> str | tuple[int, ...]:
        if isinstance(padding, str) and padding in ("same", "valid", *AROUND):
            return padding
        values = integers(padding, self.dims)
        if values is None or min(values) < 0:
            raise fail(
                f"padding={padding!r}",
                'Choose "same" (zeros around the block), "valid" (only windows that fit), "circular" '
                'or "wrap" (the other end), or a number of zeros at either end of each axis, as in PyTorch.',
            )
        return values if any(values) else "valid"

    def __call__(self, x: object) -> Node:
        x = as_node(x)
        if len(x.positions) < self.dims:
            axes = ", ".join(("depth", "height", "width")[-self.dims :]) if self.dims > 1 else "length"
            raise fail(
                f"a {self.dims}-dimensional convolution meets positions of shape {x.positions}",
                f"Data have shape (..., {axes}, channels); "
                f"a block has at least {self.dims} index {'axes' if self.dims > 1 else 'axis'}.",
            )
        padding: Any = self.padding
        if isinstance(padding, tuple) and not self.transposed:
            if self.local is not None or self.depthwise or len(set(padding)) > 1:
                # `window` pads all axes alike, so pad with zeros first.
                x, padding = pad(x, [(p, p) for p in padding]), "valid"
            else:
                padding = padding[0]
        return on_last_axes(x, self.dims, lambda x: self._on_first_axes(x, padding)) + self.b

    def _on_first_axes(self, x: Node, padding: Any) -> Node:
        steps = {"stride": self.stride, "dilation": self.dilation, "padding": padding}
        if self.transposed:
            x, steps = self._spread(x), {"dilation": self.dilation, "padding": "valid"}
        steps = {name: value for name, value in steps.items() if value != (1,) * self.dims}
        if self.local is not None or self.depthwise:
            return self._by_members(apply(windows, x, kernel=self.kernel, **steps))
        return apply(window, self.W @ x, dims=self.dims, **steps)

    def _spread(self, x: Node) -> Node:
        """Insert stride - 1 zeros between neighbours of x, and pad it with the zeros that the outputs read.

        For "same" there are stride * size outputs; the padding in front is that of the convolution of which
        this is the transpose, rounded up.
        """
        exists = np.array(True)
        for axis, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            size, reach = x.index[axis], d * (k - 1) + 1
            if isinstance(self.padding, tuple):  # as in PyTorch
                before = reach - 1 - self.padding[axis]
                count = (size - 1) * s + reach - 2 * self.padding[axis]
            else:
                before = reach - 1 if s > reach - 1 or self.padding == "valid" else -(-(reach + s - 2) // 2)
                count = size * s + (max(reach - s, 0) if self.padding == "valid" else 0)
            if count < 1:
                raise fail(
                    f"padding={self.padding!r} of a transposed convolution leaves no output",
                    f"It takes away outputs at either end; without it there are {(size - 1) * s + reach}.",
                )
            place = np.arange(count + reach - 1) - before
            if self.padding in AROUND:
                place %= size * s
            inside = np.clip(place // s, 0, size - 1)
            x = apply(take, x, axis=axis, indices=tuple(int(i) for i in inside))
            exists = np.multiply.outer(exists, (place % s == 0) & (place >= 0) & (place < size * s))
        if exists.all():
            return x
        return apply(mul, exists.reshape(*exists.shape, *(1,) * (len(x.index) - self.dims)).astype(float), x)

    def _by_members(self, x: Node) -> Node:
        """Multiply each member of the windows, whose positions in a window are the first axes, and sum them.

        Local and depthwise kernels depend on more than the kernel position, so `window` does not apply.
        """
        if isinstance(self.W, Vector):
            if x.kind not in ("G", "H"):
                raise fail(
                    "a depthwise convolution of data",
                    "It has a kernel for each of infinitely many channels: multiply data by a Matrix first.",
                )
            product = x * self.W[(..., *(None,) * (len(x.index) - self.dims))]
        else:
            outputs = x.index[self.dims : 2 * self.dims]
            if outputs != self.local:
                raise fail(f"local={self.local}, but the outputs are {outputs}", "Give their shape.")
            product = self.W.times(x, aligned=2 * self.dims)
        return product.sum(tuple(range(self.dims)))


class Conv1d(_Convolution):
    """The convolution `out[o] = sum_j W_j x[o stride + j dilation - left] + b` over kernel positions j.

    It takes data (..., length, channels) or a block of index shape (..., length).

    Parameters
    ----------
    kernel, stride, dilation
        Integers, or tuples with one per spatial axis.
    padding
        "same": zeros. "valid": only windows that fit. "circular": periodic, with windows centred on every
        stride-th position. "wrap": as "same", but periodic. A number: so many zeros at each end of each axis.
    var_w, var_b, mean_b
        Variance of weights times the fan-in (kernel positions times channels); the bias's variance and mean.
    transposed
        Whether to transpose in space: input i adds W_j x[i] to output i stride + j dilation - left. "same"
        has size * stride outputs; "valid" has all outputs that an input reaches, and at least size * stride.
    local
        The shape of the output; each output position then has its own matrices and bias.
    depthwise
        Whether channels are separate: vectors w_j of variance var_w / positions multiply x coordinatewise.
    name
        A suffix of the parameters' names.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> conv, v = ns.Conv1d(3, padding="circular"), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ conv(x))
    >>> ns.kernel(net)([np.array([[1.0], [0.0], [0.0], [0.0]])]).round(3)
    array([[0.333, 0.   , 0.   , 0.   ],
           [0.   , 0.333, 0.   , 0.   ],
           [0.   , 0.   , 0.   , 0.   ],
           [0.   , 0.   , 0.   , 0.333]])
    """

    dims = 1


class Conv2d(_Convolution):
    """A convolution of data (..., height, width, channels), or blocks (..., height, width); see `Conv1d`."""

    dims = 2


class Conv3d(_Convolution):
    """A convolution of data (..., depth, height, width, channels), or such blocks; see `Conv1d`."""

    dims = 3
