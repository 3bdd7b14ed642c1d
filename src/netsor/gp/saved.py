"""Fitted models on disk: arrays and JSON in an .npz file, without code. The caller supplies the network."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from netsor.arguments import file, shown
from netsor.build.network import Network, require_network
from netsor.build.tangent_network import TangentNetwork
from netsor.errors import DataError
from netsor.files import read_sealed_npz, write_npz
from netsor.gp.classification import Classifier
from netsor.gp.regression import GP
from netsor.gp.stores.identity import check_same, of_each_shape, of_kernel, options_of
from netsor.gp.stores.input_sets import stacked
from netsor.limits import KernelFn
from netsor.limits.kernel import TangentKernelFn

FORMAT = 2
ARRAYS = ("y", "noise", "lower", "alpha")  # attributes of a model that are stored as arrays
NUMBERS = ("flat", "jitter", "exact", "sizes")  # ... and as JSON


def save(model: GP | Classifier, path: str | Path) -> None:
    """Write a model to a file, atomically.

    The file contains the data, the Cholesky factor, the variances, the options of the kernel, the text of the
    network's programs, and digests of the user's functions in them, which `load` compares.

    Parameters
    ----------
    model
        What `ns.gp.fit` or `ns.gp.classify` returned.
    path
        The path of an .npz file.
    """
    gp = model.gp if isinstance(model, Classifier) else model
    if not isinstance(gp, GP):
        raise DataError(
            f"{shown(model)} is not a fitted model", remedy="Give what ns.gp.fit or classify made."
        )
    arrays: dict[str, np.ndarray] = {name: getattr(gp, name) for name in ARRAYS}
    if isinstance(model, Classifier):
        arrays["classes"] = model.classes
    inputs = stacked(gp.x)
    if isinstance(inputs, np.ndarray):
        names: Any = _pack(inputs, "x", arrays)
    else:
        names = [_pack(x, f"x{i}", arrays) for i, x in enumerate(inputs)]
    facts = {
        "format": FORMAT,
        "kernel": _kernel_facts(gp.kernel, gp.x),
        "options": {**asdict(gp.kernel.options), "dtype": np.dtype(gp.kernel.options.dtype).str},
        "params": {name: float(value) for name, value in gp.params.items()},
        **{name: getattr(gp, name) for name in NUMBERS},
        "x": names,
    }
    arrays["facts"] = np.array(json.dumps(facts))
    there = file("path", path)
    if there.is_dir():
        raise DataError(f"{there} is a folder", remedy="Give the path of a file.")
    write_npz(there, arrays, sealed=True)


def _pack(x: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Add an input to `arrays`; return its name there, or the names of the parts of a tuple."""
    if isinstance(x, tuple):
        return {"tuple": [_pack(part, f"{name}_{k}", arrays) for k, part in enumerate(x)]}
    arrays[name] = np.asarray(x)
    return name


def _unpack(tree: Any, arrays: Any) -> Any:
    return tuple(_unpack(part, arrays) for part in tree["tuple"]) if isinstance(tree, dict) else arrays[tree]


def load(path: str | Path, net: Network) -> GP | Classifier:
    """Read a model that `save` wrote.

    Parameters
    ----------
    path
        The path of the file.
    net
        The network that the model was fitted with, built again: with the same layers, variances and names.
        User functions must have the same code and constants, and the same values at fixed points, bit for
        bit.

    Returns
    -------
    GP or Classifier
        The model, as it was saved.

    Raises
    ------
    DataError
        The file is damaged, or the network differs from the saved one.
    """
    arrays = read_sealed_npz(file("path", path), "Models are written by model.save(path).")
    if "facts" not in arrays:
        raise DataError(f"{path} is a model of a store", remedy="Predict with it by `netsor predict`.")
    facts = json.loads(str(arrays["facts"]))
    if facts.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {facts.get('format')!r}",
            remedy=f"This version reads format {FORMAT}. Fit the model again, or use the one that wrote it.",
        )
    tree = facts["x"]
    inputs = list(arrays["x"]) if tree == "x" else [_unpack(part, arrays) for part in tree]
    require_network(net)
    kernel = (TangentKernelFn if isinstance(net, TangentNetwork) else KernelFn)(net, options_of(facts))
    check_same(
        _kernel_facts(kernel, inputs),
        facts["kernel"],
        f"`{net.name}` is not the network that was saved",
        "Build the network with the same architecture, variances and functions as before.",
    )
    saved: dict[str, Any] = {name: arrays[name] for name in ARRAYS} | {name: facts[name] for name in NUMBERS}
    saved["sizes"] = tuple(facts["sizes"])
    gp = GP(kernel=kernel, params=facts["params"], x=inputs, **saved)
    return Classifier(gp, arrays["classes"]) if "classes" in arrays else gp


def _kernel_facts(kernel: KernelFn, inputs: list[Any]) -> dict[str, Any]:
    """The facts that `load` compares."""
    facts = of_kernel(kernel, of_each_shape(inputs))
    return {name: facts[name] for name in ("kind", "program", "functions", "programs")}
