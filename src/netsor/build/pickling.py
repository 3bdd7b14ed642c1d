"""Pickle functions: by name where pickle can, else by value, which needs cloudpickle."""

from __future__ import annotations

import importlib.util
import pickle
from dataclasses import dataclass
from typing import Any

from netsor.errors import BuildError


def portable(value: object) -> Any:
    """Wrap functions and their parameters so that pickle can store them.

    pickle takes a function by its name in a module; cloudpickle takes the code of lambdas and inner
    functions, and objects that they share stay shared among themselves.
    """
    try:
        pickle.dumps(value)
    except (AttributeError, TypeError, pickle.PicklingError):
        return _ByValue(value)
    return value


@dataclass(frozen=True)
class _ByValue:
    """A value that cloudpickle stores; loading returns the value itself."""

    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        if not importlib.util.find_spec("cloudpickle"):
            raise BuildError(
                "a lambda or a function inside another one cannot be pickled by name",
                remedy='Define it in a module, or install cloudpickle: pip install "netsor[scale]".',
            )
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(self.value),)
