"""Derivatives in the logarithms of the variances, by differences or by JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from netsor import arguments
from netsor.build.network import as_inputs
from netsor.errors import DataError, NetsorError
from netsor.gp.targets import as_kernel
from netsor.lang.libraries import double_precision
from netsor.limits.kernel import KernelFn

__all__ = ["central_differences", "jax_runs", "kernel_gradient"]

LARGEST_TRACE = 5000  # operations; sequences of many different lengths have more, and compile for minutes
STEP = 1e-5  # near eps^(1/3): truncation and rounding are both about 1e-10


def kernel_gradient(
    kernel: KernelFn,
    x: Any,
    names: Iterable[str] | None = None,
    *,
    params: Mapping[str, float] | None = None,
    method: str = "differences",
) -> tuple[np.ndarray, np.ndarray]:
    """K(x) and its derivative by the logarithm of each named variance: (rows, rows), (rows, rows, names).

    method  "differences": central, with errors of about 1e-9 of the entries, in two kernels per name;
            "jax": exact, but each call compiles anew
    """
    kernel = as_kernel(kernel)
    values = {**kernel.params, **arguments.mapping("params", params, '{"W1": 2.0}')}
    chosen = list(kernel.params) if names is None else list(arguments.names("names", names))
    _check(chosen, values, method)
    inputs, start = as_inputs(x), np.zeros(len(chosen))
    of_params = kernel.of_params(inputs)
    value = of_params(values)

    def moved(shift: Any) -> dict[str, Any]:
        return {**values, **{name: values[name] * _exp(shift[k]) for k, name in enumerate(chosen)}}

    def matrix(shift: Any) -> Any:
        return kernel(inputs, params=moved(shift))

    if method == "jax":
        import jax  # type: ignore[import-not-found]

        with double_precision():
            slopes = np.asarray(jax.jit(jax.jacfwd(matrix))(jax.numpy.asarray(start)))
    else:
        slopes = central_differences(lambda shift: of_params(moved(shift)), start)
    return value, slopes


def _check(names: list[str], values: Mapping[str, Any], method: str) -> None:
    for name in names:
        if name not in values:
            raise DataError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(values)}.")
    arguments.choice("method", method, ("jax", "differences"))


def _exp(value: Any) -> Any:
    return np.exp(value) if isinstance(value, float) else _jax_exp(value)


def _jax_exp(value: Any) -> Any:
    import jax.numpy as jnp  # type: ignore[import-not-found]

    return jnp.exp(value)


def central_differences(function: Callable[[np.ndarray], Any], at: np.ndarray) -> np.ndarray:
    """The derivative by each coordinate, on the last axis."""
    slopes = []
    for k in range(len(at)):
        move = np.zeros(len(at))
        move[k] = STEP
        slopes.append((np.asarray(function(at + move)) - np.asarray(function(at - move))) / (2 * STEP))
    return np.stack(slopes, axis=-1) if slopes else np.zeros((*np.shape(function(at)), 0))


def jax_runs(kernel: KernelFn, inputs: list[Any], params: Mapping[str, float]) -> bool:
    """Whether JAX is installed, can follow this kernel, and compiles it in seconds rather than minutes.

    The kernel is traced, not computed. Kernels that JAX calls back for are as well done without it.
    """
    if importlib.util.find_spec("jax") is None or not params:
        return False
    import jax  # type: ignore[import-not-found]

    try:
        with double_precision():
            traced = jax.make_jaxpr(lambda values: kernel(inputs, params=values))(dict(params))
    except (TypeError, AttributeError, NotImplementedError, NetsorError):  # what NumPy does to JAX's arrays
        return False
    return len(traced.jaxpr.eqns) <= LARGEST_TRACE and not _calls_back(traced.jaxpr)


def _calls_back(jaxpr: Any) -> bool:
    """Whether a function that JAX has traced calls NumPy."""
    for equation in jaxpr.eqns:
        inner = (getattr(part, "jaxpr", part) for part in equation.params.values())
        if equation.primitive.name == "pure_callback" or any(
            _calls_back(j) for j in inner if hasattr(j, "eqns")
        ):
            return True
    return False
