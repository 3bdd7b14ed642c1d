"""Kernels that JAX cannot trace (sampled ones, batchnorm's integrals) under jax.jit, jax.vmap and jax.grad.

The kernel itself is a callback to NumPy. With its seed fixed it is a smooth function of the variances, so its
derivative in each of them is a central difference of kernels, with an error of about 1e-10 of the entries;
forward mode through the sample points would take as many operations. In the inputs there is no derivative.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.limits.computation import Computation

__all__ = ["differenced_kernel"]

STEP = 1e-5  # relative, near eps^(1/3): truncation and rounding are both about 1e-10
LEAST = 1e-3  # a variance below this moves as one of this size does, and at 0 to one side only

Array = Any


def differenced_kernel(c: Computation, data: Mapping[str, Any], params: Mapping[str, Any]) -> Array:
    """(rows, columns) of the kernel; differentiable in the variances, once."""
    import jax  # type: ignore[import-not-found]

    shape = (c.rows.left_size, c.rows.right_size)
    dtype = jax.dtypes.canonicalize_dtype(c.options.dtype)

    def called(fn: Any, count: tuple[int, ...], *args: Any) -> Array:
        made = jax.ShapeDtypeStruct((*count, *shape), dtype)
        return jax.pure_callback(fn, made, *args, vmap_method="sequential")

    def value(data: Mapping[str, Any], values: Mapping[str, Any]) -> np.ndarray:
        return np.asarray(_kernel(c, data, values), dtype)

    def slopes(names: tuple[str, ...], data: Mapping[str, Any], values: Mapping[str, Any]) -> np.ndarray:
        return np.asarray([_slope(c, data, values, name) for name in names], dtype)

    @jax.custom_jvp
    def kernel(data: Mapping[str, Any], values: Mapping[str, Any]) -> Array:
        return called(value, (), data, values)

    def jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
        zero = jax.custom_derivatives.SymbolicZero
        if any(type(t) is not zero for t in tangents[0].values()):
            raise LimitError(
                "this kernel has no derivative in its inputs: it is sampled, or has integrals of batchnorm",
                remedy="Differentiate in the variances (params=...), or take differences of kernels.",
            )
        moving = {name: t for name, t in tangents[1].items() if type(t) is not zero}
        found = called(partial(slopes, tuple(moving)), (len(moving),), *primals)
        total = sum((t * slope for t, slope in zip(moving.values(), found, strict=True)), jax.numpy.zeros(shape, dtype))
        return kernel(*primals), total

    kernel.defjvp(jvp, symbolic_zeros=True)
    return kernel({n: jax.numpy.asarray(a, dtype) for n, a in data.items()}, {n: jax.numpy.asarray(p, dtype) for n, p in params.items()})


def _kernel(c: Computation, data: Mapping[str, Any], values: Mapping[str, Any]) -> np.ndarray:
    return c.value({name: np.asarray(a) for name, a in data.items()}, {n: float(v) for n, v in values.items()})


def _slope(c: Computation, data: Mapping[str, Any], values: Mapping[str, Any], name: str) -> np.ndarray:
    """dK / d var: (K(v + h) - K(v - h)) / 2 h, or to one side (4 K(v + h) - K(v + 2 h) - 3 K(v)) / 2 h."""
    v = float(values[name])
    step = STEP * max(v, LEAST)

    def at(steps: int) -> np.ndarray:
        return _kernel(c, data, {**values, name: v + steps * step})

    if v >= step:
        return (at(1) - at(-1)) / (2 * step)
    return (4 * at(1) - at(2) - 3 * at(0)) / (2 * step)
