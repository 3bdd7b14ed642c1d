"""The command line: show, check, tangent, limit, kernel, plan, status, fit, predict, simulate, verify, train,
plot, report, reproduce.

Exit codes: 0 done; 1 an error, which is printed without a traceback; 2 wrong usage; 3 `verify` found that
the network does not agree with its limit; 130 interrupted.
"""

from netsor.cli import kernels, pictures, programs, reports, reproduce, stores, training
from netsor.cli.app import app

__all__ = ["app", "kernels", "pictures", "programs", "reports", "reproduce", "stores", "training"]
