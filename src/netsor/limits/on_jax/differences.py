"""Kernels that JAX cannot trace (sampled ones, batchnorm's integrals) under jax.jit, jax.vmap and jax.grad.

The kernel itself is a callback to NumPy. With a fixed seed and fixed directions of the sample points it is a
smooth function of the variances. So its derivative in each of them is a central difference of kernels, with
an error of about 1e-10 of the entries. Forward mode through the sample points would take as many operations.
There is no derivative in the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.limits.computation import Computation
from netsor.limits.sampling.drawing import SharedState

Array = Any
Values = Mapping[str, Any]


def differenced_kernel(c: Computation, data: Values, params: Values) -> Array:
    """Return the kernel (rows, columns), which can be differentiated once, in the variances."""
    import jax  # type: ignore[import-not-found]

    shape = (c.rows.left_size, c.rows.right_size)
    dtype = jax.dtypes.canonicalize_dtype(c.options.dtype)

    def called(fn: Any, count: tuple[int, ...], *args: Any) -> Array:
        """Call back to NumPy. Pass 64-bit numbers as pairs of 32-bit ones: callback threads may lack x64."""
        wide = dtype == np.float64
        size, kind = ((*count, *shape, 2), np.int32) if wide else ((*count, *shape), dtype)

        def run(*args: Any) -> np.ndarray:
            given = jax.tree.map(lambda a: np.ascontiguousarray(a).view(dtype)[..., 0] if wide else a, args)
            array = np.asarray(fn(*given), dtype)
            return array[..., None].view(np.int32) if wide else array

        def bits(a: Any) -> Any:
            return jax.lax.bitcast_convert_type(a, np.int32) if wide else a

        array = jax.pure_callback(
            run, jax.ShapeDtypeStruct(size, kind), *jax.tree.map(bits, args), vmap_method="sequential"
        )
        return jax.lax.bitcast_convert_type(array, dtype) if wide else array

    def slopes(names: tuple[str, ...], data: Values, values: Values) -> np.ndarray:
        shared = SharedState(fixed={})
        _kernel(c, data, values, shared)  # fixes the directions that all differences must share
        return np.stack([_slope(c, data, values, name, shared) for name in names])

    @jax.custom_jvp
    def kernel(data: Values, values: Values) -> Array:
        return called(partial(_kernel, c), (), data, values)

    def jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
        zero = jax.custom_derivatives.SymbolicZero
        if any(type(t) is not zero for t in tangents[0].values()):
            raise LimitError(
                "this kernel has no derivative in its inputs: it is sampled, or has integrals of batchnorm",
                remedy="Differentiate in the variances (params=...), or take differences of kernels.",
            )
        moving = {name: t for name, t in tangents[1].items() if type(t) is not zero}
        derivatives = called(partial(slopes, tuple(moving)), (len(moving),), *primals)
        total = jax.numpy.zeros(shape, dtype)
        for t, slope in zip(moving.values(), derivatives, strict=True):
            total = total + t * slope
        return kernel(*primals), total

    kernel.defjvp(jvp, symbolic_zeros=True)
    arrays = ({name: jax.numpy.asarray(a, dtype) for name, a in given.items()} for given in (data, params))
    return kernel(*arrays)


def _kernel(c: Computation, data: Values, values: Values, shared: SharedState | None = None) -> np.ndarray:
    arrays, numbers = ({name: np.asarray(a) for name, a in given.items()} for given in (data, values))
    return c.value(arrays, numbers, shared)


def _slope(c: Computation, data: Values, values: Values, name: str, shared: SharedState) -> np.ndarray:
    """dK / d var: (K(v + h) - K(v - h)) / 2 h, or to one side (4 K(v + h) - K(v + 2 h) - 3 K(v)) / 2 h."""
    v = float(values[name])
    # The cube root of the rounding error balances truncation and rounding, both about 1e-10. Variances below
    # 1e-3 take the step of 1e-3, and go to one side only if they would become negative.
    step = 1e-5 * max(v, 1e-3)

    def at(steps: int) -> np.ndarray:
        return _kernel(c, data, {**values, name: v + steps * step}, shared)

    if v >= step:
        return (at(1) - at(-1)) / (2 * step)
    return (4 * at(1) - at(2) - 3 * at(0)) / (2 * step)
