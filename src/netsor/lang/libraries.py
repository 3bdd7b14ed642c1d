"""Array libraries: NumPy, and those that array-api-compat knows."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import is_jax_array

__all__ = ["array_namespace", "double_precision", "is_traced"]

NUMBERS = int | float | complex | None


def array_namespace(*arrays: Any) -> Any:
    """Where the functions of arrays are, by the names of the array API standard.

    NumPy has them itself. What array-api-compat would give for it loads all that NumPy has, its tests and
    its Fortran compiler too, which takes as long as all else of ours.
    """
    found = False
    for a in arrays:
        if isinstance(a, np.ndarray | np.generic):
            found = True
        elif not isinstance(a, NUMBERS):
            return array_api_compat.array_namespace(*arrays)
    return np if found else array_api_compat.array_namespace(*arrays)


def is_traced(*arrays: Any) -> bool:
    """Whether an array is abstract (inside jax.jit or jax.grad), so that Python cannot branch on it."""
    if not any(is_jax_array(x) for x in arrays):
        return False
    from jax.core import Tracer  # type: ignore[import-not-found]

    return any(isinstance(x, Tracer) for x in arrays)


def double_precision() -> AbstractContextManager[Any]:
    """JAX with 64-bit numbers inside the block."""
    import jax  # type: ignore[import-not-found]

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # type: ignore[import-not-found]

    return enable_x64()
