"""A kernel matrix on disk: read and write tiles, and find the missing ones.

The store is a Zarr group (version 3 of the format) with the arrays

    K                        (rows, columns) the matrix, one chunk per tile; NaN where it is missing
    K_error                  (row tiles, column tiles) the largest error of each tile
    NNGP, NNGP_error         the same for the NNGP kernel, if K is a tangent kernel
    x, y                     the inputs of rows and columns
    row_sizes, column_sizes  number of rows or columns of each input
    mean                     (rows,) the prior mean

A tile is written to a temporary file that is then renamed, so it exists as a whole or not at all. The files
are the only record of progress. Every file has a checksum (`checked`); a changed file is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from functools import cached_property, partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from netsor import arguments
from netsor.build.joint_program import as_inputs
from netsor.errors import DataError
from netsor.gp.stores import input_sets as sets
from netsor.gp.stores.grid import Axis, Grid, Tile
from netsor.gp.stores.identity import check_format, check_same_store, of_kernel
from netsor.gp.targets import Unchanged
from netsor.limits import KernelFn
from netsor.limits.kernel import TangentKernelFn
from netsor.limits.tiling import Cut

NNGP = "NNGP"  # the array of the NNGP kernel in a store of a tangent kernel
SUM = ".sum"  # the suffix of files with checksums
CRC = 4  # bytes at the end of a chunk


@dataclass(frozen=True)
class Status:
    """The progress of a store.

    Attributes
    ----------
    done, total
        Number of finished tiles, and of all tiles.
    left
        Estimated remaining seconds, at the rate of the last tiles; None with fewer than two tiles.
    quiet
        Seconds since the last tile was written; None without tiles.
    largest_error
        The largest error of an entry; None while tiles are missing.
    """

    done: int  # number of finished tiles
    total: int  # ... and of all tiles
    left: float | None  # estimated remaining seconds, at the rate of the last tiles; None with fewer than two
    quiet: float | None  # seconds since the last tile was written; None without tiles
    largest_error: float | None  # of an entry; None while tiles are missing

    def __str__(self) -> str:
        text = f"{self.done} of {self.total} tiles"
        if self.largest_error is not None:
            return f"{text}, complete; largest error of an entry {self.largest_error:.1e}"
        if self.left is not None and self.quiet is not None:
            text += f", about {_duration(self.left)} left; the last one {_duration(self.quiet)} ago"
        return text


def _duration(seconds: float) -> str:
    units = (86400, "days"), (3600, "hours"), (60, "minutes")
    texts = (f"{seconds / size:.1f} {word}" for size, word in units if seconds >= 2 * size)
    return next(texts, f"{seconds:.0f} seconds")


def require_extra(*libraries: str) -> None:
    """Raise a DataError unless these libraries of the extra `scale` are installed."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise DataError(f"{' and '.join(missing)} is missing", remedy="Install netsor[scale].")


