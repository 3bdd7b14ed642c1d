"""Special functions that the array API standard leaves out, for each array library that has them."""

from __future__ import annotations

import importlib
from typing import Any

from array_api_compat import is_jax_array, is_numpy_array, is_torch_array

from netsor.lang.libraries import array_namespace

__all__ = ["erf", "expit"]


def _special(name: str, x: Any) -> Any:
    if is_jax_array(x):
        return getattr(importlib.import_module("jax.scipy.special"), name)(x)
    if is_torch_array(x):
        return getattr(importlib.import_module("torch.special"), name)(x)
    function = getattr(importlib.import_module("scipy.special"), name)
    if is_numpy_array(x):
        return function(x)
    xp = array_namespace(x)
    return xp.asarray(function(importlib.import_module("numpy").asarray(x)))


def erf(x: Any) -> Any:
    """The error function."""
    return _special("erf", x)


def expit(x: Any) -> Any:
    """The logistic function 1 / (1 + exp(-x))."""
    return _special("expit", x)
