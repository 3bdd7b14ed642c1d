"""Programs at finite width."""

from netsor.simulation.forward import forward
from netsor.simulation.simulate import empirical_kernel, simulate
from netsor.simulation.weights import draw

__all__ = ["draw", "empirical_kernel", "forward", "simulate"]