class Store:
    """A kernel matrix on disk. `ns.gp.store` creates it, `Store(path)` opens it.

    Parameters
    ----------
    path
        The folder.
    kernel
        The kernel, for predictions at new inputs.
    nngp
        Whether to open the NNGP kernel of a store of a tangent kernel.

    Attributes
    ----------
    identity
        The facts that determine the numbers, see `stores.identity`.
    landmarks
        Number of inputs that all tiles of a sampled kernel share; 0 for exact kernels.
    """

    def __init__(self, path: str | Path, kernel: KernelFn | None = None, *, nngp: bool = False) -> None:
        self.path, self.name = arguments.file("path", path), NNGP if nngp else "K"
        require_extra("zarr")
        import zarr

        from netsor.gp.stores.checked import CheckedStore

        check_format(self.path)
        try:
            self.group: Any = zarr.open_group(
                CheckedStore(self.path), mode="r+", zarr_format=3, use_consolidated=False
            )
        except OSError as error:
            raise DataError(
                f"{path} cannot be opened: {error}", remedy="Check the permissions of its files."
            ) from None
        self.identity: dict[str, Any] = self.group.attrs["netsor"]
        self.cut, self.symmetric = Cut(**self.identity["cut"]), "y" not in self.identity["inputs"]
        self.landmarks: int = self.identity["landmarks"]
        self._arrays: dict[str, Any] = {}
        self._kernel, self._unchanged = kernel, Unchanged(kernel)
        if self.name not in self.identity["kernels"]:
            raise DataError(
                f"{path} holds no other kernel of the network",
                remedy="Stores of tangent kernels do, unless they are sampled: store ns.ntk(net).",
            )
        if kernel is not None:
            facts = of_kernel(kernel, as_inputs(self.inputs(0, 0, 1)))
            del facts["programs"]  # comparing the programs of all shapes would mean reading all inputs
            check_same_store(facts, self.identity, self.path)

    @property
    def kernel(self) -> KernelFn:
        """The kernel that `Store(path, kernel)` was opened with; the store itself holds no code."""
        if self._kernel is None:
            raise DataError(
                f"{self.path} knows its numbers, and not the network, which new inputs need",
                remedy="Open it with the kernel: ns.gp.Store(path, ns.kernel(net)).",
            )
        self._unchanged.check()
        if self.name == "K":
            return self._kernel
        assert isinstance(self._kernel, TangentKernelFn)
        return self._kernel.nngp

    def without_kernel(self) -> Store:
        """Open the store again without its kernel, for workers that only read numbers."""
        return Store(self.path.resolve(), nngp=self.name == NNGP)

    @cached_property
    def nngp(self) -> Store:
        """The NNGP kernel of a store of a tangent kernel, as a store."""
        return Store(self.path, self._kernel, nngp=True)

    @property
    def digest(self) -> str:
        """A hash of the identity, and of the name of the kernel."""
        return sha256(json.dumps([self.name, self.identity], sort_keys=True).encode()).hexdigest()

    @property
    def params(self) -> dict[str, float]:
        """Variances that replace the network's; without learning rates for the NNGP kernel."""
        given = self.identity["params"]
        return {p: v for p, v in given.items() if self.name == "K" or not p.endswith(".rate")}

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<store of {self.identity['network']}, {rows} x {columns}, {self.status()}>"

    def __reduce__(self):
        return partial(Store, nngp=self.name == NNGP), (self.path, self._kernel)

    @staticmethod
    def create(path: Path, identity: dict[str, Any], grid: Grid, mean: np.ndarray, x: Any, y: Any) -> None:
        """Create a store without tiles, atomically; y is None for a symmetric kernel."""
        import zarr

        from netsor.gp.stores.checked import CheckedStore

        dtype = np.dtype(identity["options"]["dtype"])
        chunks, tiles = (grid.rows.chunk, grid.cols.chunk), (grid.rows.count, grid.cols.count)
        new = path.with_name(f".{path.name[:40]}.new-{uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            needed = len(grid.tiles()) * prod(chunks) * dtype.itemsize
            free = shutil.disk_usage(path.parent).free
            if needed > free:
                raise DataError(
                    f"the kernel takes {needed / 2**30:.3g} GB, and {free / 2**30:.3g} GB are free at "
                    f"{path.parent}",
                    remedy="Make room, store it elsewhere, or use dtype=np.float32 (half as much).",
                )
            group: Any = zarr.create_group(CheckedStore(new), attributes={"netsor": identity})
            arrays = {"row_sizes": grid.rows.sizes, "column_sizes": grid.cols.sizes, "mean": mean, "x": x}
            for name, array in (arrays if y is None else {**arrays, "y": y}).items():
                sets.write(group, name, array)
            for name in identity["kernels"]:
                _new_matrix(group, name, (grid.rows.length, grid.cols.length), chunks, dtype)
                _new_matrix(group, f"{name}_error", tiles, (1, 1), np.float64)
            try:
                new.rename(path)  # atomic: no process sees an incomplete store
            except OSError:  # another process was first
                if not (path / "zarr.json").is_file():
                    raise DataError(
                        f"there is something at {path} that is no store",
                        remedy="Give another path. If it was a store, its file zarr.json is lost: remove it.",
                    ) from None
        except OSError as error:
            raise DataError(
                f"the store {path} cannot be written: {error.strerror or error}",
                remedy="Make room, or give another path.",
            ) from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def array(self, name: str) -> Any:
        """The Zarr array of this name, opened once."""
        if name not in self._arrays:
            with self._reading(name):
                self._arrays[name] = self.group[name]
        return self._arrays[name]

    def whole(self, name: str) -> np.ndarray:
        """Read a whole array."""
        with self._reading(name):
            return self.array(name)[...]

    def require_factor(self, name: str) -> None:
        """Create an array of blocks for a Cholesky factor unless it exists."""
        with _full_disk(self.path):
            if name not in self.group:
                chunk = self.grid.rows.chunk
                _new_matrix(self.group, name, self.shape, (chunk, chunk), np.float64)

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Translate Zarr's errors about missing files and wrong checksums to errors that name the file."""
        try:
            yield
        except KeyError as error:
            raise damage(self.path, key, f"is damaged: {error.args[0]} is missing") from None
        except (ValueError, OSError) as error:
            raise damage(self.path, key, f"is damaged: {error}") from None

    # Shapes, inputs and options

    @cached_property
    def grid(self) -> Grid:
        height, width = self.array("K").chunks
        rows = Axis(self.whole("row_sizes"), height, self.cut.rows)
        return Grid(rows, Axis(self.whole("column_sizes"), width, self.cut.cols), self.symmetric)

    @property
    def shape(self) -> tuple[int, int]:
        return self.array("K").shape

    @property
    def dtype(self) -> np.dtype:
        return self.array("K").dtype

    def mean(self) -> np.ndarray:
        """Read the prior mean, (rows,)."""
        return self.whole("mean")

    def inputs(self, side: int, start: int = 0, stop: int | None = None) -> Any:
        """Read inputs `start` to `stop` of the rows (side 0) or the columns (side 1)."""
        name = "x" if side == 0 or self.symmetric else "y"
        end = self.identity["inputs"][name]["count"] if stop is None else stop
        with self._reading(name):
            return sets.read(self.group, name, start, end)

    @contextmanager
    def writing(self, shared: bool = False) -> Iterator[None]:
        """Hold the lock of the store: alone, or (`shared`) with other runs that have divided the tiles.

        The operating system holds the lock, so it ends with the process. On a file system without locks two
        runs may compute the same tiles twice, which is harmless because each tile is written as a whole.
        """
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        lock = self.path / "writers.lock"
        try:  # O_NONBLOCK matters if a named pipe has taken its place: opening it would hang
            handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise DataError(
                f"the lock {lock} cannot be opened: {error.strerror or error}",
                remedy="A store is written by those who may write its folder. If it is no file, remove it.",
            ) from None
        with open(handle, "a") as file:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(
                    f"another process is writing {self.path}",
                    remedy="Wait for it (`netsor status` shows how far it is), or let several share the "
                    "work: part=(1, 2) and part=(2, 2), on the command line --part 1/2 and --part 2/2.",
                ) from None
            except OSError as error:
                if error.errno not in (ENOLCK, ENOSYS, EOPNOTSUPP):  # no locks on this file system
                    raise
            yield

    # Which tiles exist

    def done(self, name: str | None = None) -> dict[Tile, float]:
        """Return the tiles of an array that exist, with the times at which they were written."""
        times = {tile: self.written(name or self.name, *tile) for tile in self.grid.tiles()}
        return {tile: time for tile, time in times.items() if time is not None}

    def written(self, name: str, i: int, j: int) -> float | None:
        """When a block of an array was written; None unless its file is complete and has a checksum."""
        array = self.array(name)
        # Chunks are not compressed, so all of an array have one size; a checksum has eight digits.
        sizes = [prod(array.chunks) * array.dtype.itemsize + CRC, 8]
        try:
            states = [file.stat() for file in self._files(name, i, j)]
        except OSError:
            return None
        regular = all(stat.S_ISREG(state.st_mode) for state in states)
        return states[0].st_mtime if regular and [state.st_size for state in states] == sizes else None

    def has(self, i: int, j: int) -> bool:
        """Whether a tile exists in all its arrays."""
        return all(self.written(name, i, j) is not None for name in self._of_tiles())

    def _of_tiles(self) -> list[str]:
        """The arrays that contain a block for each tile."""
        return [name for kernel in self.identity["kernels"] for name in (kernel, f"{kernel}_error")]

    def missing(self) -> list[Tile]:
        """List the tiles that lack a number or an error."""
        return [tile for tile in self.grid.tiles() if not self.has(*tile)]

    def status(self) -> Status:
        """Return the progress of the store; any process may ask, because it reads the files only."""
        missing, total = len(self.missing()), len(self.grid.tiles())
        # The last tiles give the present rate; an average over all would ignore processes that joined later.
        recent = sorted(self.done().values())[-50:]
        left = missing * (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else None
        quiet = max(0.0, time.time() - recent[-1]) if recent else None
        error = None if missing else self.largest_error()
        return Status(total - missing, total, left, quiet, error)

    def largest_error(self) -> float:
        """Return the largest error of the existing entries; NaN if there are none."""
        return float(np.fmax.reduce(self.errors(), axis=None))

    def errors(self) -> np.ndarray:
        """Return the largest error of each tile, (row tiles, column tiles); NaN for missing tiles."""
        name = f"{self.name}_error"
        lost = self.done().keys() - self.done(name).keys()
        if lost:
            raise damage(self.path, _key(name, *min(lost)), "is missing")
        errors = self.whole(name)
        if not self.symmetric:
            return errors
        # Rounding of entry (i, j) scales with sqrt(K_ii K_jj), which only tiles on the diagonal know. So the
        # errors of those two tiles are added to a tile off the diagonal, as a geometric mean.
        both, deviations = np.fmax(errors, errors.T), np.sqrt(np.diagonal(errors))
        return both + np.where(np.eye(len(deviations)), 0.0, deviations[:, None] * deviations)

    def require_complete(self) -> None:
        """Raise a DataError if tiles are missing."""
        if missing := self.missing():
            raise DataError(
                f"{len(missing)} of {len(self.grid.tiles())} tiles of {self.path} are missing",
                remedy="Run ns.gp.store (or `netsor kernel`) again: it goes on with them.",
            )

    def damaged(self) -> list[Tile]:
        """Read all tiles, and list those with wrong checksums."""
        for name in self._of_tiles():
            self.array(name)  # an array that cannot be opened is no fault of its tiles
        damaged: dict[Tile, None] = {}
        for tile, name in product(self.done(), self._of_tiles()):
            try:
                self.stored(name, *tile)
            except DataError:
                damaged[tile] = None
        return list(damaged)

    def remove(self, i: int, j: int) -> None:
        """Remove a tile, so that the next run computes it again."""
        with _full_disk(self.path):
            for name in self._of_tiles():
                for file in self._files(name, i, j):
                    file.unlink(missing_ok=True)

    def _files(self, name: str, i: int, j: int) -> list[Path]:
        """The files of a block and of its checksum."""
        return [self.path / (_key(name, i, j) + end) for end in ("", SUM)]

    # Reading and writing

    def tile(self, i: int, j: int) -> np.ndarray:
        """Read tile (i, j); below the diagonal of a symmetric matrix, transpose tile (j, i)."""
        return self.stored(self.name, j, i).T if self.symmetric and i > j else self.stored(self.name, i, j)

    def stored(self, name: str, i: int, j: int) -> np.ndarray:
        """Read a block of an array; raise a DataError if it is missing or damaged."""
        key = _key(name, i, j)
        if not (self.path / key).exists():  # Zarr would return the fill value
            raise damage(self.path, key, "is missing")
        with self._reading(key):
            return self.array(name).blocks[i, j]

    def put(self, name: str, i: int, j: int, value: np.ndarray) -> None:
        """Write a block of an array."""
        with _full_disk(self.path):
            self.array(name).blocks[i, j] = value

    def write(self, i: int, j: int, value: np.ndarray, error: float) -> None:
        """Write the error of a tile, then the tile, so that an existing tile is complete."""
        # A run that is killed in between leaves an error without a tile, which counts as missing.
        self.put(f"{self.name}_error", i, j, np.array([[error]]))
        self.put(self.name, i, j, value)

    def clean(self) -> None:
        """Remove the temporary files of killed writers; safe only for the one writer of the store."""
        for file in self.path.glob("*/c/*/*.partial"):
            file.unlink(missing_ok=True)

    # The whole matrix, block by block

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> np.ndarray:
        """Read a block of the matrix, on either side of the diagonal; slices are without a step."""
        (a, b, _), (c, d, _) = rows.indices(self.shape[0]), columns.indices(self.shape[1])
        height, width = self.grid.rows.chunk, self.grid.cols.chunk
        out = np.empty((max(b - a, 0), max(d - c, 0)), self.dtype)
        for i, j in product(range(a // height, -(-b // height)), range(c // width, -(-d // width))):
            r, s = i * height - a, j * width - c  # where the tile begins in the block
            part = self.tile(i, j)[max(-r, 0) : b - a - r, max(-s, 0) : d - c - s]
            out[max(r, 0) : r + height, max(s, 0) : s + width] = part
        return out

    def diagonal(self) -> np.ndarray:
        """Read the diagonal, (rows,), as float64."""
        parts = [np.diagonal(self.tile(i, i)) for i in range(self.grid.rows.count)]
        return np.concatenate(parts).astype(np.float64)

    def columns(self, chosen: np.ndarray) -> np.ndarray:
        """Read the columns with the given numbers, (rows, chosen), as float64, in one pass over the tiles."""
        out = np.empty((self.shape[0], len(chosen)))
        for rows, cols, tile in self.blocks():
            here = np.flatnonzero((cols.start <= chosen) & (chosen < cols.stop))
            out[rows, here] = tile[:, chosen[here] - cols.start]
        return out

    def times(self, vectors: np.ndarray) -> np.ndarray:
        """K @ vectors for vectors (columns, k), in one pass over the tiles."""
        out = np.zeros((self.shape[0], vectors.shape[1]))
        for rows, cols, tile in self.blocks():
            out[rows] += tile @ vectors[cols]
        return out

    def row_times(self, i: int, vectors: np.ndarray) -> tuple[int, np.ndarray]:
        """Return i, and row i of tiles times vectors (columns, k)."""
        axis = self.grid.cols
        products = (self.tile(i, j) @ vectors[axis.span(j)] for j in range(axis.count))
        return i, sum(products, np.zeros(()))

    def blocks(self) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield all blocks of the matrix as float64, with their rows and columns; a thread reads ahead.

        A tile of a symmetric matrix is read once and yielded twice, the second time transposed.
        """
        tiles = self.grid.tiles()
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self.tile, *tiles[0])
            for k, (i, j) in enumerate(tiles):
                tile = ahead.result().astype(np.float64, copy=False)
                if k + 1 < len(tiles):
                    ahead = reader.submit(self.tile, *tiles[k + 1])
                rows, cols = self.grid.rows.span(i), self.grid.cols.span(j)
                yield rows, cols, tile
                if self.symmetric and i != j:
                    yield cols, rows, tile.T


def _new_matrix(group: Any, name: str, shape: Tile, chunks: Tile, dtype: Any) -> None:
    """Create a matrix without blocks."""
    axes, options = ("row", "column"), {"fill_value": np.nan, **sets.checked()}
    group.create_array(
        name, shape=shape, chunks=chunks, dtype=np.dtype(dtype), dimension_names=axes, **options
    )


def _key(name: str, i: int, j: int) -> str:
    return f"{name}/c/{i}/{j}"


def is_chunk(key: str) -> bool:
    """Whether a key names a chunk: array/c/0/1."""
    return "/c/" in key


def damage(store: Path, key: str, what: str) -> DataError:
    """Return the error about a changed file; its remedy depends on the array."""
    array = key.split("/")[0]
    if is_chunk(key) and array.removesuffix("_error") in ("K", NNGP):
        remedy = (
            "Run ns.gp.store(..., verify=True), on the command line --verify: it computes such tiles again."
        )
    elif array.startswith("cholesky_"):
        remedy = f"Remove the folder {store / array}, and fit again."
    else:
        remedy = f"Remove the folder {store}, and store the kernel again."
    return DataError(f"{store / key} {what}", remedy=remedy)


@contextmanager
def _full_disk(path: Path) -> Iterator[None]:
    """Translate errors of the disk, such as a full one, to a DataError with a remedy."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"a tile of {path} cannot be written: {error.strerror or error}"
            + (f": {error.filename2 or error.filename}" if error.filename else ""),
            remedy="All tiles before it are kept. Make room (or wait for the disk), and run it again.",
        ) from error
