"""What the commands read: programs, networks in Python files, and data."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from netsor.build.network import Network
from netsor.build.trace import numbers
from netsor.errors import BuildError, DataError, NetsorError, ParseError
from netsor.files import DAMAGED
from netsor.lang import Program, parse

Inputs = tuple[Any, list[Any] | None, list[str]]  # a set, perhaps a second set, names of the first


def load_program(path: Path) -> Program:
    """Parse and check a file."""
    try:
        program = parse(path.read_text(encoding="utf-8"))
        program.check()
        return program
    except FileNotFoundError:
        raise ParseError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise ParseError(f"{path} is not a text file", remedy="A program is a text in UTF-8.") from None
    except NetsorError as error:
        # The message holds the place already, in the program and not in this file.
        raise type(error)(f"{path}: {error}") from None


def set_data(program: Program, settings: list[str]) -> Program:
    """The program with data replaced, by NAME=[1, 2] or NAME=FILE.npy."""
    data = dict(program.data)
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in data:
            names = ", ".join(data) or "none"
            raise DataError(f"the program has no data `{name}`", remedy=f"Its data: {names}.")
        try:
            array = load_array(Path(text)) if text.endswith(".npy") else json.loads(text)
        except (ValueError, RecursionError):
            remedy = f"Write --data '{name}=[1, 0.5]', or a .npy file."
            raise DataError(f"`{text:.60}` is not an array of numbers", remedy=remedy) from None
        data[name] = numbers(array, f"the data `{name}`")
    program = replace(program, data=data)
    program.check()
    return program


def load_network(target: str) -> Network:
    """The network of FILE.py:name; the file is run as a module."""
    remedy = "Its networks: {networks}. Decorate a function with @ns.network to make one."
    return _value_of(target, lambda value: isinstance(value, Network), "is no network", remedy)


def load_function(target: str) -> Callable[..., Any]:
    """The function of FILE.py:name, which makes networks."""
    remedy = "Give a function from the depth to a network: lambda depth: ns.zoo.mlp(depth)."
    return _value_of(
        target, lambda value: callable(value) and not isinstance(value, Network), "makes no networks", remedy
    )


def _value_of(target: str, fits: Callable[[object], bool], why: str, remedy: str) -> Any:
    """The value of FILE.py:name, if it fits."""
    file, _, name = target.rpartition(":")
    if not file.endswith(".py"):
        example = "Write FILE.py:network, e.g. examples/my_network.py:rnn."
        raise BuildError(f"`{target}` names no network", remedy=example)
    path = Path(file)
    if not path.is_file():
        raise BuildError(f"there is no file {path}")
    module = _run(path)
    value = module.get(name)
    if fits(value):
        return value
    networks = ", ".join(key for key, other in module.items() if isinstance(other, Network)) or "none"
    what = f"{path} has no `{name}`" if value is None else f"`{name}` in {path} {why}"
    raise BuildError(what, remedy=remedy.format(networks=networks))


def _run(path: Path) -> dict[str, Any]:
    """Run a file as a module; errors name the line of the file."""
    spec = importlib.util.spec_from_file_location(f"netsor_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    if importlib.util.find_spec("cloudpickle"):  # other processes cannot import the file: send its code
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except NetsorError:
        raise
    except SyntaxError as error:
        raise BuildError(f"{path}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise BuildError(f"{path}{where}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.append(sys.path.pop(0))  # workers import its neighbours, which must not hide packages
    return vars(module)


def inputs_of(data: Path | None) -> Inputs:
    """The inputs in DATA, which a network needs."""
    return load_inputs(data_files([data] if data else [])[0])


def data_files(data: list[Path], inputs: list[Path] | None = None) -> list[Path]:
    """The files with inputs, given as arguments or by the old option."""
    files = [*data, *(inputs or [])]
    if not files:
        raise DataError("a network needs data", remedy="Give a .npy or .npz file after the network.")
    return files


def load_inputs(path: Path, *, one: bool = False) -> Inputs:
    """Read inputs; with `one`, a .npy array is a single input."""
    arrays, problem = {}, "is neither .npy nor .npz"
    if path.suffix == ".npz":
        arrays, problem = load_npz(path), "has no arrays"
    elif path.suffix == ".npy":
        array = load_array(path)
        if one:
            return [array], None, [path.stem]
        arrays, problem = {"x": array} if array.ndim else {}, "holds a single number"
    if not arrays:
        raise DataError(
            f"{path} {problem}",
            remedy="A .npy array has the inputs along its first axis. In a .npz file an array called x does "
            "so too (and y, for a second set); otherwise each array is one input, and arrays name.0, name.1 "
            "are the parts of one.",
        )
    if "x" in arrays and set(arrays) <= {"x", "y"} and not one:
        x, y = list(arrays["x"]), arrays.get("y")
        return x, None if y is None else list(y), [str(k) for k in range(len(x))]
    inputs: dict[str, Any] = {}
    for key, array in arrays.items():
        part = re.fullmatch(r"(.+)\.(\d+)", key)
        if part:
            inputs.setdefault(part[1], {})[int(part[2])] = array
        else:
            inputs[key] = array
    # name.0, name.1, ... together are a tuple
    values = [tuple(v[k] for k in sorted(v)) if isinstance(v, dict) else v for v in inputs.values()]
    return values, None, list(inputs)


def load_array(path: Path) -> np.ndarray:
    """The array of a .npy file."""
    return _load(path, np.asarray, "an array of numbers", "Write it with numpy.save.")


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a .npz file."""
    return _load(
        path, lambda npz: dict(npz.items()), "a .npz file of arrays of numbers", "Write it with numpy.savez."
    )


def _load(path: Path, kind: Callable[[Any], Any], what: str, remedy: str) -> Any:
    """Read a file of NumPy; the error of a damaged one says what it should be."""
    try:
        with path.open("rb") as file:
            return kind(np.load(file, allow_pickle=False))
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except DAMAGED as error:
        if isinstance(error, OSError):  # such as a folder, or missing permission
            raise
        raise DataError(f"{path} is not {what}", remedy=remedy) from None
