"""The infinite-width limit of a program.

| idea | where |
| --- | --- |
| `ns.kernel`, `ns.ntk`, `ns.limit`, their options and inputs | kernel, limit, options, inputs |
| tiles of a kernel for stores, kernels at held sample points for tuning | kernel_tiles |
| the plan, and its execution | computation, plan, notes |
| the paper's rules for mean and covariance | rules/ |
| the expectations in them: the ladder of methods | methods/ |
| which families of variables are sampled, decided before anything is recorded | sampled_families |
| expectations that no method has: samples | sampling/ |
| errors: probes perturb the steps of a computation by their error bounds | error_probes, result |
| what is recorded: steps of arrays without values | tape/ |
| where it runs | on_numpy/ (and Numba), on_jax/, on_arrays (any other library) |
| a matrix from its blocks, in tiles | assembly, tiling |
| sequences of different lengths as one group | padding |
| sums over the windows of convolutions | window_sums |
| whether the limit exists | finite |
"""

from netsor.limits.kernel import KernelFn, TangentKernelFn, kernel, ntk
from netsor.limits.limit import Limit, limit
from netsor.limits.options import Options
from netsor.limits.plan import Plan
from netsor.limits.result import Result

__all__ = ["KernelFn", "Limit", "Options", "Plan", "Result", "TangentKernelFn", "kernel", "limit", "ntk"]
