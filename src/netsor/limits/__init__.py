"""The infinite-width limit of a program.

| idea | where |
| --- | --- |
| `ns.kernel`, `ns.ntk`, `ns.limit`, their options and inputs | kernel, limit, options, inputs |
| the plan, and carrying it out | computation, plan, notes |
| what is computed: covariances and moments by recursion | recursion/ |
| by which method: the ladder | methods/ |
| nearly equal inputs of steep functions | near/ |
| or sampled | sampling/ |
| its errors: how far those of its parts move it | nudges, bounds, result |
| what is recorded: steps of arrays without values | tape/ |
| on what it runs | on_numpy/ (and Numba), on_jax/, on_arrays (any other library) |
| a matrix from its blocks, in tiles | assembly, tiling |
| sequences of different lengths as one group | padding |
| sums over the windows of convolutions | windows/ |
"""

from netsor.limits.kernel import KernelFn, TangentKernelFn, kernel, ntk
from netsor.limits.limit import Limit, limit
from netsor.limits.options import Options
from netsor.limits.plan import Plan
from netsor.limits.result import Result

__all__ = ["KernelFn", "Limit", "Options", "Plan", "Result", "TangentKernelFn", "kernel", "limit", "ntk"]
