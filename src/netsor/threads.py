"""Threads: our own, and those of BLAS beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

__all__ = ["THREADS", "cores", "helpers", "in_parts", "one_blas_thread"]

THREADS = "NETSOR_THREADS"  # the variable of the environment that says how many threads a process may have


def cores() -> int:
    """How many threads pay: the cores that this process may use, or fewer if NETSOR_THREADS says so."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = os.environ.get(THREADS, "")
    return min(allowed, max(1, int(said))) if said.isdecimal() else allowed


@cache
def helpers(count: int) -> Executor:
    """Threads beside the one that asks, which stay for the next one: to start them takes a tenth of a
    millisecond.
    """
    return ThreadPoolExecutor(count, "netsor")


if hasattr(os, "register_at_fork"):  # a process that is forked has none of them
    os.register_at_fork(after_in_child=helpers.cache_clear)


def in_parts(threads: Executor | None, count: int, size: int, work: Callable[[slice], Any]) -> None:
    """Work on `count` things, `size` at a time, on threads if there are any: the parts are always the same.

    >>> in_parts(None, 5, 2, print)
    slice(0, 2, None)
    slice(2, 4, None)
    slice(4, 5, None)
    """
    parts = [slice(k, min(k + size, count)) for k in range(0, count, size)]
    if threads is None or len(parts) == 1:
        for part in parts:
            work(part)
    else:
        for job in [threads.submit(work, part) for part in parts]:
            job.result()


def one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS on one thread: more would fight with ours for the cores, or cost more than they save."""
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> Any:
    """The libraries for linear algebra that are loaded; to look for them takes time."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
