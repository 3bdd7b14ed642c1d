"""Threads for kernels, and the number of threads of BLAS beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

THREADS = "NETSOR_THREADS"  # the environment variable that limits the threads of a process


def cores() -> int:
    """Count the cores that this process may use, at most NETSOR_THREADS if that is set."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get(THREADS, "")
    return min(allowed, max(1, int(limit))) if limit.isdecimal() else allowed


@cache
def helpers(count: int) -> Executor:
    """Threads beside the calling one. They are kept, because starting them takes longer than a small tile."""
    return ThreadPoolExecutor(count, "netsor")


if hasattr(os, "register_at_fork"):  # a forked process inherits the pool but none of its threads
    os.register_at_fork(after_in_child=helpers.cache_clear)


def in_parts(threads: Executor | None, count: int, size: int, work: Callable[[slice], object]) -> None:
    """Call `work` on slices of `size` items out of `count`, on threads if there are any.

    The slices do not depend on the threads, so results do not either.

    >>> in_parts(None, 5, 2, print)
    slice(0, 2, None)
    slice(2, 4, None)
    slice(4, 5, None)
    """
    parts = [slice(k, min(k + size, count)) for k in range(0, count, size)]
    run = map if threads is None or len(parts) == 1 else threads.map
    for _ in run(work, parts):  # results are not kept
        pass


def one_blas_thread() -> AbstractContextManager[object]:
    """Run BLAS on one thread: more would compete with ours for the cores, or cost more than they save."""
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> ThreadpoolController:
    """The libraries for linear algebra that are loaded; finding them takes time."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
