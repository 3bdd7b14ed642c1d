"""netsor: write a neural network once; read it as a program, as its infinite-width limit, as a simulation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from netsor import zoo
from netsor.build import *  # noqa: F403
from netsor.build import __all__ as _build
from netsor.errors import NetsorError, NetsorWarning
from netsor.lang import Program, parse
from netsor.limits import Options, kernel, limit, ntk
from netsor.simulation import empirical_kernel, empirical_ntk, simulate
from netsor.verify import verify

if TYPE_CHECKING:
    from netsor import gp, plots
    from netsor.models import check_import as check_import
    from netsor.models import from_equinox as from_equinox
    from netsor.models import from_flax as from_flax
    from netsor.models import from_jax as from_jax
    from netsor.models import from_keras as from_keras
    from netsor.models import from_torch as from_torch
    from netsor.models import report_laws as report_laws
    from netsor.reports import report as report

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
__all__ += _build
_MODELS = ("check_import", "report_laws", "from_torch", "from_jax", "from_flax", "from_equinox", "from_keras")
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`ns.gp`, `ns.plots` and the readers of models are loaded when they are first used: SciPy's optimisers
    and other libraries take longer than all the rest."""
    if name in ("gp", "plots"):
        return import_module(f"netsor.{name}")
    if name == "report":
        return import_module("netsor.reports").report
    if name in _MODELS:  # not in __all__: `from netsor import *` must not import PyTorch
        import netsor.models

        return getattr(netsor.models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
