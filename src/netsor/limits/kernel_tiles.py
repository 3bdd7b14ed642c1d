"""Functions of a kernel for stores and tuning: its tiles, and values at fixed sample points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.points.landmark_loadings import Landmarks
from netsor.limits.computation import Computation
from netsor.limits.inputs import Inputs, InputSet
from netsor.limits.kernel import KernelFn
from netsor.limits.result import Result
from netsor.limits.sampling.drawing import SharedState
from netsor.limits.tiling import Cut

Params = Mapping[str, Any]


def tile_sizes(kernel: KernelFn, x: InputSet, y: InputSet | None, params: Params) -> Cut | None:
    """Return the tiles of a kernel, from shapes alone; None if something must be sampled."""
    inputs = Inputs(x, y, params).in_numpy()
    joint = inputs.joint_of_shapes(kernel.net)
    used = kernel._used_params(inputs.params, joint)
    exact = Computation(joint, kernel.options, tuple(used), inputs.split).exact(errors=True)
    return None if exact is None else exact[1].cut


def read_network(kernel: KernelFn, x: InputSet, y: InputSet | None, cut: Cut, params: Params) -> None:
    """Read the network on these inputs, so that an unpickled kernel does not have to read it again."""
    kernel._computation(Inputs(x, y, params).in_numpy(), cut)


def tile(kernel: KernelFn, x: InputSet, y: InputSet | None, cut: Cut, params: Params) -> Result:
    """Return a part of a kernel made of whole tiles: the same numbers as in the whole, to the last bit."""

    def run(computation: Computation, data: Params, used: Params) -> Result:
        rows = computation.rows
        if computation.program.noise and rows.left_size + rows.right_size * (y is not None) > rows.count:
            raise LimitError(
                "a part of the kernel of a network with noise and several outputs",
                remedy="The outputs of one input, which share their noise, may stand in two parts. Compute "
                "the kernel in memory, or of one output.",
            )
        return computation.result(data, used)

    return kernel._result(Inputs(x, y, params), run, cut)


def can_have_landmarks(kernel: KernelFn, x: InputSet) -> bool:
    """Return whether the kernel is sampled, and inputs like these can be drawn given landmarks."""
    computation, _, _ = kernel._computation(Inputs(x).in_numpy())
    return computation.exact_setting() is None and computation.sampled.has_landmarks


def landmark_tile(kernel: KernelFn, x: InputSet, landmarks: Landmarks, params: Params) -> Result:
    """Return the sampled kernel of landmarks and other inputs; each is drawn as in any other block."""

    def run(computation: Computation, data: Params, used: Params) -> Result:
        return computation.sampled.part(computation.given(data, used), landmarks)

    return kernel._result(Inputs(x, params=params), run)


def of_params(kernel: KernelFn, x: InputSet) -> Callable[[Params], np.ndarray]:
    """Return K(x) as a function of the variances, which is smooth even if the kernel is sampled.

    The first call fixes what sampling chooses by the numbers: directions, and the order of variables.

    >>> import numpy as np, netsor as ns
    >>> at = of_params(ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0)), np.eye(2))
    >>> at({"v": 1.0})[0, 0].round(3), at({"v": 2.0})[0, 0].round(3)
    (np.float64(0.25), np.float64(0.5))
    """
    choices = SharedState(fixed={})

    def matrix(params: Params) -> np.ndarray:
        computation, data, used = kernel._computation(Inputs(x, params=params).in_numpy())
        return computation.value(data, {name: float(v) for name, v in used.items()}, choices)

    return matrix
