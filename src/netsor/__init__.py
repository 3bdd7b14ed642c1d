"""netsor: write a neural network once; read it as a program, as its infinite-width limit, as a simulation."""

from netsor import gp, zoo
from netsor.build import *  # noqa: F403
from netsor.build import __all__ as _build
from netsor.errors import NetsorError
from netsor.lang import Program, parse
from netsor.limits import kernel, limit
from netsor.simulation import empirical_kernel, simulate
from netsor.verify import verify

__all__ = [
    "NetsorError",
    "Program",
    "empirical_kernel",
    "gp",
    "kernel",
    "limit",
    "parse",
    "simulate",
    "verify",
    "zoo",
]
__all__ += _build
__version__ = "0.1.0"
