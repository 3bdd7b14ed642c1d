"""Kernels in stores beside the one in memory: time, peak memory, equality; solves beside the direct one.

python benchmarks/stores.py --inputs 20000          # relu MLP of depth 5; needs an idle machine
python benchmarks/stores.py --inputs 2000           # a try

Each row is a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import netsor as ns

FEATURES, TARGETS, NOISE, MEMORY = 100, 10, 1e-2, 2**30


def inputs(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, FEATURES))


def targets(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, TARGETS))


def kernel() -> Any:
    return ns.kernel(ns.zoo.mlp(5), memory=MEMORY, progress=False)


def memory(count: int, folder: Path) -> dict[str, Any]:
    """The kernel in memory; it is kept for the others to compare with."""
    x, start = inputs(count), time.perf_counter()
    found = kernel()(x)
    spent = time.perf_counter() - start
    np.save(folder / "K.npy", found)
    return {"seconds": spent}


def here(count: int, folder: Path) -> dict[str, Any]:
    x, start = inputs(count), time.perf_counter()
    store = ns.gp.store(kernel(), x, folder / "here.zarr", progress=False)
    return {"seconds": time.perf_counter() - start, "MB so far": peak(), **equality(store, folder)}


def processes(count: int, folder: Path) -> dict[str, Any]:
    x, start = inputs(count), time.perf_counter()
    store = ns.gp.store(kernel(), x, folder / "processes.zarr", engine=2, progress=False)
    return {"seconds": time.perf_counter() - start, **equality(store, folder)}


def dask(count: int, folder: Path) -> dict[str, Any]:
    """A LocalCluster of two processes, its start not counted; see docs/scale.md for malloc's threshold."""
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**27})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        x, start = inputs(count), time.perf_counter()
        store = ns.gp.store(kernel(), x, folder / "dask.zarr", engine=client, progress=False)
        return {"seconds": time.perf_counter() - start, **equality(store, folder)}


def peak() -> int:
    """The most memory that this process has had, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def equality(store: Any, folder: Path) -> dict[str, Any]:
    """Whether a store is bit for bit the matrix in memory."""
    whole = np.load(folder / "K.npy", mmap_mode="r")
    spans = store.grid.rows.span
    same = all(
        np.array_equal(store.tile(i, j), whole[slice(*spans(i)), slice(*spans(j))])
        for i, j in store.grid.tiles()
    )
    return {"equal": same}


def direct(count: int, folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    model = ns.gp.fit(kernel(), inputs(count), targets(count), noise=NOISE)
    np.save(folder / "alpha.npy", model.alpha)
    return {"seconds": time.perf_counter() - start}


def cholesky(count: int, folder: Path) -> dict[str, Any]:
    return solved(count, folder, solver="cholesky")


def pcg(count: int, folder: Path) -> dict[str, Any]:
    return solved(count, folder, solver="pcg", tol=1e-7)


def solved(count: int, folder: Path, **options: Any) -> dict[str, Any]:
    """A solve from the store; its time is beyond that of the kernel."""
    start = time.perf_counter()
    store = ns.gp.Store(folder / "here.zarr")
    model = ns.gp.fit(store, targets(count), noise=NOISE, memory=MEMORY, progress=False, **options)
    spent, wanted = time.perf_counter() - start, np.load(folder / "alpha.npy")
    off = float(np.abs(model.alpha - wanted).max() / np.abs(wanted).max())
    return {"seconds": spent, "residual": model.residual, "off the direct weights": off}


ROWS = {row.__name__: row for row in (memory, here, processes, dask, direct, cholesky, pcg)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--rows", default=",".join(ROWS), help="some of " + ", ".join(ROWS))
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where stores go; a temporary one by default")
    given = parser.parse_args()
    if given.row:
        found = ROWS[given.row](given.inputs, given.folder)
        print(json.dumps({**found, "peak MB": peak()}))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for row in given.rows.split(","):
            command = [
                sys.executable,
                __file__,
                "--row",
                row,
                "--inputs",
                str(given.inputs),
                "--folder",
                folder,
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(f"{row:10s} {done.stdout.splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
