"""A kernel matrix on disk: which tiles are there, and reading and writing them.

The store is a Zarr group (version 3 of the format) with the arrays

    K        the matrix, one chunk for each tile, with a checksum; what is not there yet is NaN
    K_error  the largest error of each tile
    NNGP     beside a tangent kernel K the kernel of the network itself, and NNGP_error
    x, y    the inputs; row_sizes, column_sizes: how many rows each of them has; mean: prior means of the rows

A tile is written to a file of its own, which then takes its name, so it is there whole or not at all, and the
files are the only record of what is done. All files have checksums (`checksums`); one that has changed is
refused.
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
from netsor.build.network import as_inputs
from netsor.errors import DataError
from netsor.files import read_regular
from netsor.gp.stores import inputs as sets
from netsor.gp.stores.checksums import CRC, DIGITS, SUM, damage
from netsor.gp.stores.grid import Axis, Grid
from netsor.gp.stores.identity import check_format, check_same_store, of_kernel
from netsor.gp.unchanged import Unchanged
from netsor.limits import KernelFn
from netsor.limits.kernel import TangentKernelFn
from netsor.limits.tiling import Cut

__all__ = ["Status", "Store"]

NNGP = "NNGP"  # the array of the network's own kernel
RECENT = 50  # tiles that the rate is taken from


@dataclass(frozen=True)
class Status:
    """How far a store is.

    left           seconds, at the rate of the last tiles; None where fewer than two are there
    quiet          seconds since the last tile
    largest_error  of an entry, once all tiles are there
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
    """Refuse to go on without some libraries of the extra `scale`."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise DataError(f"{' and '.join(missing)} is missing", remedy="Install netsor[scale].")


class Store:
    """A kernel matrix on disk; `ns.gp.store` makes it, `Store(path)` opens it, with a kernel for new inputs.

    nngp      beside a tangent kernel: the kernel of the network itself, which is a store like any other
    identity  what it is of, see `stores.identity`
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
            del facts["programs"]  # those of all shapes, which would have to be read
            check_same_store(facts, self.identity, self.path)

    @property
    def kernel(self) -> KernelFn:
        """The kernel, which a store does not hold: it has no code in it."""
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
        """The numbers alone, for workers that only read them."""
        return Store(self.path.resolve(), nngp=self.name == NNGP)

    @cached_property
    def nngp(self) -> Store:
        """The kernel of the network itself, of a store of its tangent kernel."""
        return Store(self.path, self._kernel, nngp=True)

    @property
    def digest(self) -> str:
        """A hash of what the store is of, and of which of its kernels."""
        return sha256(json.dumps([self.name, self.identity], sort_keys=True).encode()).hexdigest()

    @property
    def params(self) -> dict[str, float]:
        """Variances in place of the network's own; its own kernel has no rates."""
        given = self.identity["params"]
        return {p: v for p, v in given.items() if self.name == "K" or not p.endswith(".rate")}

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<store of {self.identity['network']}, {rows} x {columns}, {self.status()}>"

    def __reduce__(self):
        return _opened, (self.path, self._kernel, self.name == NNGP)

    @staticmethod
    def create(path: Path, identity: dict[str, Any], grid: Grid, mean: np.ndarray, x: Any, y: Any) -> None:
        """Make a store without tiles; it appears whole or not at all."""
        import zarr

        from netsor.gp.stores.checked import CheckedStore

        dtype = np.dtype(identity["options"]["dtype"])
        new = path.with_name(f".{path.name[:40]}.new-{uuid4().hex}")
        try:
            _check_room(path, len(grid.tiles()) * grid.rows.chunk * grid.cols.chunk * dtype.itemsize)
            group: Any = zarr.create_group(CheckedStore(new), attributes={"netsor": identity})
            _write_arrays(group, identity, grid, {"mean": mean, "x": x} | ({} if y is None else {"y": y}))
            try:
                new.rename(path)
            except OSError:  # somebody else was first
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
        """An array of the store, as Zarr sees it; opened once."""
        if name not in self._arrays:
            with self._reading(name):
                self._arrays[name] = self.group[name]
        return self._arrays[name]

    def whole(self, name: str) -> np.ndarray:
        """All numbers of an array."""
        with self._reading(name):
            return self.array(name)[...]

    def require_array(self, name: str, **options: Any) -> None:
        """Make an array, unless it is there."""
        with _full_disk(self.path):
            if name not in self.group:
                self.group.create_array(name, **options, **sets.checked())

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Say what is damaged where Zarr finds nothing under a name, or the CRC of a chunk wrong."""
        try:
            yield
        except KeyError as error:
            raise damage(self.path, key, f"is damaged: {error.args[0]} is missing") from None
        except (ValueError, OSError) as error:
            raise damage(self.path, key, f"is damaged: {error}") from None

    # What it is

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
        """How many inputs all tiles of a sampled kernel share."""
        return self.identity["landmarks"]

    @cached_property
    def landmark_numbers(self) -> np.ndarray:
        """Which ones, evenly among all."""
        count = self.identity["inputs"]["x"]["count"]
        return np.unique(np.linspace(0, count - 1, self.landmarks).round().astype(int))

    @property
    def shape(self) -> tuple[int, int]:
        return self.array("K").shape

    @property
    def dtype(self) -> np.dtype:
        return self.array("K").dtype

    def mean(self) -> np.ndarray:
        """The prior means of all rows."""
        return self.whole("mean")

    def inputs(self, side: int, start: int = 0, stop: int | None = None) -> Any:
        """Inputs of the rows (side 0) or columns (1)."""
        name = "x" if side == 0 or self.symmetric else "y"
        end = self.identity["inputs"][name]["count"] if stop is None else stop
        with self._reading(name):
            return sets.read(self.group, name, start, end)

    # Which tiles are there

    def done(self, name: str | None = None) -> dict[tuple[int, int], float]:
        """The blocks of an array that are there with their checksums, and the time when they came.

        A file of a wrong size does not count.
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
        array = self.array(name)
        return int(np.prod(array.chunks)) * array.dtype.itemsize + CRC

    def has(self, i: int, j: int) -> bool:
        """Whether a tile is there."""
        files = {self._file(name, i, j): self._chunk_bytes(name) for name in self._of_tiles()}
        return all(_size(file) == size and _size(_sum(file)) == DIGITS for file, size in files.items())

    def _of_tiles(self) -> list[str]:
        """The arrays in which a tile has a block."""
        return [name for kernel in self.identity["kernels"] for name in (kernel, f"{kernel}_error")]

    def missing(self) -> list[tuple[int, int]]:
        """The tiles that are not there yet, with their errors."""
        there = [self.done(name) for name in self._of_tiles()]
        return [tile for tile in self.grid.tiles() if not all(tile in times for times in there)]

    def status(self) -> Status:
        """How far it is, from the files alone, so that anybody can ask."""
        times, total = sorted(self.done().values()), len(self.grid.tiles())
        missing = len(self.missing())
        recent, left, quiet = times[-RECENT:], None, None
        if len(recent) > 1:
            left = missing * (recent[-1] - recent[0]) / (len(recent) - 1)
        if times:
            quiet = max(0.0, time.time() - times[-1])
        error = None if missing else self.largest_error()
        return Status(total - missing, total, left, quiet, error)

    def largest_error(self) -> float:
        """The largest error of the entries that are there; NaN where none are."""
        return float(np.fmax.reduce(self.errors(), axis=None))

    def errors(self) -> np.ndarray:
        """(tiles of rows, tiles of columns): the largest error of each tile; NaN where it is not known yet.

        Off the diagonal a tile does not know the variances that its rounding goes with; the tiles on it do.
        """
        name = f"{self.name}_error"
        lost = self.done().keys() - self.done(name).keys()
        if lost:
            raise damage(self.path, self._key(name, *min(lost)), "is missing")
        found = self.whole(name)
        if not self.symmetric:
            return found
        whole, own = np.fmax(found, found.T), np.sqrt(np.diagonal(found))
        return whole + np.where(np.eye(len(own)), 0.0, own[:, None] * own)

    def require_complete(self) -> None:
        """Refuse to go on where tiles are missing."""
        missing = self.missing()
        if missing:
            raise DataError(
                f"{len(missing)} of {len(self.grid.tiles())} tiles of {self.path} are missing",
                remedy="Run ns.gp.store (or `netsor kernel`) again: it goes on with them.",
            )

    def damaged(self) -> list[tuple[int, int]]:
        """The tiles whose checksums are wrong; all of them are read."""
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
        """Remove a tile, so that it is computed again."""
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
        """The tile of rows i and columns j; below the diagonal the transpose of the one above."""
        kernel = kernel or self.name
        if self.symmetric and i > j:
            return self.tile(j, i, kernel).T
        rows, cols = self.grid.rows.span(i), self.grid.cols.span(j)
        return self.stored(kernel, slice(*rows), slice(*cols), (i, j))

    def stored(self, name: str, rows: slice, cols: slice, tile: tuple[int, int]) -> np.ndarray:
        """A block of an array; one that is missing or whose checksum is wrong is refused."""
        key = self._key(name, *tile)
        if not (self.path / key).exists():
            raise damage(self.path, key, "is missing")
        with self._reading(key):
            return self.array(name)[rows, cols]

    def put(self, name: str, rows: slice, cols: slice, value: np.ndarray) -> None:
        """Write a whole block of an array."""
        with _full_disk(self.path):
            self.array(name)[rows, cols] = value

    def write(self, i: int, j: int, kernel: str, value: np.ndarray, error: float) -> None:
        """Write a tile, its error first: what is there is complete."""
        rows, cols = self.grid.rows.span(i), self.grid.cols.span(j)
        self.put(f"{kernel}_error", slice(i, i + 1), slice(j, j + 1), np.array([[error]]))
        self.put(kernel, slice(*rows), slice(*cols), value)

    def clean(self) -> None:
        """Remove what killed writers left; only for a run that has the store for itself."""
        for file in self.path.glob("*/c/*/*.partial"):
            file.unlink(missing_ok=True)

    # The whole matrix, for those who have room for a part of it

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> np.ndarray:
        """A block of the matrix, both halves of a symmetric one."""
        a, b, _ = rows.indices(self.shape[0])
        c, d, _ = columns.indices(self.shape[1])
        out = np.empty((b - a, d - c), self.dtype)
        for i, (r, s) in _overlaps(self.grid.rows, a, b):
            for j, (t, u) in _overlaps(self.grid.cols, c, d):
                i0, j0 = self.grid.rows.span(i)[0], self.grid.cols.span(j)[0]
                out[r - a : s - a, t - c : u - c] = self.tile(i, j)[r - i0 : s - i0, t - j0 : u - j0]
        return out

    def diagonal(self) -> np.ndarray:
        """The diagonal, as float64."""
        return np.concatenate(
            [np.diagonal(self.tile(i, i)).astype(np.float64) for i in range(self.grid.rows.count)]
        )

    def columns(self, chosen: np.ndarray) -> np.ndarray:
        """(rows, chosen) of some columns, as float64, with one pass over the tiles."""
        out = np.empty((self.shape[0], len(chosen)))
        for rows, cols, tile in self.blocks():
            own = np.flatnonzero((cols.start <= chosen) & (chosen < cols.stop))
            out[rows, own] = tile[:, chosen[own] - cols.start]
        return out

    def times(self, vectors: np.ndarray) -> np.ndarray:
        """K @ vectors, with one pass over the tiles."""
        out = np.zeros((self.shape[0], vectors.shape[1]))
        for rows, cols, tile in self.blocks():
            out[rows] += tile @ vectors[cols]
        return out

    def blocks(self) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """All blocks of the matrix as float64, both halves of a symmetric one; each tile is read once.

        The next tile is read while this one is used.
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
    """All arrays of a new store; those of the kernels are empty."""
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
    """The parts that meet a span, and where they do."""
    for i in range(start // axis.chunk, -(-stop // axis.chunk) if stop > start else 0):
        first, last = axis.span(i)
        yield i, (max(first, start), min(last, stop))


def _scan(folder: Path) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sum(file: Path) -> Path:
    return file.with_name(file.name + SUM)


def _size(file: Path) -> int | None:
    """The size of a regular file."""
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_size if stat.S_ISREG(state.st_mode) else None


def _regular(folder: str) -> dict[str, tuple[int, float]]:
    """Size and time of the regular files of a folder; one that vanishes meanwhile is not there."""
    files = {}
    for entry in _scan(Path(folder)):
        with suppress(OSError):
            state = entry.stat()
            if stat.S_ISREG(state.st_mode):
                files[entry.name] = (state.st_size, state.st_mtime)
    return files


def _facts(path: Path) -> Any:
    """What the store says of itself, not checked yet: a store of another format has other checksums."""
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
    """Refuse to begin what cannot end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"the kernel takes {needed / 2**30:.3g} GB, and {free / 2**30:.3g} GB are free at {path.parent}",
            remedy="Make room, store it elsewhere, or use dtype=np.float32 (half as much).",
        )


@contextmanager
def _full_disk(path: Path) -> Iterator[None]:
    """An error of the disk with what it means for the store."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"a tile of {path} cannot be written: {error.strerror or error}"
            + (f": {error.filename2 or error.filename}" if error.filename else ""),
            remedy="All tiles before it are kept. Make room (or wait for the disk), and run it again.",
        ) from error
