"""A kernel matrix on disk: read and write tiles, and find the missing ones.

The store is a Zarr group (version 3 of the format) with the arrays

    K                        (rows, columns) the matrix, one chunk per tile; NaN where it is missing
    K_error                  (row tiles, column tiles) the largest error of each tile
    NNGP, NNGP_error         the same for the NNGP kernel, if K is a tangent kernel
    x, y                     the inputs of rows and columns
    row_sizes, column_sizes  number of rows or columns of each input
    mean                     (rows,) the prior mean

A tile is written to a temporary file that is then renamed, so it exists as a whole or not at all. The files
are the only record of progress. Every file has a checksum (`checksums`); a changed file is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from netsor import arguments
from netsor.build.joint_program import as_inputs
from netsor.errors import DataError
from netsor.files import read_regular
from netsor.gp.stores import input_sets as sets
from netsor.gp.stores.checksums import CRC, DIGITS, SUM, damage
from netsor.gp.stores.grid import Axis, Grid
from netsor.gp.stores.identity import check_format, check_same_store, of_kernel
from netsor.gp.unchanged import Unchanged
from netsor.limits import KernelFn
from netsor.limits.kernel import TangentKernelFn
from netsor.limits.tiling import Cut

NNGP = "NNGP"  # the array of the NNGP kernel in a store of a tangent kernel


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

    done: int
    total: int
    left: float | None
    quiet: float | None
    largest_error: float | None

    def __str__(self) -> str:
        text = f"{self.done} of {self.total} tiles"
        if self.largest_error is not None:
            return f"{text}, complete; largest error of an entry {self.largest_error:.1e}"
        if self.left is not None and self.quiet is not None:
            text += f", about {_duration(self.left)} left; the last one {_duration(self.quiet)} ago"
        return text


def _duration(seconds: float) -> str:
    for size, word in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {word}"
    return f"{seconds:.0f} seconds"


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
    nngp
        The NNGP kernel of a store of a tangent kernel, as a store.
    identity
        The facts that determine the numbers, see `stores.identity`.
    """

    def __init__(self, path: str | Path, kernel: KernelFn | None = None, *, nngp: bool = False) -> None:
        self.path, self.name = arguments.file("path", path), NNGP if nngp else "K"
        require_extra("zarr")
        import zarr

        from netsor.gp.stores.checked import CheckedStore

        check_format(_facts(self.path), self.path)
        try:
            self.group: Any = zarr.open_group(
                CheckedStore(self.path), mode="r+", zarr_format=3, use_consolidated=False
            )
        except OSError as error:
            raise DataError(
                f"{path} cannot be opened: {error}", remedy="Check the permissions of its files."
            ) from None
        self.identity: dict[str, Any] = self.group.attrs["netsor"]
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
        """The NNGP kernel of a store of a tangent kernel."""
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
        return _opened, (self.path, self._kernel, self.name == NNGP)

    @staticmethod
    def create(path: Path, identity: dict[str, Any], grid: Grid, mean: np.ndarray, x: Any, y: Any) -> None:
        """Create a store without tiles, atomically.

        mean  (rows,) the prior mean
        x, y  the inputs; y is None for a symmetric kernel
        """
        import zarr

        from netsor.gp.stores.checked import CheckedStore

        dtype = np.dtype(identity["options"]["dtype"])
        new = path.with_name(f".{path.name[:40]}.new-{uuid4().hex}")
        try:
            _check_room(path, len(grid.tiles()) * grid.rows.chunk * grid.cols.chunk * dtype.itemsize)
            group: Any = zarr.create_group(CheckedStore(new), attributes={"netsor": identity})
            _write_arrays(group, identity, grid, {"mean": mean, "x": x} | ({} if y is None else {"y": y}))
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

    def require_array(self, name: str, **options: Any) -> None:
        """Create an array unless it exists."""
        with _full_disk(self.path):
            if name not in self.group:
                self.group.create_array(name, **options, **sets.checked())

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
        chunks, cut = self.array("K").chunks, self.cut
        sizes = [self.whole(name) for name in ("row_sizes", "column_sizes")]
        return Grid(Axis(sizes[0], chunks[0], cut.rows), Axis(sizes[1], chunks[1], cut.cols), self.symmetric)

    @property
    def symmetric(self) -> bool:
        return "y" not in self.identity["inputs"]

    @property
    def cut(self) -> Cut:
        return Cut(**self.identity["cut"])

    @property
    def landmarks(self) -> int:
        """The number of landmarks: inputs that all tiles of a sampled kernel share. 0 for exact kernels."""
        return self.identity["landmarks"]

    @cached_property
    def landmark_numbers(self) -> np.ndarray:
        """The positions of the landmarks, evenly spaced among all inputs."""
        count = self.identity["inputs"]["x"]["count"]
        return np.unique(np.linspace(0, count - 1, self.landmarks).round().astype(int))

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

    # Which tiles exist

    def done(self, name: str | None = None) -> dict[tuple[int, int], float]:
        """Return the existing blocks of an array with the times at which they were written.

        A block counts only if its file has the right size and its checksum exists.
        """
        name = name or self.name
        size = self._chunk_bytes(name)
        times = {}
        for row in _scan(self.path / name / "c"):
            files = _regular(row.path) if row.name.isdecimal() else {}
            for file, (bytes_, when) in files.items():
                if file.isdecimal() and bytes_ == size and files.get(file + SUM, (0,))[0] == DIGITS:
                    times[int(row.name), int(file)] = when
        return times

    def _chunk_bytes(self, name: str) -> int:
        """The size of a chunk's file; chunks are not compressed, so all of an array have one size."""
        array = self.array(name)
        return int(np.prod(array.chunks)) * array.dtype.itemsize + CRC

    def has(self, i: int, j: int) -> bool:
        """Whether a tile exists in all its arrays."""
        files = {self._file(name, i, j): self._chunk_bytes(name) for name in self._of_tiles()}
        return all(_size(file) == size and _size(_sum(file)) == DIGITS for file, size in files.items())

    def _of_tiles(self) -> list[str]:
        """The arrays that contain a block for each tile."""
        return [name for kernel in self.identity["kernels"] for name in (kernel, f"{kernel}_error")]

    def missing(self) -> list[tuple[int, int]]:
        """List the tiles that lack a number or an error."""
        there = [self.done(name) for name in self._of_tiles()]
        return [tile for tile in self.grid.tiles() if not all(tile in times for times in there)]

    def status(self) -> Status:
        """Return the progress of the store; any process may ask, because it reads the files only.

        Returns
        -------
        Status
            Printed as one line of text.
        """
        times, total = sorted(self.done().values()), len(self.grid.tiles())
        missing = len(self.missing())
        # The last tiles give the present rate; an average over all would ignore processes that joined later.
        recent, left, quiet = times[-50:], None, None
        if len(recent) > 1:
            left = missing * (recent[-1] - recent[0]) / (len(recent) - 1)
        if times:
            quiet = max(0.0, time.time() - times[-1])
        error = None if missing else self.largest_error()
        return Status(total - missing, total, left, quiet, error)

    def largest_error(self) -> float:
        """Return the largest error of the existing entries; NaN if there are none."""
        return float(np.fmax.reduce(self.errors(), axis=None))

    def errors(self) -> np.ndarray:
        """Return the largest error of each tile, (row tiles, column tiles); NaN for missing tiles.

        Rounding of entry (i, j) scales with sqrt(K_ii K_jj), which only tiles on the diagonal know. So the
        errors of those two tiles are added to a tile off the diagonal, as a geometric mean.
        """
        name = f"{self.name}_error"
        lost = self.done().keys() - self.done(name).keys()
        if lost:
            raise damage(self.path, self._key(name, *min(lost)), "is missing")
        errors = self.whole(name)
        if not self.symmetric:
            return errors
        both, deviations = np.fmax(errors, errors.T), np.sqrt(np.diagonal(errors))
        return both + np.where(np.eye(len(deviations)), 0.0, deviations[:, None] * deviations)

    def require_complete(self) -> None:
        """Raise a DataError if tiles are missing."""
        missing = self.missing()
        if missing:
            raise DataError(
                f"{len(missing)} of {len(self.grid.tiles())} tiles of {self.path} are missing",
                remedy="Run ns.gp.store (or `netsor kernel`) again: it goes on with them.",
            )

    def damaged(self) -> list[tuple[int, int]]:
        """Read all tiles, and list those with wrong checksums."""
        for name in self._of_tiles():
            self.array(name)  # an array that cannot be opened is no fault of its tiles
        damaged = []
        for i, j in self.done():
            try:
                for kernel in self.identity["kernels"]:
                    self.tile(i, j, kernel)
                    self.stored(f"{kernel}_error", slice(i, i + 1), slice(j, j + 1), (i, j))
            except DataError:
                damaged.append((i, j))
        return damaged

    def remove(self, i: int, j: int) -> None:
        """Remove a tile, so that the next run computes it again."""
        with _full_disk(self.path):
            for name in self._of_tiles():
                file = self._file(name, i, j)
                file.unlink(missing_ok=True)
                _sum(file).unlink(missing_ok=True)

    def _file(self, name: str, i: int, j: int) -> Path:
        return self.path / self._key(name, i, j)

    def _key(self, name: str, i: int, j: int) -> str:
        return f"{name}/c/{i}/{j}"

    # Reading and writing

    def tile(self, i: int, j: int, kernel: str | None = None) -> np.ndarray:
        """Read tile (i, j); below the diagonal of a symmetric matrix, transpose tile (j, i)."""
        kernel = kernel or self.name
        if self.symmetric and i > j:
            return self.tile(j, i, kernel).T
        rows, cols = self.grid.rows.span(i), self.grid.cols.span(j)
        return self.stored(kernel, slice(*rows), slice(*cols), (i, j))

    def stored(self, name: str, rows: slice, cols: slice, tile: tuple[int, int]) -> np.ndarray:
        """Read a block of an array; raise a DataError if it is missing or damaged."""
        key = self._key(name, *tile)
        if not (self.path / key).exists():  # Zarr would return the fill value
            raise damage(self.path, key, "is missing")
        with self._reading(key):
            return self.array(name)[rows, cols]

    def put(self, name: str, rows: slice, cols: slice, value: np.ndarray) -> None:
        """Write a whole block of an array."""
        with _full_disk(self.path):
            self.array(name)[rows, cols] = value

    def write(self, i: int, j: int, kernel: str, value: np.ndarray, error: float) -> None:
        """Write the error of a tile, then the tile, so that an existing tile is complete."""
        rows, cols = self.grid.rows.span(i), self.grid.cols.span(j)
        # A run that is killed in between leaves an error without a tile, which counts as missing.
        self.put(f"{kernel}_error", slice(i, i + 1), slice(j, j + 1), np.array([[error]]))
        self.put(kernel, slice(*rows), slice(*cols), value)

    def clean(self) -> None:
        """Remove the temporary files of killed writers; safe only for the one writer of the store."""
        for file in self.path.glob("*/c/*/*.partial"):
            file.unlink(missing_ok=True)

    # The whole matrix, block by block

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> np.ndarray:
        """Read a block of the matrix, on either side of the diagonal.

        Parameters
        ----------
        rows, columns
            Slices without a step.

        Returns
        -------
        np.ndarray
            (rows, columns), in the dtype of the kernel.
        """
        a, b, _ = rows.indices(self.shape[0])
        c, d, _ = columns.indices(self.shape[1])
        out = np.empty((b - a, d - c), self.dtype)
        for i, (r, s) in _overlaps(self.grid.rows, a, b):
            for j, (t, u) in _overlaps(self.grid.cols, c, d):
                i0, j0 = self.grid.rows.span(i)[0], self.grid.cols.span(j)[0]
                out[r - a : s - a, t - c : u - c] = self.tile(i, j)[r - i0 : s - i0, t - j0 : u - j0]
        return out

    def diagonal(self) -> np.ndarray:
        """Read the diagonal, (rows,), as float64."""
        return np.concatenate(
            [np.diagonal(self.tile(i, i)).astype(np.float64) for i in range(self.grid.rows.count)]
        )

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

    def blocks(self) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield all blocks of the matrix as float64, with their rows and columns.

        A tile of a symmetric matrix is read once and yielded twice, the second time transposed. Meanwhile a
        thread reads the next tile.
        """
        tiles = list(self.grid.tiles())
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self.tile, *tiles[0])
            for k, (i, j) in enumerate(tiles):
                tile = ahead.result().astype(np.float64, copy=False)
                if k + 1 < len(tiles):
                    ahead = reader.submit(self.tile, *tiles[k + 1])
                rows, cols = slice(*self.grid.rows.span(i)), slice(*self.grid.cols.span(j))
                yield rows, cols, tile
                if self.symmetric and i != j:
                    yield cols, rows, tile.T


def _write_arrays(group: Any, identity: dict[str, Any], grid: Grid, given: dict[str, Any]) -> None:
    """Write the arrays of a new store; those of the kernels have no chunks yet."""
    for name, array in {"row_sizes": grid.rows.sizes, "column_sizes": grid.cols.sizes, **given}.items():
        sets.write(group, name, array)
    for name in identity["kernels"]:
        group.create_array(
            name,
            shape=grid.shape,
            chunks=(grid.rows.chunk, grid.cols.chunk),
            dtype=np.dtype(identity["options"]["dtype"]),
            fill_value=np.nan,
            dimension_names=("row", "column"),
            **sets.checked(),
        )
        group.create_array(
            f"{name}_error",
            shape=(grid.rows.count, grid.cols.count),
            chunks=(1, 1),
            dtype=np.float64,
            fill_value=np.nan,
            **sets.checked(),
        )


def _opened(path: Path, kernel: KernelFn | None, nngp: bool) -> Store:
    return Store(path, kernel, nngp=nngp)


def _overlaps(axis: Axis, start: int, stop: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the tiles of an axis that overlap rows `start` to `stop`, each with the overlap."""
    for i in range(start // axis.chunk, -(-stop // axis.chunk) if stop > start else 0):
        first, last = axis.span(i)
        yield i, (max(first, start), min(last, stop))


def _scan(folder: Path) -> list[os.DirEntry]:
    """The entries of a folder; a missing folder is empty."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sum(file: Path) -> Path:
    return file.with_name(file.name + SUM)


def _size(file: Path) -> int | None:
    """The size of a regular file; None for anything else."""
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_size if stat.S_ISREG(state.st_mode) else None


def _regular(folder: str) -> dict[str, tuple[int, float]]:
    """Size and modification time of the regular files in a folder; ignore files that vanish meanwhile."""
    files = {}
    for entry in _scan(Path(folder)):
        with suppress(OSError):
            state = entry.stat()
            if stat.S_ISREG(state.st_mode):
                files[entry.name] = (state.st_size, state.st_mtime)
    return files


def _facts(path: Path) -> Any:
    """Read the identity of a store without checking checksums, which depend on the format of the store."""
    try:
        whole = json.loads(read_regular(path / "zarr.json"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"there is no store {path}", remedy="Stores are made by ns.gp.store(K, x, path)."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a store, or is damaged: {error}", remedy="Make it again.") from None
    attributes = whole.get("attributes") if isinstance(whole, dict) else None
    return attributes.get("netsor") if isinstance(attributes, dict) else None


def _check_room(path: Path, needed: int) -> None:
    """Raise a DataError if the store does not fit on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"the kernel takes {needed / 2**30:.3g} GB, and {free / 2**30:.3g} GB are free at {path.parent}",
            remedy="Make room, store it elsewhere, or use dtype=np.float32 (half as much).",
        )


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
