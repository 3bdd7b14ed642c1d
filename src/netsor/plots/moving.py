"""Which variances a phase diagram moves: by what a parameter does in the program, never by its name.

var_w is the variance of each hidden matrix, var_b that of each bias: a vector of mean 0. A readout is
neither, nor is a bias of the output: one layer more leaves them as they are. A matrix on data belongs to the
layers where it is the first of them (of `depth` matrices of an MLP one is on data), and not where all layers
have their matrices between widths (a residual network embeds its input in front of them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from netsor import arguments
from netsor.build.network import Network, joint
from netsor.errors import DataError
from netsor.gp.tied import tied_groups
from netsor.lang.program import MatrixLaw, Normal
from netsor.lang.types import A

__all__ = ["Groups", "moving"]

AXES = ("var_w", "var_b")
Groups = Mapping[str, tuple[str, ...]]  # the names of the variances that each axis moves


@dataclass(frozen=True)
class Roles:
    """The names of the variances of a network, by what they are in its program; `known`: all of them."""

    known: tuple[str, ...]
    hidden: tuple[str, ...]
    on_data: tuple[str, ...]
    biases: tuple[str, ...]


def moving(
    make: Callable[[int], Network], depth: int, inputs: list[Any], tied: Any, *, biased: bool
) -> Callable[[int], Groups]:
    """The names that var_w and var_b stand for in the network of each depth up to `depth`.

    tied    groups of names for var_w and for var_b, in this order or by axis; None: by their roles
    biased  whether var_b is ever above 0: then there must be something that it moves
    """
    roles = cache(lambda d: _roles(make(d), inputs))
    deepest = roles(depth)
    if tied is None:
        added = len(deepest.hidden) - len(roles(depth - 1).hidden)
        first = len(deepest.hidden) < added * depth  # the first layer has its matrices on data

        def groups(d: int) -> Groups:
            matrices = roles(d).hidden + (roles(d).on_data if first else ())
            return {"var_w": matrices, "var_b": roles(d).biases}
    else:
        given = _by_axis(tied)
        tied_groups(given.values(), deepest.known)  # all of them are there at the largest depth

        def groups(d: int) -> Groups:
            names = tied_groups(given.values(), roles(d).known, partial=True)
            return dict(zip(given, names, strict=True))

    _require(groups(depth), deepest, biased)
    return cache(groups)


def _roles(net: Network, inputs: list[Any]) -> Roles:
    read = joint(net, inputs)
    program = read.tangent.source if read.tangent else read.program
    readouts = {term.readout for output in program.outputs for term in output.terms}
    hidden, on_data, biases, other = [], [], [], []
    for s in program.inputs:
        if isinstance(s.law, MatrixLaw) and isinstance(s.type, A):
            (on_data if isinstance(s.type.cols, int) else hidden).append(s.name)
        elif isinstance(s.law, Normal) and isinstance(s.law.cov, float) and not s.law.each:
            is_bias = s.name not in readouts and not np.any(s.law.mean)
            (biases if is_bias else other).append(s.name)
    return Roles((*hidden, *on_data, *biases, *other), tuple(hidden), tuple(on_data), tuple(biases))


def _by_axis(tied: Any) -> dict[str, Any]:
    """The groups of var_w and var_b as they were given; an axis without a group moves nothing."""
    if isinstance(tied, Mapping):
        unknown = [axis for axis in tied if axis not in AXES]
        if unknown:
            raise DataError(f"tied[{arguments.shown(unknown[0])}]", remedy="Tie names to var_w and var_b.")
        return {axis: tied.get(axis, ()) for axis in AXES}
    groups = list(tied) if isinstance(tied, list | tuple) else []
    if not 1 <= len(groups) <= len(AXES):
        raise DataError(
            f"tied={arguments.shown(tied)}",
            remedy="Give a group of names or patterns for var_w, and one for var_b: [['W*'], ['b*']].",
        )
    return dict(zip(AXES, [*groups, ()], strict=False))


def _require(groups: Groups, roles: Roles, biased: bool) -> None:
    """Refuse a diagram over a variance that nothing in the network has."""
    for axis, what in (("var_w", "hidden matrix"), ("var_b", "bias")):
        if not groups[axis] and (biased or axis == "var_w"):
            raise DataError(
                f"{axis} moves nothing: the network has no {what}, or none is tied to it",
                remedy=f"Name those that move, as in tied=[['W*'], ['b*']]; known: {', '.join(roles.known)}."
                + (" Or leave var_b at 0." if axis == "var_b" else ""),
            )
