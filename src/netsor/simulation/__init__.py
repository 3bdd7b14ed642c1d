"""Simulation of programs at finite width.

| file | what it holds |
| --- | --- |
| `simulate` | `ns.simulate` and `ns.empirical_kernel`: many random networks |
| `gradients` | `ns.empirical_ntk`, by reverse differentiation |
| `forward` | the values of all variables, for given weights |
| `weights` | widths, and random weights with the laws of the Input statements |
"""

from netsor.simulation.forward import forward
from netsor.simulation.gradients import empirical_ntk
from netsor.simulation.simulate import empirical_kernel, simulate
from netsor.simulation.weights import draw

__all__ = ["draw", "empirical_kernel", "empirical_ntk", "forward", "simulate"]
