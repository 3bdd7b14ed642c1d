"""Sets of inputs in any array library: the network is traced on NumPy, the limit computed on theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj, is_numpy_array

from netsor.build.network import Joint, Network, as_inputs, joint
from netsor.errors import LimitError
from netsor.lang.libraries import is_traced

__all__ = ["joint_of", "shapes_of"]

Array = Any


def joint_of(net: Network, x: Any, y: Any, params: Mapping[str, Any]) -> tuple[Joint, int | None]:
    """The joint program of one or two sets of inputs, and where the second begins."""
    foreign = [a for a in [*_arrays(x), *_arrays(y), *params.values()] if _is_foreign(a)]
    if not foreign:
        first, second = as_inputs(x), [] if y is None else as_inputs(y)
        return joint(net, first + second), None if y is None else len(first)
    xp = array_namespace(*foreign)
    first, second = _members(x), [] if y is None else _members(y)
    traced = is_traced(*(a for a in foreign if hasattr(a, "shape")))
    made = joint(net, [_concrete(z) for z in first + second])
    if traced and made.concrete:
        raise LimitError(
            f"the network `{net.name}` looks at the values of its input, which is traced by JAX",
            remedy="Let only the shape of the input decide what is computed, or call the kernel outside jit.",
        )
    data = {name: xp.asarray(array) for name, array in made.data.items()}
    for k, group in enumerate(made.groups):
        data |= _named(f"x{k + 1}", [(first + second)[i] for i in group.members], xp, data)
    return replace(made, data=data), None if y is None else len(first)


def shapes_of(x: Any, y: Any, params: Mapping[str, Any]) -> Any:
    """What decides how a kernel is computed, or None where that may be more than shapes.

    Only NumPy arrays and numbers: under JAX, shapes are the business of `jax.jit`.
    """
    if any(_is_foreign(a) for a in [*_arrays(x), *_arrays(y), *params.values()]):
        return None
    return _shape(x), None if y is None else _shape(y), tuple(params)


def _shape(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return (type(x), *map(_shape, x))
    return (np.shape(x), getattr(x, "dtype", None))


def _is_foreign(a: Any) -> bool:
    return is_array_api_obj(a) and not is_numpy_array(a) and not isinstance(a, np.generic)


def _arrays(x: Any) -> list[Any]:
    if isinstance(x, list | tuple):
        return [a for part in x for a in _arrays(part)]
    return [x]


def _members(x: Any) -> list[Any]:
    """The inputs of a set; those of an array are its rows."""
    if not _is_foreign(x):
        return as_inputs(x)
    if x.ndim == 0:
        return as_inputs(np.zeros(()))
    return [x[i, ...] for i in range(x.shape[0])]


def _concrete(x: Any) -> Any:
    """The input as NumPy arrays; ones in place of values that are traced."""
    if isinstance(x, tuple):
        return tuple(_concrete(part) for part in x)
    if not _is_foreign(x):
        return x
    return np.ones(x.shape) if is_traced(x) else np.asarray(x)


def _named(name: str, inputs: list[Any], xp: Any, data: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs of a group, stacked, under the names that the trace gives to their parts."""
    if isinstance(inputs[0], tuple):
        parts = [_named(f"{name}_{k}", [x[k] for x in inputs], xp, data) for k in range(len(inputs[0]))]
        return {key: array for part in parts for key, array in part.items()}
    if name not in data:
        return {}
    arrays = [xp.asarray(x) for x in inputs]
    return {name: arrays[0] if len(arrays) == 1 else xp.stack(arrays)}
