"""Write a neural network once; read it as a program, as its infinite-width limit, or as a simulation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from netsor import build, zoo
from netsor.build import *  # noqa: F403
from netsor.build import abs as abs
from netsor.build import max as max
from netsor.build import min as min
from netsor.build import sum as sum
from netsor.errors import NetsorError, NetsorWarning
from netsor.lang import Program, parse
from netsor.limits import Options, kernel, limit, ntk
from netsor.simulation import empirical_kernel, empirical_ntk, simulate
from netsor.verify import verify

if TYPE_CHECKING:
    from netsor import gp, plots
    from netsor.models import *  # noqa: F403
    from netsor.reports import report

__all__ = [
    "NetsorError",
    "NetsorWarning",
    "Options",
    "Program",
    "empirical_kernel",
    "empirical_ntk",
    "gp",
    "kernel",
    "limit",
    "ntk",
    "parse",
    "plots",
    "report",
    "simulate",
    "verify",
    "zoo",
]
__all__ += build.__all__
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `ns.gp`, `ns.plots`, `ns.report` and the readers of models when they are first used.

    They need SciPy's optimisers and other libraries that take longer to import than everything else.
    """
    if name in ("gp", "plots"):
        return import_module(f"netsor.{name}")
    if name == "report":
        return import_module("netsor.reports").report
    # The readers are not in __all__, because `from netsor import *` must not import PyTorch.
    if name in ("check_import", "report_laws") or name.startswith("from_"):
        return getattr(import_module("netsor.models"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
