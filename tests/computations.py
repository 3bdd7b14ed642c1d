"""What is behind a kernel: the computation for inputs of some shapes, and its recording."""

from __future__ import annotations

from typing import Any

from netsor.limits.computation import Computation
from netsor.limits.inputs import Inputs
from netsor.limits.kernel import KernelFn
from netsor.limits.on_numpy.recording import Recording

__all__ = ["computation", "recording"]


def computation(kernel: KernelFn, x: Any, y: Any = None) -> Computation:
    """What a kernel keeps for inputs of such shapes."""
    made, _, _ = kernel._computation(Inputs(x, y, {}).in_numpy())
    return made


def recording(kernel: KernelFn, x: Any, y: Any = None) -> Recording:
    """The exact computation without errors, as it is recorded for a first call."""
    found = computation(KernelFn(kernel.net, kernel.options), x, y).exact(errors=False)
    assert found is not None, "something must be sampled"
    return found[1]
