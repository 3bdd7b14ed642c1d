"""Pooling over windows of the index axes. Means of G-vars are LinComb, means of H-vars and maxima Nonlin."""

from __future__ import annotations

from netsor.build.functions import max as max_over
from netsor.build.layers.convolution import per_axis
from netsor.build.nodes import Node, apply, fail
from netsor.lang.index_maps import avgpool, patches

__all__ = ["global_max_pool", "global_mean_pool", "max_pool", "mean_pool"]

Sizes = int | tuple[int, ...]


def _windows(h: Node, size: Sizes, stride: Sizes | None, padding: str) -> dict:
    dims = len(size) if isinstance(size, tuple) else len(h.index)
    if padding not in ("same", "valid"):
        raise fail(
            f"padding={padding!r}",
            'Pooling uses only windows that fit ("valid"), or also those over the edge ("same").',
        )
    sizes = per_axis(size, dims, "size")
    return {
        "size": sizes,
        "stride": sizes if stride is None else per_axis(stride, dims, "stride"),
        "padding": padding,
    }


def mean_pool(h: Node, size: Sizes = 2, stride: Sizes | None = None, padding: str = "valid") -> Node:
    """Means over windows of the index axes; the stride is the size unless given."""
    return apply(avgpool, h, **_windows(h, size, stride, padding))


def max_pool(h: Node, size: Sizes = 2, stride: Sizes | None = None, padding: str = "valid") -> Node:
    """Maxima over windows of the index axes, coordinate by coordinate."""
    return max_over(apply(patches, h, **_windows(h, size, stride, padding)), axis=0)


def global_mean_pool(h: Node) -> Node:
    """The mean of all vectors of a block."""
    return h.mean()


def global_max_pool(h: Node) -> Node:
    """The maximum of all vectors of a block, coordinate by coordinate."""
    return max_over(h)
