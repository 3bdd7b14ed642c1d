"""Sets of inputs in any array library: networks are traced on NumPy, kernels are in the inputs' library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj, is_jax_array, is_numpy_array
from numpy.typing import ArrayLike

from netsor import arguments
from netsor.build.joint_program import Joint, as_inputs, data_of, joint
from netsor.build.network import Network
from netsor.errors import DataError, LimitError
from netsor.lang.array_api import array_namespace, is_traced
from netsor.limits.computation import Computation

InputSet = ArrayLike | Sequence[ArrayLike]  # an array whose first axis runs over inputs, or a list of them
Variances = Mapping[str, Any] | None  # by name; they replace those of the network
Array = Any
Values = Mapping[str, Any]


@dataclass
class Inputs:
    """One or two sets of inputs, and variances by name.

    NumPy and JAX arrays with values run on NumPy, arrays that JAX traces on JAX, others in their library.
    """

    x: Any
    y: Any = None
    params: Any = None
    numpy: bool = False  # whether to treat them as NumPy arrays, whatever they are

    def __post_init__(self) -> None:
        self.params = arguments.mapping("params", self.params, '{"W1": 2.0}', error=LimitError)

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
        """Index of the first input of the second set, or None."""
        return None if self.y is None else len(self.members[0])

    @cached_property
    def members(self) -> tuple[list[Any], list[Any]]:
        """The inputs of the two sets."""
        sets = _members(self.x), [] if self.y is None else _members(self.y)
        if self.y is not None and not all(sets):
            raise DataError("a set of inputs is empty", remedy="Give at least one input.")
        return sets

    @property
    def shapes(self) -> Any:
        """The shapes that decide how a kernel is computed, or None if values may matter as well."""
        if not self.runs_on_numpy:
            return None
        try:
            return _shape(self.x), None if self.y is None else _shape(self.y), tuple(self.params)
        except (TypeError, ValueError, RuntimeError):  # no array: `members` says so
            return None

    def joint(self, net: Network) -> Joint:
        """Return the joint program of all inputs."""
        every = self.members[0] + self.members[1]
        joint_program = joint(net, [_concrete(z) for z in every])
        if self.runs_on_numpy:
            return joint_program
        if self.traced and joint_program.concrete:
            raise LimitError(
                f"the network `{net.name}` looks at the values of its input, which is traced by JAX",
                remedy="Let only the shape of the input decide what is computed, or call the kernel outside "
                "jit.",
            )
        xp = array_namespace(*self.foreign)
        # Copies, because PyTorch warns of arrays that it may not write to.
        data = {name: xp.asarray(np.array(array)) for name, array in joint_program.data.items()}
        for k, group in enumerate(joint_program.groups):
            data |= _named(f"x{k + 1}", [every[i] for i in group.members], xp, data)
        return replace(joint_program, data=data)

    def joint_of_shapes(self, net: Network) -> Joint:
        """Return the joint program without the data of the inputs; read only two rows of an array."""
        arrays: list[Any] = [z for z in (self.x, self.y) if z is not None]
        plain = all(isinstance(z, np.ndarray) and z.ndim and len(z) for z in arrays)
        count = sum(len(z) for z in arrays) if plain else 0
        if count < 3 or any(z.shape[1:] != self.x.shape[1:] for z in arrays):
            return self.joint(net)
        pair = joint(net, [self.x[0], arrays[-1][-1]])
        if len(pair.groups) != 1:  # the network depends on values, so two rows are not enough
            return self.joint(net)
        group = replace(pair.groups[0], members=tuple(range(count)))
        many = {name: np.broadcast_to(0.0, (count, *pair.data[name].shape[1:])) for name in group.data}
        return replace(pair, data={**pair.data, **many}, groups=(group,))

    def data(self, joint_program: Joint) -> dict[str, Any]:
        """Return the data for a joint program that was traced for other inputs of the same shapes."""
        group, *more = joint_program.groups
        plain = not more and not joint_program.requirements and group.data == ("x1",)
        if plain and (whole := self._whole) is not None:
            return {**joint_program.program.data, "x1": whole}
        every = self.members[0] + self.members[1]
        return data_of(joint_program, [_concrete(z) for z in every] if self.foreign else every)

    @property
    def _whole(self) -> np.ndarray | None:
        """All inputs as one array, if plain arrays allow it without stacking single inputs."""
        arrays = [z for z in (self.x, self.y) if z is not None]
        if not all(type(z) is np.ndarray and z.ndim > 1 and z.size and z.dtype == float for z in arrays):
            return None
        if len({z.shape[1:] for z in arrays}) > 1 or not all(z.flags.c_contiguous for z in arrays):
            return None
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return whole if len(whole) > 1 and np.isfinite(whole).all() else None

    def in_numpy(self) -> Inputs:
        """Return the same inputs as NumPy arrays."""
        if self.traced:
            raise LimitError(
                "errors and plans need values, and the inputs are traced by JAX",
                remedy="Call K.evaluate, K.plan and K.diag outside jit, grad and vmap.",
            )
        return replace(self, numpy=True)

    def kernel(self, computation: Computation, data: Values, params: Values) -> Any:
        """Return the kernel in the library of the inputs."""
        if self.runs_on_numpy:
            return self.in_its_library(computation.value(data, {n: float(p) for n, p in params.items()}))
        if self.traced:
            from netsor.limits.on_jax.kernel import traced_kernel

            return traced_kernel(computation, data, params)
        from netsor.limits.on_arrays import kernel_on

        return kernel_on(array_namespace(*self.foreign), computation, data, params)

    def in_its_library(self, value: np.ndarray) -> Any:
        """Convert a NumPy array to the library of the inputs."""
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
    """An input that is a row of an array; under a trace, taking each row out would cost an operation."""

    array: Array
    place: int


def _members(x: Any) -> list[Any]:
    """Return the inputs of a set; the rows, if it is an array."""
    if not _is_foreign(x):
        return as_inputs(x)
    if x.ndim == 0:
        return as_inputs(np.zeros(()))
    if is_traced(x):
        return [_Row(x, i) for i in range(x.shape[0])]
    return [x[i, ...] for i in range(x.shape[0])]


def _concrete(x: Any) -> Any:
    """Return the input as NumPy arrays, with ones in place of traced values."""
    if isinstance(x, _Row):
        return np.ones(x.array.shape[1:])
    if isinstance(x, tuple):
        return tuple(_concrete(part) for part in x)
    if not _is_foreign(x):
        return x
    return np.ones(x.shape) if is_traced(x) else arguments.array("the input", x)


def _named(name: str, inputs: list[Any], xp: Any, data: Mapping[str, Array]) -> dict[str, Array]:
    """Stack the inputs of a group, under the names that the trace gives to their parts."""
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
    """Return all rows of one or two arrays as one array; a single row has no axis."""
    arrays = [row.array for row in rows if row.place == 0]
    gathered = arrays[0] if len(arrays) == 1 else xp.concat(arrays, axis=0)
    return gathered[0, ...] if len(rows) == 1 else gathered
