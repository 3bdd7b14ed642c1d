"""Sets of inputs in a Zarr group: one array for inputs of one shape, else flattened values with shapes."""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np

from netsor.errors import DataError

BYTES = 2**24  # hashed or written at a time; inputs may be memory-mapped files larger than memory


def stacked(inputs: list[Any]) -> np.ndarray | list[Any]:
    """Stack inputs of one shape to an array (inputs, ...); return others unchanged."""
    # Tuples may have members of equal shapes, which np.stack would merge.
    plain = not any(isinstance(x, tuple) for x in inputs) and len({np.shape(x) for x in inputs}) == 1
    return np.stack([np.asarray(x) for x in inputs]) if plain else inputs


def digest(inputs: Any) -> str:
    """Hash all numbers, as float64, and all shapes."""
    hashed = sha256()
    if isinstance(inputs, np.ndarray):
        hashed.update(repr(inputs.shape[1:]).encode())
        for part in _parts(inputs):
            hashed.update(np.ascontiguousarray(inputs[part], np.float64).tobytes())
        return hashed.hexdigest()
    for x in inputs:
        for array in leaves(x):
            hashed.update(repr(array.shape).encode() + np.ascontiguousarray(array, np.float64).tobytes())
    return hashed.hexdigest()


def _parts(array: np.ndarray) -> list[slice]:
    """Rows of about BYTES bytes."""
    step = max(1, BYTES // max(1, array[:1].nbytes))
    return [slice(start, min(start + step, len(array))) for start in range(0, len(array), step)]


def leaves(x: Any) -> list[np.ndarray]:
    """The arrays of an input, which may be a nested tuple."""
    return [a for part in x for a in leaves(part)] if isinstance(x, tuple) else [np.asarray(x)]


def _tree(x: Any) -> Any:
    """The nesting of an input's tuples as lists, with None for arrays: a form that JSON keeps."""
    return [_tree(part) for part in x] if isinstance(x, tuple) else None


def write(group: Any, name: str, inputs: Any) -> None:
    """Write a set of inputs under a name."""
    if isinstance(inputs, np.ndarray):
        chunks = (_parts(inputs)[0].stop, *inputs.shape[1:])
        array = group.create_array(name, shape=inputs.shape, chunks=chunks, dtype=inputs.dtype, **checked())
        for part in _parts(inputs):
            array[part] = inputs[part]
        return
    tree = _tree(inputs[0])
    if any(_tree(x) != tree for x in inputs):
        raise DataError("some inputs are tuples and some are not", remedy="Give inputs of one kind.")
    arrays = {}
    for k, parts in enumerate(zip(*map(leaves, inputs), strict=True)):
        if len({a.ndim for a in parts}) > 1:
            raise DataError("inputs have different numbers of axes", remedy="Give inputs of one kind.")
        arrays[f"values{k}"] = np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in parts])
        arrays[f"shapes{k}"] = np.array([a.shape for a in parts], np.int64).reshape(len(parts), -1)
    # Zarr has no empty chunks, so empty arrays are left out; `read` restores them.
    arrays = {part: array for part, array in arrays.items() if array.size}
    values = group.create_group(name, attributes={"tree": tree, "count": len(inputs), "arrays": list(arrays)})
    for part, array in arrays.items():
        write(values, part, array)


def checked() -> dict[str, Any]:
    """Options of a Zarr array whose chunks have checksums and are always written, even if all NaN."""
    from zarr.codecs import Crc32cCodec

    return {"compressors": [Crc32cCodec()], "config": {"write_empty_chunks": True}}


def read(group: Any, name: str, start: int, stop: int) -> Any:
    """Read inputs `start` to `stop` of a set."""
    stored = group[name]
    if "tree" not in stored.attrs:
        return stored[start:stop]
    tree, there, counter = stored.attrs["tree"], stored.attrs["arrays"], count()

    def inputs_of(tree: Any) -> list[Any]:
        """The inputs, or parts of them, that have this nesting."""
        if tree is not None:
            return list(zip(*map(inputs_of, tree), strict=True))
        k = next(counter)
        none = np.zeros((stored.attrs["count"], 0), int)  # of numbers
        shapes = stored[f"shapes{k}"][:] if f"shapes{k}" in there else none
        stops = np.cumsum(np.prod(shapes, axis=1, dtype=np.int64))
        first = int(stops[start - 1]) if start else 0
        values = stored[f"values{k}"][first : int(stops[stop - 1])] if f"values{k}" in there else np.zeros(0)
        cuts = np.split(values, stops[start : stop - 1] - first)
        return [cut.reshape(shape) for cut, shape in zip(cuts, shapes[start:stop], strict=True)]

    return inputs_of(tree)
