"""Array libraries other than NumPy."""

from __future__ import annotations

from typing import Any

from array_api_compat import is_jax_array

__all__ = ["is_traced"]


def is_traced(*arrays: Any) -> bool:
    """Whether an array is abstract (inside jax.jit or jax.grad), so that Python cannot branch on it."""
    if not any(is_jax_array(x) for x in arrays):
        return False
    from jax.core import Tracer  # type: ignore[import-not-found]

    return any(isinstance(x, Tracer) for x in arrays)
