"""Models of PyTorch and JAX as networks: built at two widths, the axes that differ go to infinity.

| file | what it holds |
| --- | --- |
| `pytorch`, `jaxpr` | `ns.from_torch`; `ns.from_jax` and the libraries on JAX |
| `network` | models as networks: read for each shape of inputs |
| `reader`, `values` | the state of one reading; the symbolic operands in it |
| `operations` | rules of operations that both libraries share |
| `axes`, `scalars` | axes and numbers of a model at its two widths |
| `laws` | the laws of parameters, from their initialisers |
| `check` | the check of an import by the model's own weights |
| `report` | `ns.report_laws`: the table of a model's parameters |
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsor.models.check import check_import
    from netsor.models.jaxpr import from_equinox, from_flax, from_jax, from_keras
    from netsor.models.pytorch import from_torch
    from netsor.models.report import report_laws

__all__ = ["check_import", "from_equinox", "from_flax", "from_jax", "from_keras", "from_torch", "report_laws"]

HOMES = {
    "check_import": "check",
    "from_equinox": "jaxpr",
    "from_flax": "jaxpr",
    "from_jax": "jaxpr",
    "from_keras": "jaxpr",
    "from_torch": "pytorch",
    "report_laws": "report",
}


def __getattr__(name: str) -> Any:
    """Load each function at its first use, so that only the library in use is imported."""
    from importlib import import_module

    libraries = {"torch": "PyTorch", "jax": "JAX"}
    if name in HOMES:
        try:
            return getattr(import_module(f"netsor.models.{HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name not in libraries:
                raise
            raise ModuleNotFoundError(
                f"ns.{name} needs {libraries[error.name]}: pip install 'netsor[{error.name}]'",
                name=error.name,
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
