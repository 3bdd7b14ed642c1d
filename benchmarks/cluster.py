"""Measure the cost of scheduling tiles with Dask: many workers whose tiles only sleep.

python benchmarks/cluster.py --workers 1000 --tiles 20000 --seconds 10

All workers are in this process, so the numbers hold for the scheduler and our loop, not for a network. The
overhead of a tile is the processor time of this process for it, workers included, beyond what they take when
there is nothing to do: with less than `seconds / workers` the scheduler keeps up. What workers do to watch
themselves is off: a thousand of them in one process would do nothing else. So is the stealing of tasks, for
which the scheduler looks at all workers ten times a second: tiles are alike, and nobody has more than one.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from netsor.gp.stores.engines import completed


async def sleeping(what: bytes, seconds: float, number: int) -> int:
    """A tile that takes its time and computes nothing; `what` is as large as a kernel that travels."""
    await asyncio.sleep(seconds)
    return number


IDLE = 20  # seconds without tiles
QUIET = {
    "distributed.admin.tick.interval": "1h",
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.scheduler.worker-ttl": None,
    "distributed.comm.timeouts.connect": "300s",
}


def main() -> None:
    import dask
    from distributed import Client, LocalCluster

    dask.config.set(QUIET)

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--tiles", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1.0)
    given: Any = parser.parse_args()
    what = bytes(35_000)
    with (
        LocalCluster(
            n_workers=given.workers,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        before = time.process_time()
        time.sleep(IDLE)
        idle = (time.process_time() - before) / IDLE
        start, before = time.perf_counter(), time.process_time()
        items = ((what, given.seconds, k) for k in range(given.tiles))
        done = sum(1 for _ in completed(client, sleeping, items))
        wall, spent = time.perf_counter() - start, time.process_time() - before
    ideal = given.seconds * -(-given.tiles // given.workers)
    print(
        f"{done} tiles of {given.seconds} s on {given.workers} workers: {wall:.1f} s, "
        f"{ideal:.1f} s without overhead; {1e3 * (spent - idle * wall) / done:.2f} ms of processor a tile, "
        f"and {idle:.2f} of a core for {given.workers} idle workers"
    )


if __name__ == "__main__":
    main()
