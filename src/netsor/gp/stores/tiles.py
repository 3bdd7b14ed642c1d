"""`ns.gp.store`: divide a kernel matrix into tiles on disk, and compute the missing ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from netsor import arguments
from netsor.errors import DataError, LimitError
from netsor.gp.stores.engines import Engine, compute_all
from netsor.gp.stores.grid import Axis, Grid
from netsor.gp.stores.identity import check_same_store, identity
from netsor.gp.stores.input_sets import stacked
from netsor.gp.stores.store import Store, require_extra
from netsor.gp.targets import as_kernel, output_sizes
from netsor.limits import KernelFn, kernel_tiles
from netsor.limits.inputs import InputSet
from netsor.limits.tiling import Cut
from netsor.progress import bar

JOINT = 256  # a sampled kernel of at most this many inputs is one tile, drawn jointly


def store(
    kernel: KernelFn,
    x: InputSet,
    path: str | Path,
    y: InputSet | None = None,
    *,
    tile: int | None = None,
    engine: Engine = None,
    part: tuple[int, int] | None = None,
    params: Mapping[str, float] | None = None,
    landmarks: int | None = None,
    verify: bool = False,
    progress: bool | None = None,
) -> Store:
    """Compute the kernel matrix of x, or between x and y, in a store on disk.

    In an existing store only the missing tiles are computed. A store of a tangent kernel contains the NNGP
    kernel, too: `store.nngp`. Needs the extra `scale`. `ns.gp.fit(store, y)` fits a Gaussian process to it.

    Parameters
    ----------
    kernel
        `ns.kernel(net)` or `ns.ntk(net)`.
    x, y
        Inputs of the rows and of the columns; by default y is x.
    path
        A folder, as in K.zarr.
    tile
        Approximate number of inputs on each side of a tile.
    engine
        None: this process. A number: that many processes; a script then needs its calls under
        `if __name__ == "__main__":`. A Dask client, or the address of a scheduler.
    part
        (k, N): compute the k-th of N equal parts, for independent processes.
    params, progress
        As for `ns.gp.fit` and `ns.kernel`.
    landmarks
        Number of inputs that all tiles of a sampled kernel share: by default all up to 256, else 32. More
        landmarks give smaller errors.
    verify
        Whether to read all existing tiles, and compute damaged ones again.

    Returns
    -------
    Store
        Complete, or with `part` complete in that part.

    Raises
    ------
    DataError
        The store is of another kernel, is damaged, or cannot be written.
    LimitError
        The kernel is sampled, and cannot be drawn tile by tile.
    """
    require_extra("zarr", "cloudpickle")
    kernel = as_kernel(kernel)
    path, used = arguments.file("path", path), arguments.mapping("params", params, '{"W1": 2.0}')
    verify = arguments.flag("verify", verify)
    if part is not None and not (isinstance(part, tuple) and [type(k) for k in part] == [int, int]):
        raise DataError(
            f"part={arguments.shown(part)}", remedy="Give (k, N): the k-th of N parts, as in part=(1, 8)."
        )
    rows, columns = _as_set(x), None if y is None else _as_set(y)
    cut, marks = kernel_tiles.tile_sizes(kernel, rows, columns, used), 0
    if cut is None:
        _require_landmarks(kernel, rows, columns)
        default = len(rows) if len(rows) <= JOINT else 32  # leaves little covariance between other inputs
        marks = default if landmarks is None else min(len(rows), arguments.whole("landmarks", landmarks, 1))
        cut = Cut(1, 1, len(rows), False)
    exists = (path / "zarr.json").exists()
    cut = Store(path).cut if exists else cut  # rounding depends on it, so all runs use that of the first
    grid = _grid(kernel, rows, columns, cut, tile)
    facts = identity(kernel, rows, columns, cut, (grid.rows.chunk, grid.cols.chunk), used, marks)
    if not exists:
        Store.create(path, facts, grid, _of_all(kernel.mean, rows), rows, columns)
    check_same_store(facts, Store(path).identity, path)
    target = Store(path, kernel)
    with target.writing(shared=part is not None):
        if part is None:
            target.clean()
        if verify:
            for i, j in target.damaged():
                target.remove(i, j)
        missing = set(target.missing())
        tiles = [t for t in target.grid.part(*(part or (1, 1))) if t in missing]
        with bar(progress, len(tiles), f"computing {path.name}") as advance:
            compute_all(target, tiles, engine, advance)
    return target


def _require_landmarks(kernel: KernelFn, x: Any, y: Any) -> None:
    """Raise a LimitError for a sampled kernel whose tiles would not belong to one matrix."""
    remedy = "Compute it in memory, K(x), where all points are drawn jointly."
    if kernel.options.tol is not None:
        raise LimitError("a sampled store has no tolerance", remedy="Give points= in its place.")
    if y is not None or not isinstance(x, np.ndarray):
        raise LimitError("a sampled store is of one set of inputs, of one shape", remedy=remedy)
    if not kernel_tiles.can_have_landmarks(kernel, x[:2]):
        raise LimitError(
            "this kernel must be sampled, and its tiles would not belong to one matrix", remedy=remedy
        )


def _as_set(inputs: Any) -> Any:
    """Convert a set of inputs: of one shape to an array, otherwise to a list."""
    if isinstance(inputs, np.ndarray) and inputs.ndim and len(inputs):
        return inputs
    if isinstance(inputs, list) and inputs:
        return stacked(inputs)
    raise DataError(
        f"the set of inputs is {arguments.a_type(inputs)}", remedy="Give an array or a list of inputs."
    )


def _grid(kernel: KernelFn, x: Any, y: Any, cut: Cut, tile: int | None) -> Grid:
    """Choose tiles that are multiples of the tiles in memory (`cut`), so that their numbers are equal."""
    sizes_of = partial(output_sizes, kernel.net)
    rows, cols = (_of_all(sizes_of, z) for z in (x, x if y is None else y))
    most = max(rows.mean(), cols.mean())
    side = default_side(kernel, x, most) if tile is None else arguments.whole("tile", tile, 1)
    axes = []
    for sizes, step in ((rows, cut.rows), (cols, cut.cols)):
        inputs = min(len(sizes), max(1, side // step) * step)
        axes.append(Axis(sizes, max(int(sizes[:inputs].sum()), int(sizes.max())), step))
    return Grid(axes[0], axes[1], y is None)


def _of_all(function: Callable[[list[Any]], ArrayLike], inputs: Any) -> np.ndarray:
    """The values of a function of shapes for all inputs; those of an array have one shape."""
    first = list(inputs[:1]) if isinstance(inputs, np.ndarray) else inputs
    return np.tile(function(first), len(inputs) // len(first))


def default_side(kernel: KernelFn, x: Any, rows: float, most_rows: int = 2048, most_work: int = 2**36) -> int:
    """The default inputs, with `rows` rows each, per side of a tile: at most 32 MB and minutes of work."""
    plan = kernel.plan(x[:2])
    if plan.sampling:
        return len(x) if len(x) <= JOINT else 64
    pair = plan.work / 3
    return max(1, min(int(most_rows / rows), isqrt(int(most_work / max(1.0, pair)))))
