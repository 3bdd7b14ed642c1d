"""The infinite-width limit of a program.

| idea | files |
| --- | --- |
| `ns.kernel`, `ns.limit`, what to compute how | kernel, limit, run, inputs, plan |
| sequences of different lengths as one group | padding |
| the recursion: covariances, second and first moments | engine, leaves, outputs, pairs, fit |
| expectations of products, method by method | forms, expectation, parallel, normalisation, low_dimension |
| recorded steps, tiles of pairs, compiled loops (NumPy) | traced, tape, tiles, places, fused, loops |
| recorded steps as batches and loops of JAX | graph, batches, rolled, assembly, scanned |
| sums over the windows of convolutions | shifts, sliding |
| sampling: draws pair by pair, or all moments in tables | sampled, repeats, averages; schedule, scheduling, |
| | vectors, variables, moments, workspace, shares, draws, recursions, loadings, axes |
| any other array library, all at once | matrix |
"""

from netsor.limits.kernel import KernelFn, kernel
from netsor.limits.limit import Limit, limit
from netsor.limits.run import Options, Result

__all__ = ["KernelFn", "Limit", "Options", "Result", "kernel", "limit"]
