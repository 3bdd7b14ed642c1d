"""What decides every number of a store, as JSON: the program, the options, the inputs, how it is cut.

No code and no pickle is stored. A store that belongs to another kernel is refused by name of what differs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import netsor
from netsor.build.network import Network, program
from netsor.build.probes import UserFunction
from netsor.errors import DataError
from netsor.gp.stores import inputs as sets
from netsor.lang.program import Program
from netsor.limits import KernelFn, Options
from netsor.limits.kernel import TangentKernelFn
from netsor.limits.tiling import Cut

__all__ = [
    "FORMAT",
    "check_format",
    "check_same",
    "check_same_store",
    "differences",
    "functions_of",
    "identity",
    "of_each_shape",
    "of_kernel",
    "options_of",
]

FORMAT = 2
ROUNDING = (
    " Values of functions are compared bit for bit: another machine or another version of NumPy may round "
    "otherwise, and then the store is computed anew, or on the machine where it was begun."
)
IRRELEVANT = ("progress", "memory", "confirm")  # options that change no number


def identity(
    kernel: KernelFn,
    x: Any,
    y: Any,
    cut: Cut,
    tile: tuple[int, int],
    params: Mapping[str, float],
    landmarks: int = 0,
) -> dict[str, Any]:
    """What a store is of."""
    both = {"x": x} if y is None else {"x": x, "y": y}
    return {
        "format": FORMAT,
        "netsor": netsor.__version__,
        "kernels": ["NNGP", "K"] if isinstance(kernel, TangentKernelFn) and not landmarks else ["K"],
        **of_kernel(kernel, [one for some in both.values() for one in of_each_shape(some)]),
        "params": {name: float(value) for name, value in sorted(params.items())},
        "inputs": {name: {"count": len(z), "sha256": sets.digest(z)} for name, z in both.items()},
        "cut": asdict(cut),
        "tile": list(tile),
        "landmarks": landmarks,
    }


def of_kernel(kernel: KernelFn, inputs: list[Any]) -> dict[str, Any]:
    """What a store knows of its kernel, from inputs of all shapes."""
    options = {name: value for name, value in asdict(kernel.options).items() if name not in IRRELEVANT}
    options["dtype"] = np.dtype(kernel.options.dtype).str
    kind = {"kind": type(kernel).__name__, "network": kernel.net.name}
    return {**kind, **_programs(kernel.net, inputs), "options": options}


def of_each_shape(inputs: Any) -> Iterator[Any]:
    """The first input of each shape."""
    if isinstance(inputs, np.ndarray):
        yield inputs[0]
        return
    seen = set()
    for x in inputs:
        shape = repr(_shape(x))
        if shape not in seen:
            seen.add(shape)
            yield x


def _shape(x: Any) -> Any:
    return tuple(map(_shape, x)) if isinstance(x, tuple) else np.shape(x)


def _programs(net: Network, inputs: list[Any]) -> dict[str, Any]:
    """The text of the network's program without its inputs, and a hash of those on inputs of other shapes."""
    found = [program(net, x) for x in inputs]
    texts = [re.sub(r"^Data x(_\d+)* = .*\n", "", made.show(), flags=re.MULTILINE) for made in found]
    functions = [functions_of(made) for made in found]
    both = sorted({text + json.dumps(own) for text, own in zip(texts, functions, strict=True)})
    whole = hashlib.sha256("\n".join(both).encode()).hexdigest()
    return {"program": texts[0], "programs": whole, "functions": functions[0]}


def functions_of(made: Program) -> dict[str, Any]:
    """The user's functions by name: digests of their code with the numbers that it holds, and of values."""
    records: dict[str, Any] = {}
    for op in made.user_operations:
        function: Any = op.fn  # type: ignore[attr-defined]
        name = next(name for k in count() if (name := f"{op.name}{k or ''}") not in records)
        records[name] = (function if isinstance(function, UserFunction) else function.fn).record
    return records


def options_of(facts: Mapping[str, Any]) -> Options:
    """The options of the kernel of a store."""
    return Options(**{**facts["options"], "dtype": np.dtype(facts["options"]["dtype"]).type})


def check_format(facts: Any, path: Path) -> None:
    """Refuse what is no store, and one of a later version."""
    if not isinstance(facts, dict) or "format" not in facts:
        raise DataError(f"{path} is not a store of netsor", remedy="Stores are made by ns.gp.store.")
    if facts["format"] != FORMAT:
        raise DataError(
            f"{path} has format {facts['format']}, written by netsor {facts.get('netsor')}",
            remedy=f"This is netsor {netsor.__version__}, which reads format {FORMAT}. Use that version, or "
            "compute the store anew.",
        )


def check_same_store(here: Mapping[str, Any], there: Mapping[str, Any], path: Path) -> None:
    """Refuse a store of another kernel."""
    remedy = "Give another path, or the network, inputs and options that the store was made with."
    check_same(here, there, f"{path} holds another kernel", remedy)


def check_same(here: Mapping[str, Any], there: Mapping[str, Any], what: str, remedy: str) -> None:
    """Refuse a kernel that is not the one on disk, and say what differs.

    here, there   the facts of the kernel and of what is on disk
    what, remedy  the message of the error, without the differences
    """
    different = differences(here, there)
    if different:
        raise DataError(f"{what}: it differs in {different}", remedy=remedy + _rounding_hint(here, there))


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """What differs between a kernel here and one that was stored, in words, or nothing."""
    keys = [key for key in here if here[key] != there.get(key)]
    keys = [key for key in keys if key != "programs" or not {"program", "functions"} & {*keys}]
    return "; ".join(_difference(key, here[key], there.get(key)) for key in keys)


def _rounding_hint(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """A hint at rounding if functions of the same code differ in their values, else nothing."""
    mine, theirs = here["functions"], there.get("functions", {})
    same = [name for name in mine.keys() & theirs.keys() if mine[name]["code"] == theirs[name]["code"]]
    return ROUNDING if any(mine[name] != theirs[name] for name in same) else ""


def _difference(key: str, here: Any, there: Any) -> str:
    """What differs, in a few words."""
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
