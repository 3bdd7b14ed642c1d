"""Threads of BLAS beside our own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

__all__ = ["one_blas_thread"]


def one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS on one thread: more would fight with ours for the cores, or cost more than they save."""
    return _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> Any:
    """The libraries for linear algebra that are loaded; to look for them takes time."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
