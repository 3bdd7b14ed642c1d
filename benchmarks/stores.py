"""Compare kernels in stores with the one in memory (time, peak memory, equality), and solves from them.

python benchmarks/stores.py --inputs 20000 --rounds 5     # relu MLP of depth 5
python benchmarks/stores.py --inputs 2000                 # a try

Each row is a process of its own, so that its peak is its own. Kernels are made in rounds, one of each kind,
and the best time of each counts: on a machine that others use, too, all are slowed down at times. Imports are
not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import zarr  # noqa: F401  so that its import is not counted

import netsor as ns
import netsor.gp

FEATURES, TARGETS, NOISE, MEMORY = 100, 10, 1e-2, 2**30


def inputs(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, FEATURES))


def targets(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, TARGETS))


def kernel() -> Any:
    return ns.kernel(ns.zoo.mlp(5), memory=MEMORY, progress=False)


def memory(count: int, folder: Path) -> dict[str, Any]:
    """The kernel in memory; a hash of it is kept for the others to compare with."""
    x, start, before = inputs(count), time.perf_counter(), processor()
    found = kernel()(x)
    spent, used = time.perf_counter() - start, processor() - before
    (folder / "digest").write_text(digest(found, count))
    return {"seconds": spent, "processor": used}


def here(count: int, folder: Path) -> dict[str, Any]:
    return stored(count, folder / "here.zarr")


def processes(count: int, folder: Path) -> dict[str, Any]:
    return stored(count, folder / "processes.zarr", engine=2)


def dask(count: int, folder: Path) -> dict[str, Any]:
    """A LocalCluster of two processes; its start is not counted."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(__import__, "netsor.gp")
        return stored(count, folder / "dask.zarr", engine=client)


def stored(count: int, path: Path, **options: Any) -> dict[str, Any]:
    """A store from the beginning; the time to remove an old one is not counted."""
    shutil.rmtree(path, ignore_errors=True)
    x, start, before = inputs(count), time.perf_counter(), processor()
    store = ns.gp.store(kernel(), x, path, progress=False, **options)
    spent, used, so_far = time.perf_counter() - start, processor() - before, peak()
    same = digest(store.read, count) == (path.parent / "digest").read_text()
    return {"seconds": spent, "processor": used, "MB": so_far, "equal": same}


def peak() -> int:
    """The most memory that this process has had, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def processor() -> float:
    """Seconds of processor so far, of this process and those of its own that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def digest(matrix: Any, count: int) -> str:
    """A hash of a matrix, or of one that is read some rows at a time."""
    found = blake2b()
    for start in range(0, count, 1000):
        rows = slice(start, min(start + 1000, count))
        found.update(np.ascontiguousarray(matrix(rows) if callable(matrix) else matrix[rows]))
    return found.hexdigest()


def direct(count: int, folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    model = ns.gp.fit(kernel(), inputs(count), targets(count), noise=NOISE)
    spent = time.perf_counter() - start
    np.save(folder / "alpha.npy", model.alpha)
    return {"seconds": spent, "MB": peak()}


def cholesky(count: int, folder: Path) -> dict[str, Any]:
    return solved(count, folder, solver="cholesky")


def pcg(count: int, folder: Path) -> dict[str, Any]:
    return solved(count, folder, solver="pcg", tol=1e-7)


def solved(count: int, folder: Path, **options: Any) -> dict[str, Any]:
    """A solve from the store; its time does not include that of the kernel."""
    start = time.perf_counter()
    store = ns.gp.Store(folder / "here.zarr")
    model = ns.gp.fit(store, targets(count), noise=NOISE, memory=MEMORY, progress=False, **options)
    spent, wanted = time.perf_counter() - start, np.load(folder / "alpha.npy")
    off = float(np.abs(model.alpha - wanted).max() / np.abs(wanted).max())
    return {"seconds": spent, "MB": peak(), "residual": model.residual, "off the direct weights": off}


KERNELS, SOLVES = (memory, here, processes, dask), (direct, cholesky, pcg)
ROWS = {row.__name__: row for row in (*KERNELS, *SOLVES)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", default=",".join(ROWS), help="some of " + ", ".join(ROWS))
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where stores go; a temporary one by default")
    given = parser.parse_args()
    if given.row:
        print(json.dumps(ROWS[given.row](given.inputs, given.folder)))
        return
    names = given.rows.split(",")
    kernels = [row.__name__ for row in KERNELS if row.__name__ in names]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        best: dict[str, float] = {}
        for row in kernels * given.rounds + [name for name in names if name not in kernels]:
            found = run(row, given.inputs, folder)
            best[row] = min(found["seconds"], best.get(row, found["seconds"]))
            print(f"{row:10s} {json.dumps(found)}, load {os.getloadavg()[0]:.1f}", flush=True)
    for row in kernels if "memory" in best else ():
        print(f"{row:10s} {best[row]:.1f} s, {best[row] / best['memory']:.2f} of the kernel in memory")


def run(row: str, count: int, folder: str) -> dict[str, Any]:
    """A row in a process of its own, when nothing waits to be written."""
    os.sync()
    command = [sys.executable, __file__, "--row", row, "--inputs", str(count), "--folder", folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
