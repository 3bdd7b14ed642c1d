"""The identity of a store: program, options, inputs and tiles, which determine all its numbers, as JSON.

A store contains no code and no pickles. The error about a store of another kernel names the differences.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import netsor
from netsor.build.network import program
from netsor.build.user_functions import UserFunction
from netsor.errors import DataError
from netsor.files import read_regular
from netsor.gp.stores import input_sets as sets
from netsor.lang.program import Program
from netsor.limits import KernelFn, Options
from netsor.limits.kernel import TangentKernelFn
from netsor.limits.tiling import Cut

FORMAT = 2


def identity(
    kernel: KernelFn,
    x: Any,
    y: Any,
    cut: Cut,
    tile: tuple[int, int],
    params: Mapping[str, float],
    landmarks: int = 0,
) -> dict[str, Any]:
    """Return the facts that a store records about its kernel and inputs."""
    both = {"x": x} if y is None else {"x": x, "y": y}
    return {
        "format": FORMAT,
        "netsor": netsor.__version__,
        "kernels": ["NNGP", "K"] if isinstance(kernel, TangentKernelFn) and not landmarks else ["K"],
        **of_kernel(kernel, [x for inputs in both.values() for x in of_each_shape(inputs)]),
        "params": {name: float(value) for name, value in sorted(params.items())},
        "inputs": {name: {"count": len(z), "sha256": sets.digest(z)} for name, z in both.items()},
        "cut": asdict(cut),
        "tile": list(tile),
        "landmarks": landmarks,
    }


def of_kernel(kernel: KernelFn, inputs: list[Any]) -> dict[str, Any]:
    """Return the facts of a kernel; `inputs` has one input of each shape."""
    options = asdict(kernel.options)
    for name in ("progress", "memory", "confirm"):  # these do not affect any number
        del options[name]
    options["dtype"] = np.dtype(kernel.options.dtype).str
    programs = [program(kernel.net, x) for x in inputs]
    # The digest of the inputs is separate, so that an error can tell a changed network from changed inputs.
    texts = [re.sub(r"^Data x(_\d+)* = .*\n", "", p.show(), flags=re.MULTILINE) for p in programs]
    functions = [functions_of(p) for p in programs]
    distinct = sorted({text + json.dumps(f) for text, f in zip(texts, functions, strict=True)})
    return {
        "kind": type(kernel).__name__,
        "network": kernel.net.name,
        "program": texts[0],  # without inputs
        "programs": hashlib.sha256("\n".join(distinct).encode()).hexdigest(),  # for all shapes
        "functions": functions[0],
        "options": options,
    }


def of_each_shape(inputs: Any) -> list[Any]:
    """Return the first input of each shape."""
    if isinstance(inputs, np.ndarray):
        return [inputs[0]]
    firsts: dict[Any, Any] = {}
    for x in inputs:
        firsts.setdefault(_shape(x), x)
    return list(firsts.values())


def _shape(x: Any) -> Any:
    return tuple(map(_shape, x)) if isinstance(x, tuple) else np.shape(x)


def functions_of(program: Program) -> dict[str, Any]:
    """Return a record of each user's function by name: digests of its code and constants, and of values."""
    records: dict[str, Any] = {}
    for op in program.user_operations:
        function: Any = op.fn  # type: ignore[attr-defined]
        name = next(name for k in count() if (name := f"{op.name}{k or ''}") not in records)
        records[name] = (function if isinstance(function, UserFunction) else function.fn).record
    return records


def options_of(facts: Mapping[str, Any]) -> Options:
    """Return the options of the kernel of a store."""
    return Options(**{**facts["options"], "dtype": np.dtype(facts["options"]["dtype"]).type})


def check_format(path: Path) -> None:
    """Raise a DataError for a folder that is no store, or a store of another format.

    The checksum of the file is not compared, because it depends on the format.
    """
    try:
        facts = json.loads(read_regular(path / "zarr.json"))["attributes"]["netsor"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"there is no store {path}", remedy="Stores are made by ns.gp.store(K, x, path)."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a store, or is damaged: {error}", remedy="Make it again.") from None
    except (LookupError, TypeError):
        facts = None
    if not isinstance(facts, dict) or "format" not in facts:
        raise DataError(f"{path} is not a store of netsor", remedy="Stores are made by ns.gp.store.")
    if facts["format"] != FORMAT:
        raise DataError(
            f"{path} has format {facts['format']}, written by netsor {facts.get('netsor')}",
            remedy=f"This is netsor {netsor.__version__}, which reads format {FORMAT}. Use that version, or "
            "compute the store anew.",
        )


def check_same_store(here: Mapping[str, Any], there: Mapping[str, Any], path: Path) -> None:
    """Raise a DataError if the facts of the kernel (`here`) differ from those of the store (`there`)."""
    remedy = "Give another path, or the network, inputs and options that the store was made with."
    check_same(here, there, f"{path} holds another kernel", remedy)


def check_same(here: Mapping[str, Any], there: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raise a DataError that names the differences between a kernel (`here`) and the one on disk, if any."""
    different = differences(here, there)
    if different:
        raise DataError(f"{what}: it differs in {different}", remedy=remedy + _rounding_hint(here, there))


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Describe the differences between a kernel and a stored one; "" if there are none."""
    keys = [key for key in here if here[key] != there.get(key)]
    # "programs" is a hash that contains the other two, and adds nothing where these differ.
    keys = [key for key in keys if key != "programs" or not {"program", "functions"} & {*keys}]
    return "; ".join(_difference(key, here[key], there.get(key)) for key in keys)


def _rounding_hint(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Explain rounding if functions of equal code differ in their values; "" otherwise."""
    mine, theirs = here["functions"], there.get("functions", {})
    common = mine.keys() & theirs.keys()
    if not any(mine[k] != theirs[k] and mine[k]["code"] == theirs[k]["code"] for k in common):
        return ""
    return (
        " Values of functions are compared bit for bit: another machine or another version of NumPy may "
        "round otherwise, and then the store is computed anew, or on the machine where it was begun."
    )


def _difference(key: str, here: Any, there: Any) -> str:
    """Describe one difference."""
    if isinstance(here, dict) and isinstance(there, dict):
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        return ", ".join(_difference(f"{key} {name}", here.get(name), there.get(name)) for name in names)
    if key.startswith("functions "):
        name, _, what = key.removeprefix("functions ").partition(" ")
        return f"what the function `{name}` {'does' if what == 'values' else 'is made of'}"
    if key == "program":
        mine, theirs = str(here).splitlines(), str(there).splitlines()
        pairs = zip(mine + [""] * len(theirs), theirs + [""] * len(mine), strict=False)
        here, there = next((a[:80], b[:80]) for a, b in pairs if a != b)
    if key.endswith("sha256"):
        return f"the values of the {key.removesuffix(' sha256')}"
    if key == "programs":
        return "the programs of inputs of other shapes"
    return f"{key} ({here!r} here, {there!r} there)" if len(f"{here}{there}") < 200 else key
