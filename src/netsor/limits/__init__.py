"""The infinite-width limit of a program."""

from netsor.limits.kernel import KernelFn, kernel
from netsor.limits.limit import Limit, limit
from netsor.limits.run import Options, Result

__all__ = ["KernelFn", "Limit", "Options", "Result", "kernel", "limit"]
