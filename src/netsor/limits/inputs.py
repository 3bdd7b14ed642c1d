"""Sets of inputs in any array library: the network is traced on NumPy, the kernel comes back in theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj, is_jax_array, is_numpy_array

from netsor import arguments
from netsor.build.network import Joint, Network, as_inputs, data_of, joint
from netsor.errors import DataError, LimitError
from netsor.lang.libraries import array_namespace, is_traced
from netsor.limits.computation import Computation

__all__ = ["Inputs"]

Array = Any
Values = Mapping[str, Any]


@dataclass
class Inputs:
    """One or two sets of inputs, and variances by name.

    NumPy arrays, and values of JAX, run on NumPy. What JAX traces (jit, grad, vmap) runs on JAX, and the
    arrays of any other library run on it.
    """

    x: Any
    y: Any
    params: Values
    numpy: bool = field(default=False)  # whatever they are, as NumPy arrays

    @cached_property
    def foreign(self) -> list[Any]:
        """The arrays that are not NumPy's."""
        return [a for a in [*_arrays(self.x), *_arrays(self.y), *self.params.values()] if _is_foreign(a)]

    @cached_property
    def traced(self) -> bool:
        return is_traced(*(a for a in self.foreign if hasattr(a, "shape")))

    @property
    def runs_on_numpy(self) -> bool:
        return self.numpy or not self.foreign or (not self.traced and all(map(is_jax_array, self.foreign)))

    @property
    def split(self) -> int | None:
        """Where the second set begins."""
        return None if self.y is None else len(self.members[0])

    @cached_property
    def members(self) -> tuple[list[Any], list[Any]]:
        """The inputs of either set."""
        found = _members(self.x), [] if self.y is None else _members(self.y)
        if self.y is not None and not all(found):
            raise DataError("a set of inputs is empty", remedy="Give at least one input.")
        return found

    @property
    def shapes(self) -> Any:
        """What decides how a kernel is computed, or None where that may be more than shapes."""
        if not self.runs_on_numpy:
            return None
        try:
            return _shape(self.x), None if self.y is None else _shape(self.y), tuple(self.params)
        except (TypeError, ValueError, RuntimeError):  # no array: `members` says so
            return None

    def joint(self, net: Network) -> Joint:
        """The joint program of all inputs."""
        every = self.members[0] + self.members[1]
        made = joint(net, [_concrete(z) for z in every])
        if self.runs_on_numpy:
            return made
        if self.traced and made.concrete:
            raise LimitError(
                f"the network `{net.name}` looks at the values of its input, which is traced by JAX",
                remedy="Let only the shape of the input decide what is computed, or call the kernel outside "
                "jit.",
            )
        xp = array_namespace(*self.foreign)
        # Copies, because PyTorch warns of arrays that it may not write to.
        data = {name: xp.asarray(np.array(array)) for name, array in made.data.items()}
        for k, group in enumerate(made.groups):
            data |= _named(f"x{k + 1}", [every[i] for i in group.members], xp, data)
        return replace(made, data=data)

    def joint_of_shapes(self, net: Network) -> Joint:
        """The same without the data of the inputs: of rows of arrays two are read, however many there are."""
        arrays: list[Any] = [z for z in (self.x, self.y) if z is not None]
        plain = all(isinstance(z, np.ndarray) and z.ndim and len(z) for z in arrays)
        count = sum(len(z) for z in arrays) if plain else 0
        if count < 3 or any(z.shape[1:] != self.x.shape[1:] for z in arrays):
            return self.joint(net)
        made = joint(net, [self.x[0], arrays[-1][-1]])
        if len(made.groups) != 1:  # the network looks at values
            return self.joint(net)
        group = replace(made.groups[0], members=tuple(range(count)))
        many = {name: np.broadcast_to(0.0, (count, *made.data[name].shape[1:])) for name in group.data}
        return replace(made, data={**made.data, **many}, groups=(group,))

    def data(self, made: Joint) -> dict[str, Any]:
        """The data of a joint program that was made for other inputs of the same shapes."""
        group, *more = made.groups
        plain = not more and not made.requirements and group.data == ("x1",)
        if plain and (whole := self._whole) is not None:
            return {**made.program.data, "x1": whole}
        every = self.members[0] + self.members[1]
        return data_of(made, [_concrete(z) for z in every] if self.foreign else every)

    @property
    def _whole(self) -> np.ndarray | None:
        """All inputs as one array, if they are several in plain arrays: it is not stacked again."""
        arrays = [z for z in (self.x, self.y) if z is not None]
        if not all(type(z) is np.ndarray and z.ndim > 1 and z.size and z.dtype == float for z in arrays):
            return None
        if len({z.shape[1:] for z in arrays}) > 1 or not all(z.flags.c_contiguous for z in arrays):
            return None
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return whole if len(whole) > 1 and np.isfinite(whole).all() else None

    def in_numpy(self) -> Inputs:
        """The same as NumPy arrays."""
        if self.traced:
            raise LimitError(
                "errors and plans need values, and the inputs are traced by JAX",
                remedy="Call K.evaluate, K.plan and K.diag outside jit, grad and vmap.",
            )
        return replace(self, numpy=True)

    def kernel(self, computation: Computation, data: Values, params: Values) -> Any:
        """The kernel in the library of the inputs."""
        if self.runs_on_numpy:
            return self.in_its_library(computation.value(data, {n: float(p) for n, p in params.items()}))
        if self.traced:
            from netsor.limits.on_jax.kernel import traced_kernel

            return traced_kernel(computation, data, params)
        from netsor.limits.on_arrays import kernel_on

        return kernel_on(array_namespace(*self.foreign), computation, data, params)

    def in_its_library(self, value: np.ndarray) -> Any:
        """A NumPy array as one of the library that the inputs are of."""
        if not self.foreign:
            return value
        xp = array_namespace(*self.foreign)
        real = [a.dtype for a in self.foreign if xp.isdtype(a.dtype, "real floating")]
        return xp.asarray(value, dtype=xp.result_type(*real)) if real else xp.asarray(value)


