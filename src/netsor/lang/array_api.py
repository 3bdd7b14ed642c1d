"""Array libraries by the array API standard, and two functions that the standard lacks."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import is_jax_array, is_numpy_array, is_torch_array


def array_namespace(*arrays: object) -> Any:
    """Return the namespace of the array API for these arrays; for NumPy it is NumPy itself."""
    # The namespace of array-api-compat imports all submodules of NumPy, its tests among them, which is slow.
    has_numpy = False
    for a in arrays:
        if isinstance(a, np.ndarray | np.generic):
            has_numpy = True
        elif not isinstance(a, int | float | complex | None):
            return array_api_compat.array_namespace(*arrays)
    return np if has_numpy else array_api_compat.array_namespace(*arrays)


def is_traced(*arrays: object) -> bool:
    """Whether an array is a JAX tracer (in jax.jit or jax.grad), so Python cannot branch on its values."""
    if not any(is_jax_array(x) for x in arrays):
        return False
    from jax.core import Tracer  # type: ignore[import-not-found]

    return any(isinstance(x, Tracer) for x in arrays)


def double_precision() -> AbstractContextManager[Any]:
    """Enable 64-bit numbers in JAX inside a `with` block."""
    import jax  # type: ignore[import-not-found]

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # type: ignore[import-not-found]

    return enable_x64()


def _special(name: str, x: object) -> Any:
    if is_jax_array(x):
        return getattr(importlib.import_module("jax.scipy.special"), name)(x)
    if is_torch_array(x):
        return getattr(importlib.import_module("torch.special"), name)(x)
    value = getattr(importlib.import_module("scipy.special"), name)(np.asarray(x))
    return value if is_numpy_array(x) else array_namespace(x).asarray(value)


erf = partial(_special, "erf")
expit = partial(_special, "expit")  # the logistic function 1 / (1 + exp(-x))
