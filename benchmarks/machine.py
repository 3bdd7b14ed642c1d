"""Measure the limits of the machine: multiply-adds and bytes per second over all allowed cores."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

__all__ = ["Limits", "describe", "limits"]

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Limits:
    """Floating-point operations per second of a matrix product (two per multiply-add), bytes per second of a
    copy (read and written), both with one thread on every core."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, traffic: float) -> float:
        """The least time for so many operations and bytes."""
        return max(flops / self.flops, traffic / self.bandwidth)


def limits(quick: bool = False) -> Limits:
    """Measured in a fresh process, so that BLAS has one thread for each of ours."""
    environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
    size = "quick" if quick else "full"
    command = [sys.executable, str(Path(__file__)), size]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return Limits(**json.loads(done.stdout))


def everywhere(works: list[Callable[[], object]], rounds: int) -> float:
    """The shortest time in which all run at once, each in its thread."""
    best = float("inf")
    with ThreadPoolExecutor(len(works)) as pool:
        for _ in range(rounds):
            start = perf_counter()
            for future in [pool.submit(work) for work in works]:
                future.result()
            best = min(best, perf_counter() - start)
    return best


def measured(size: int, megabytes: int, rounds: int) -> Limits:
    import numpy as np

    cores = len(os.sched_getaffinity(0))
    factors = [np.random.default_rng(i).standard_normal((size, size)) for i in range(cores)]
    products = [np.empty((size, size)) for _ in range(cores)]
    sources = [np.ones(megabytes * 2**17) for _ in range(cores)]
    targets = [np.zeros(megabytes * 2**17) for _ in range(cores)]

    def product(i: int) -> Callable[[], object]:
        return lambda: np.matmul(factors[i], factors[i], out=products[i])

    def copy(i: int) -> Callable[[], object]:
        return lambda: np.copyto(targets[i], sources[i])

    multiply = everywhere([product(i) for i in range(cores)], rounds)
    move = everywhere([copy(i) for i in range(cores)], rounds)
    return Limits(2.0 * cores * size**3 / multiply, 2.0 * cores * sources[0].nbytes / move)


def describe() -> dict[str, str]:
    """The processor, its cores, the load and the versions that matter."""
    import numpy as np
    import scipy

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    return {
        "processor": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "load at the start": f"{os.getloadavg()[0]:.2f}",
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "not set"),
    }


if __name__ == "__main__":
    shape = (256, 16, 3) if sys.argv[1] == "quick" else (1536, 256, 9)
    print(json.dumps(asdict(measured(*shape))))
