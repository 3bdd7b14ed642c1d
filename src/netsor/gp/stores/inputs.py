"""Sets of inputs in a Zarr group: one array if they have one shape, else their numbers and shapes."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np

from netsor.errors import DataError

__all__ = ["checked", "digest", "read", "write"]

BYTES = 2**24  # that are hashed or written at a time


def digest(inputs: Any) -> str:
    """A hash of all numbers and shapes, as float64."""
    found = sha256()
    if isinstance(inputs, np.ndarray):
        found.update(repr(inputs.shape[1:]).encode())
        for start, stop in _parts(inputs):
            found.update(np.ascontiguousarray(inputs[start:stop], np.float64).tobytes())
        return found.hexdigest()
    for x in inputs:
        for array in _leaves(x):
            found.update(repr(array.shape).encode() + np.ascontiguousarray(array, np.float64).tobytes())
    return found.hexdigest()


def _parts(array: np.ndarray) -> list[tuple[int, int]]:
    step = max(1, BYTES // max(1, array[:1].nbytes))
    return [(start, min(start + step, len(array))) for start in range(0, len(array), step)]


def _leaves(x: Any) -> list[np.ndarray]:
    return [a for part in x for a in _leaves(part)] if isinstance(x, tuple) else [np.asarray(x)]


def _tree(x: Any) -> Any:
    """Where the arrays of an input stand, as nested lists."""
    return [_tree(part) for part in x] if isinstance(x, tuple) else None


def write(group: Any, name: str, inputs: Any) -> None:
    """A set of inputs under a name."""
    if isinstance(inputs, np.ndarray):
        chunks = (_parts(inputs)[0][1], *inputs.shape[1:])
        made = group.create_array(name, shape=inputs.shape, chunks=chunks, dtype=inputs.dtype, **checked())
        for start, stop in _parts(inputs):
            made[start:stop] = inputs[start:stop]
        return
    tree = _tree(inputs[0])
    if any(_tree(x) != tree for x in inputs):
        raise DataError("some inputs are tuples and some are not", remedy="Give inputs of one kind.")
    arrays = {}
    for k, leaves in enumerate(zip(*map(_leaves, inputs), strict=True)):
        if len({a.ndim for a in leaves}) > 1:
            raise DataError("inputs have different numbers of axes", remedy="Give inputs of one kind.")
        arrays[f"values{k}"] = np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in leaves])
        arrays[f"shapes{k}"] = np.array([a.shape for a in leaves], np.int64).reshape(len(leaves), -1)
    arrays = {part: array for part, array in arrays.items() if array.size}
    own = group.create_group(name, attributes={"tree": tree, "count": len(inputs), "arrays": list(arrays)})
    for part, array in arrays.items():
        chunks = (min(len(array), BYTES // 8), *array.shape[1:])
        own.create_array(part, shape=array.shape, chunks=chunks, dtype=array.dtype, **checked())[...] = array


def checked() -> dict[str, Any]:
    """Options of an array whose chunks have checksums and are never left out."""
    from zarr.codecs import Crc32cCodec

    return {"compressors": [Crc32cCodec()], "config": {"write_empty_chunks": True}}


def read(group: Any, name: str, start: int, stop: int) -> Any:
    """Inputs `start` to `stop` of a set."""
    found = group[name]
    if not hasattr(found, "attrs") or "tree" not in found.attrs:
        return found[start:stop]
    tree, there, parts = found.attrs["tree"], found.attrs["arrays"], []
    for k in range(_width(tree)):
        shapes = np.zeros((found.attrs["count"], 0), int)
        if f"shapes{k}" in there:
            shapes = found[f"shapes{k}"][:]
        stops = np.cumsum(np.prod(shapes, axis=1, dtype=np.int64))
        first = int(stops[start - 1]) if start else 0
        values = found[f"values{k}"][first : int(stops[stop - 1])] if f"values{k}" in there else np.zeros(0)
        cuts = np.split(values, stops[start : stop - 1] - first)
        parts.append([cut.reshape(shape) for cut, shape in zip(cuts, shapes[start:stop], strict=True)])
    return [_grown(tree, iter(arrays)) for arrays in zip(*parts, strict=True)]


def _width(tree: Any) -> int:
    return 1 if tree is None else sum(map(_width, tree))


def _grown(tree: Any, arrays: Any) -> Any:
    return next(arrays) if tree is None else tuple(_grown(part, arrays) for part in tree)
