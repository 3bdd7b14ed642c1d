"""A kernel with its data; number of rows per input, and targets in the order of the rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from netsor import arguments
from netsor.arguments import shown
from netsor.build.joint_program import joint
from netsor.build.network import Network
from netsor.errors import DataError
from netsor.gp.stores.input_sets import leaves
from netsor.limits.kernel import KernelFn
from netsor.limits.rules.output import output_index


@dataclass(frozen=True, repr=False)
class OnData:
    """A kernel with the inputs and targets that a process is conditioned on."""

    kernel: KernelFn
    x: list[Any]
    sizes: tuple[int, ...]  # number of rows of each input
    y: np.ndarray  # (rows, d)
    flat: bool  # whether the targets were given without the axis d
    unchanged: Unchanged = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unchanged", Unchanged(self.kernel))

    @property
    def centred(self) -> np.ndarray:
        """The targets minus the prior mean, (rows, d)."""
        return self.y - self.kernel.mean(self.x)[:, None]

    def _joint(self, kernel: KernelFn, inputs: list[Any], **options: Any) -> tuple[np.ndarray, ...]:
        """(K, K_*X, K_**) of data and new inputs from one evaluation, as sampled kernels need it."""
        whole, rows = kernel(self.x + inputs, **options), len(self.y)
        return whole[:rows, :rows], whole[rows:, :rows], whole[rows:, rows:]

    def _shaped(self, table: np.ndarray) -> np.ndarray:
        """A table (..., d) without its last axis, if the targets were given without it."""
        return table[..., 0] if self.flat else table


class Unchanged:
    """The state of a network, and of all that its code reads, at the time of its kernel matrix.

    kernel  None while an estimator is pickled without it
    """

    def __init__(self, kernel: KernelFn | None) -> None:
        self.kernel, self.state = kernel, kernel and kernel.net.state()
        self.programs = [] if kernel is None else [p for p in kernel.programs() if not p.changed]

    def check(self) -> None:
        """Raise a DataError if the network has changed: its covariances would not fit the matrix."""
        if self.kernel and (self.kernel.net.state() != self.state or any(p.changed for p in self.programs)):
            raise DataError(
                f"the network `{self.kernel.net.name}` has changed since its kernel matrix was computed",
                remedy="A variance, global, attribute or closure variable that its code reads has another "
                "value. Set it back, or compute the matrix again.",
            )

    def __reduce__(self):
        return Unchanged, (self.kernel,)  # states are valid in one process; unpickling a network checks it


def as_kernel(kernel: object) -> KernelFn:
    """Return a kernel; raise a DataError for anything else."""
    if isinstance(kernel, KernelFn):
        return kernel
    raise DataError(f"{shown(kernel)} is not a kernel", remedy="Give ns.kernel(net).")


def output_sizes(net: Network, inputs: list[Any]) -> tuple[int, ...]:
    """The number of output scalars of each input."""
    joined = joint(net, inputs)
    program, sizes = joined.program, {}
    for group in joined.groups:
        size = sum(prod(output_index(program, program.outputs[o])) for o in group.outputs)
        sizes |= dict.fromkeys(group.members, size)
    return tuple(sizes[i] for i in range(len(inputs)))


def arrange(y: object, sizes: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """Return the targets as (rows, d), and whether they were given without the axis d.

    y      a list with (outputs,) or (outputs, d) for each input, or an array (rows,) or (rows, d), or
           (inputs, T) if all inputs have T outputs
    sizes  number of outputs of each input
    """
    # With one output per input, a list of numbers needs no special treatment.
    if isinstance(y, list) and len(y) == len(sizes) and max(sizes) > 1:
        parts = [np.atleast_1d(reals(part, f"the targets of input {i}")) for i, part in enumerate(y)]
        for i, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            if part.ndim > 2 or len(part) != size:
                raise DataError(
                    f"the targets of input {i} have shape {part.shape}",
                    remedy=f"The network's outputs there are {size}: give ({size},) or ({size}, d).",
                )
        if len({part.shape[1:] for part in parts}) > 1:
            raise DataError(
                "the targets of different inputs have different numbers of columns",
                remedy="Each is (outputs,) or (outputs, d) with the same d.",
            )
        table = np.concatenate(parts)
    else:
        table = reals(y, "the targets")
        per_input = table.shape == (len(sizes), max(sizes)) and len(set(sizes)) == 1
        if per_input and max(sizes) > 1:
            table = table.reshape(-1)
    rows = sum(sizes)
    if table.ndim not in (1, 2) or len(table) != rows or table.size == 0:
        more = "." if rows == len(sizes) else ", or a list with one array per input."
        raise DataError(
            f"the targets have shape {table.shape}",
            remedy=f"{len(sizes)} inputs have {rows} outputs: give ({rows},) or ({rows}, d){more}",
        )
    if not np.isfinite(table).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(table))[0])
        raise DataError(
            f"the targets have a NaN or an infinity, first at {where}",
            remedy="Leave out inputs without a target.",
        )
    return (table[:, None], True) if table.ndim == 1 else (table, False)


def reals(y: object, what: str) -> np.ndarray:
    """Convert to a float64 array; `what` names the argument in errors."""
    try:
        array = arguments.array(what, y) if hasattr(y, "requires_grad") else np.asarray(y)
        if array.dtype.kind not in "biuf":
            array = array.astype(np.float64, casting="same_kind" if array.dtype.kind == "c" else "unsafe")
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise DataError(
            f"{what} are not real numbers in an array",
            remedy="Give numbers; for targets of different lengths a list with one array per input.",
        ) from None


def check_consistent(inputs: list[Any], sizes: tuple[int, ...], y: np.ndarray) -> None:
    """Raise a DataError if equal inputs have different targets y (rows, d), which needs a noise."""
    stops = np.cumsum(sizes)
    seen: dict[Any, int] = {}
    for i, x in enumerate(inputs):
        numbers = (np.asarray(array, np.float64) + 0.0 for array in leaves(x))  # -0.0 and 0.0 are equal
        first = seen.setdefault(tuple((array.shape, array.tobytes()) for array in numbers), i)
        here, there = (y[stops[k] - sizes[k] : stops[k]] for k in (i, first))
        if not np.array_equal(here, there):
            raise DataError(
                f"inputs {first} and {i} are equal and have different targets, but the noise is 0",
                remedy="A function has one value there. Give the variance of the noise: noise=0.01.",
            )
