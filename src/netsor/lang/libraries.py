"""Array libraries other than NumPy."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from array_api_compat import is_jax_array

__all__ = ["double_precision", "is_traced"]


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
