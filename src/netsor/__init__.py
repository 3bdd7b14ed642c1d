"""netsor: write a neural network once; read it as a program, as its infinite-width limit, as a simulation."""

from typing import TYPE_CHECKING, Any

from netsor import zoo
from netsor.build import *  # noqa: F403
from netsor.build import __all__ as _build
from netsor.errors import NetsorError
from netsor.lang import Program, parse
from netsor.limits import kernel, limit
from netsor.simulation import empirical_kernel, simulate
from netsor.verify import verify

if TYPE_CHECKING:
    from netsor import gp
    from netsor.models import (
        check_import,
        from_equinox,
        from_flax,
        from_jax,
        from_keras,
        from_torch,
        report_laws,
    )

__all__ = [
    "NetsorError",
    "Program",
    "check_import",
    "empirical_kernel",
    "from_equinox",
    "from_flax",
    "from_jax",
    "from_keras",
    "from_torch",
    "gp",
    "kernel",
    "limit",
    "parse",
    "report_laws",
    "simulate",
    "verify",
    "zoo",
]
__all__ += _build
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`ns.gp` and the readers of models are loaded when they are first used: SciPy's optimisers and other
    libraries take longer than all the rest."""
    if name == "gp":
        import netsor.gp

        return netsor.gp
    if name in __all__:
        import netsor.models

        return getattr(netsor.models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
