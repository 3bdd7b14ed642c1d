"""Programs at finite width."""

from netsor.simulation.forward import forward
from netsor.simulation.gradients import empirical_ntk
from netsor.simulation.simulate import empirical_kernel, simulate
from netsor.simulation.weights import draw

__all__ = ["draw", "empirical_kernel", "empirical_ntk", "forward", "simulate"]