def _shape(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return (type(x), *map(_shape, x))
    return np.shape(x)


def _is_foreign(a: Any) -> bool:
    return is_array_api_obj(a) and not is_numpy_array(a) and not isinstance(a, np.generic)


def _arrays(x: Any) -> list[Any]:
    if isinstance(x, list | tuple):
        return [a for part in x for a in _arrays(part)]
    return [x]


@dataclass(frozen=True)
class _Row:
    """An input that is a row of an array of all inputs; under a trace, to take it out would cost a step."""

    array: Array
    place: int


def _members(x: Any) -> list[Any]:
    """The inputs of a set; those of an array are its rows."""
    if not _is_foreign(x):
        return as_inputs(x)
    if x.ndim == 0:
        return as_inputs(np.zeros(()))
    if is_traced(x):
        return [_Row(x, i) for i in range(x.shape[0])]
    return [x[i, ...] for i in range(x.shape[0])]


def _concrete(x: Any) -> Any:
    """The input as NumPy arrays; ones in place of values that are traced."""
    if isinstance(x, _Row):
        return np.ones(x.array.shape[1:])
    if isinstance(x, tuple):
        return tuple(_concrete(part) for part in x)
    if not _is_foreign(x):
        return x
    return np.ones(x.shape) if is_traced(x) else arguments.array("the input", x)


def _named(name: str, inputs: list[Any], xp: Any, data: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs of a group, stacked, under the names that the trace gives to their parts."""
    if all(isinstance(x, _Row) for x in inputs):
        return {name: _gathered(inputs, xp)} if name in data else {}
    inputs = [x.array[x.place, ...] if isinstance(x, _Row) else x for x in inputs]
    if isinstance(inputs[0], tuple):
        parts = [_named(f"{name}_{k}", [x[k] for x in inputs], xp, data) for k in range(len(inputs[0]))]
        return {key: array for part in parts for key, array in part.items()}
    if name not in data:
        return {}
    arrays = [xp.asarray(x) for x in inputs]
    return {name: arrays[0] if len(arrays) == 1 else xp.stack(arrays)}


def _gathered(rows: list[_Row], xp: Any) -> Array:
    """Rows of arrays as one array, runs of them at a time; a single one without its axis."""
    parts = []
    for _, own in groupby(enumerate(rows), key=lambda x: (id(x[1].array), x[1].place - x[0])):
        some = [row for _, row in own]
        array, first = some[0].array, some[0].place
        whole = first == 0 and len(some) == array.shape[0]
        parts.append(array if whole else array[first : first + len(some), ...])
    found = parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)
    return found[0, ...] if len(rows) == 1 else found
