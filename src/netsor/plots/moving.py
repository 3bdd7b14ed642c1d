"""Which variances a phase diagram moves, by the role of a parameter in the program and not by its name.

var_w is the variance of each hidden matrix, var_b that of each bias: a vector of mean 0. A readout is
neither, nor is a bias of the output, because one more layer leaves them as they are. A matrix on data moves
where it belongs to the layers, as the first of them (in an MLP of `depth` matrices, one is on data). It does
not move where all layers have matrices between widths, as in a residual network, which embeds its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from netsor.arguments import shown
from netsor.build.joint_program import joint
from netsor.build.network import Network
from netsor.errors import DataError
from netsor.gp.gradient import tied_groups
from netsor.lang.program import MatrixLaw, Normal
from netsor.lang.types import A

AXES = ("var_w", "var_b")
Groups = Mapping[str, tuple[str, ...]]  # the names of the variances that each axis moves
Tied = Mapping[str, Sequence[str]] | Sequence[Sequence[str]]


class Roles(NamedTuple):
    """The names of the variances of a network by their role in a phase diagram."""

    hidden: tuple[str, ...]
    on_data: tuple[str, ...]
    biases: tuple[str, ...]
    without: tuple[str, ...]


def moving(
    make: Callable[[int], Network], depth: int, inputs: list[np.ndarray], tied: Tied | None, *, biased: bool
) -> Callable[[int], Groups]:
    """The names that var_w and var_b stand for in the network of each depth up to `depth`.

    `tied` has groups of names for var_w and for var_b, in this order or by axis; None takes them by their
    roles. If var_b is ever above 0 (`biased`), it must move something.
    """
    roles = cache(lambda d: _roles(make(d), inputs))
    deepest = roles(depth)
    names = tuple(chain(*deepest))
    if tied is None:
        added = len(deepest.hidden) - len(roles(depth - 1).hidden)
        first_on_data = len(deepest.hidden) < added * depth

        def groups(d: int) -> Groups:
            matrices = roles(d).hidden + (roles(d).on_data if first_on_data else ())
            return {"var_w": matrices, "var_b": roles(d).biases}
    else:
        patterns = _by_axis(tied)
        tied_groups(patterns.values(), names)  # refuses names that the deepest network lacks

        def groups(d: int) -> Groups:
            members = tied_groups(patterns.values(), chain(*roles(d)), partial=True)
            return dict(zip(patterns, members, strict=True))

    for axis, what in (("var_w", "hidden matrix"), ("var_b", "bias")):
        if not groups(depth)[axis] and (biased or axis == "var_w"):
            raise DataError(
                f"{axis} moves nothing: the network has no {what}, or none is tied to it",
                remedy=f"Name those that move, as in tied=[['W*'], ['b*']]; known: {', '.join(names)}."
                + (" Or leave var_b at 0." if axis == "var_b" else ""),
            )
    return cache(groups)


def _roles(net: Network, inputs: list[np.ndarray]) -> Roles:
    read = joint(net, inputs)
    program = read.tangent.source if read.tangent else read.program
    readouts = {term.readout for output in program.outputs for term in output.terms}
    hidden, on_data, biases, without = [], [], [], []
    for s in program.inputs:
        if isinstance(s.law, MatrixLaw) and isinstance(s.type, A):
            (on_data if isinstance(s.type.cols, int) else hidden).append(s.name)
        elif isinstance(s.law, Normal) and isinstance(s.law.cov, float) and not s.law.each:
            is_bias = s.name not in readouts and not np.any(s.law.mean)
            (biases if is_bias else without).append(s.name)
    return Roles(tuple(hidden), tuple(on_data), tuple(biases), tuple(without))


def _by_axis(tied: Tied) -> dict[str, Iterable[str]]:
    """The groups of var_w and var_b; an axis without a group moves nothing."""
    if isinstance(tied, Mapping):
        for axis in tied:
            if axis not in AXES:
                raise DataError(f"tied[{shown(axis)}]", remedy="Tie names to var_w and var_b.")
        return {axis: tied.get(axis, ()) for axis in AXES}
    groups = list(tied) if isinstance(tied, list | tuple) else []
    if not 1 <= len(groups) <= len(AXES):
        raise DataError(
            f"tied={shown(tied)}",
            remedy="Give a group of names or patterns for var_w, and one for var_b: [['W*'], ['b*']].",
        )
    return dict(zip(AXES, [*groups, ()], strict=False))
