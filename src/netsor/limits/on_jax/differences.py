"""Kernels that JAX cannot trace (sampled ones, batchnorm's integrals) under jax.jit, jax.vmap and jax.grad.

The kernel itself is a callback to NumPy. With its seed and the directions of its points held it is a smooth
function of the variances, so its derivative in each of them is a central difference of kernels, with an error
of about 1e-10 of the entries; forward mode through the sample points would take as many operations. In the
inputs there is no derivative.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.limits.computation import Computation
from netsor.limits.sampling.values import HELD

__all__ = ["differenced_kernel"]

STEP = 1e-5  # relative, near eps^(1/3): truncation and rounding are both about 1e-10
LEAST = 1e-3  # a variance below this moves as one of this size does, and at 0 to one side only

Array = Any
Values = Mapping[str, Any]


def differenced_kernel(c: Computation, data: Values, params: Values) -> Array:
    """(rows, columns) of the kernel; differentiable in the variances, once."""
    import jax  # type: ignore[import-not-found]

    shape = (c.rows.left_size, c.rows.right_size)
    dtype = jax.dtypes.canonicalize_dtype(c.options.dtype)

    def called(fn: Any, count: tuple[int, ...], *args: Any) -> Array:
        """Numbers of 64 bits travel as pairs of 32: threads of callbacks know of no others, by default."""
        wide = dtype == np.float64
        size, kind = ((*count, *shape, 2), np.int32) if wide else ((*count, *shape), dtype)

        def run(*args: Any) -> np.ndarray:
            given = jax.tree.map(lambda a: np.ascontiguousarray(a).view(dtype)[..., 0] if wide else a, args)
            made = np.asarray(fn(*given), dtype)
            return made[..., None].view(np.int32) if wide else made

        def bits(a: Any) -> Any:
            return jax.lax.bitcast_convert_type(a, np.int32) if wide else a

        found = jax.pure_callback(
            run, jax.ShapeDtypeStruct(size, kind), *jax.tree.map(bits, args), vmap_method="sequential"
        )
        return jax.lax.bitcast_convert_type(found, dtype) if wide else found

    def value(data: Values, values: Values) -> np.ndarray:
        return _kernel(c, data, values)

    def slopes(names: tuple[str, ...], data: Values, values: Values) -> np.ndarray:
        held: Any = {HELD: {}}
        _kernel(c, data, values, held)  # chooses what is held
        return np.stack([_slope(c, data, values, name, held) for name in names])

    @jax.custom_jvp
    def kernel(data: Values, values: Values) -> Array:
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
        total = jax.numpy.zeros(shape, dtype)
        for t, slope in zip(moving.values(), found, strict=True):
            total = total + t * slope
        return kernel(*primals), total

    kernel.defjvp(jvp, symbolic_zeros=True)
    arrays = ({name: jax.numpy.asarray(a, dtype) for name, a in given.items()} for given in (data, params))
    return kernel(*arrays)


def _kernel(c: Computation, data: Values, values: Values, held: Any = None) -> np.ndarray:
    arrays, numbers = ({name: np.asarray(a) for name, a in given.items()} for given in (data, values))
    return c.value(arrays, numbers, held)


def _slope(c: Computation, data: Values, values: Values, name: str, held: Any) -> np.ndarray:
    """dK / d var: (K(v + h) - K(v - h)) / 2 h, or to one side (4 K(v + h) - K(v + 2 h) - 3 K(v)) / 2 h."""
    v = float(values[name])
    step = STEP * max(v, LEAST)

    def at(steps: int) -> np.ndarray:
        return _kernel(c, data, {**values, name: v + steps * step}, held)

    if v >= step:
        return (at(1) - at(-1)) / (2 * step)
    return (4 * at(1) - at(2) - 3 * at(0)) / (2 * step)
