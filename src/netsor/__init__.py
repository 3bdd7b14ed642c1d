"""netsor: write a neural network once; read it as a program, as its infinite-width limit, as a simulation."""

from typing import TYPE_CHECKING, Any

from netsor import zoo
from netsor.build import *  # noqa: F403
from netsor.build import __all__ as _build
from netsor.errors import NetsorError
from netsor.lang import Program, parse
from netsor.limits import Options, kernel, limit
from netsor.simulation import empirical_kernel, simulate
from netsor.verify import verify

if TYPE_CHECKING:
    from netsor import gp

__all__ = [
    "NetsorError",
    "Options",
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


def __getattr__(name: str) -> Any:
    """`ns.gp` is loaded when it is first used: SciPy's optimisers take longer than all the rest."""
    if name == "gp":
        import netsor.gp

        return netsor.gp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
