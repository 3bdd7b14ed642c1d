"""What each side computes: `load` imports a side's library, `make` gives a function from nothing to a kernel.

Runs in the environment of its side, so nothing but NumPy is imported at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

__all__ = ["MODULES", "SIDES", "load", "make"]

Spec = Mapping[str, Any]
Inputs = Mapping[str, np.ndarray]
MODULES = {
    "netsor": "netsor",
    "netsor-jax": "netsor",
    "netsor-nngp": "netsor",
    "neural-tangents": "neural_tangents",
    "plain": "plain",
}


def load(side: str) -> None:
    """Import the side's library, and the compiler that it uses: JAX comes with its own."""
    import_module(MODULES[side])
    if side in ("netsor", "netsor-nngp") and find_spec("numba"):
        import_module("numba")


def make(side: str, spec: Spec, inputs: Inputs) -> Callable[[], np.ndarray]:
    """The computation of a piece of work, ready to be called."""
    data = inputs["x"] if "x" in inputs else [inputs[f"x{i}"] for i in range(len(inputs))]
    dtype = np.dtype(spec.get("dtype", "float64"))
    if isinstance(data, np.ndarray):
        data = data.astype(dtype)
    return SIDES[side](spec["kind"], dict(spec.get("options", {})), data, dtype)


def netsor_side(kind: str, options: dict[str, Any], data: Any, dtype: np.dtype) -> Callable[[], np.ndarray]:
    import netsor as ns

    settings = {key: options.pop(key) for key in ("tol",) if key in options}
    of = ns.ntk if options.pop("tangent", False) else ns.kernel
    if "phi" in options:
        options["phi"] = getattr(ns, options["phi"])
    options.pop("degree", None)
    net = getattr(ns.zoo, kind)(**options)
    K = of(net, dtype=dtype, **settings)
    return lambda: np.asarray(K(data))


def nngp_side(kind: str, options: dict[str, Any], data: Any, dtype: np.dtype) -> Callable[[], np.ndarray]:
    """The kernel of the network itself, where the other side computes its tangent kernel."""
    return netsor_side(kind, {**options, "tangent": False}, data, dtype)


def netsor_jax_side(
    kind: str, options: dict[str, Any], data: Any, dtype: np.dtype
) -> Callable[[], np.ndarray]:
    """The same kernel, compiled by JAX."""
    import netsor as ns

    jax = import_module("jax")
    jax.config.update("jax_enable_x64", dtype == np.float64)
    if "phi" in options:
        options["phi"] = getattr(ns, options["phi"])
    K = ns.kernel(getattr(ns.zoo, kind)(**options), dtype=dtype)
    compiled, array = jax.jit(K), jax.numpy.asarray(data)
    return lambda: np.asarray(compiled(array))


def neural_tangents_side(
    kind: str, options: dict[str, Any], data: Any, dtype: np.dtype
) -> Callable[[], np.ndarray]:
    jax = import_module("jax")
    stax = import_module("neural_tangents").stax
    jax.config.update("jax_enable_x64", dtype == np.float64)
    phi = {
        "relu": lambda: stax.Relu(),
        "erf": lambda: stax.Erf(),
        "gelu": lambda: stax.Gelu(),
        "tanh": lambda: stax.ElementwiseNumerical(jax.numpy.tanh, deg=options.get("degree", 25)),
    }[options.get("phi", "relu")]
    readout = stax.Dense(1, W_std=1.0, b_std=0.0)
    if kind == "mlp":
        layers = [stax.Dense(1, W_std=1.0, b_std=1.0), phi()] * options["depth"]
    else:
        layers = [stax.Conv(1, (3, 3), padding="SAME", W_std=1.0, b_std=1.0), phi()] * options["depth"]
        layers.append(stax.GlobalAvgPool() if options["readout"] == "gap" else stax.Flatten())
    kernel = stax.serial(*layers, readout)[2]
    compiled = jax.jit(lambda x: kernel(x, None, "ntk" if options.get("tangent") else "nngp"))
    return lambda: np.asarray(compiled(data))


def plain_side(kind: str, options: dict[str, Any], data: Any, dtype: np.dtype) -> Callable[[], np.ndarray]:
    plain = import_module("plain")
    names = {"simple_rnn": "rnn", "batchnorm_mlp": "batchnorm"}
    options.pop("tol", None)
    compute = getattr(plain, names.get(kind, kind))
    return lambda: compute(list(data), **options)


SIDES: dict[str, Callable[..., Callable[[], np.ndarray]]] = {
    "netsor": netsor_side,
    "netsor-jax": netsor_jax_side,
    "netsor-nngp": nngp_side,
    "neural-tangents": neural_tangents_side,
    "plain": plain_side,
}
