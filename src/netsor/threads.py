"""Threads: our own, and those of BLAS beside them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

__all__ = ["THREADS", "cores", "one_blas_thread"]

THREADS = "NETSOR_THREADS"  # the variable of the environment that says how many threads a process may have


def cores() -> int:
    """How many threads pay: the cores that this process may use, or fewer if NETSOR_THREADS says so."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = os.environ.get(THREADS, "")
    return min(allowed, max(1, int(said))) if said.isdecimal() else allowed


def one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS on one thread: more would fight with ours for the cores, or cost more than they save."""
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> Any:
    """The libraries for linear algebra that are loaded; to look for them takes time."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
