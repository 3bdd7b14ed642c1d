"""Detection of networks that have changed since their kernel matrix was computed."""

from __future__ import annotations

from netsor.errors import DataError
from netsor.limits.kernel import KernelFn


class Unchanged:
    """The state of a network, and of all that its code reads, at the time of its kernel matrix.

    kernel  None while an estimator is pickled without it
    """

    def __init__(self, kernel: KernelFn | None) -> None:
        self.kernel, self.state = kernel, kernel and kernel.net.state()
        self.programs = [] if kernel is None else [p for p in kernel.programs() if not p.changed]

    def check(self) -> None:
        """Raise a DataError if the network has changed: its covariances would not fit the matrix."""
        if self.kernel is None:
            return
        if self.kernel.net.state() != self.state or any(p.changed for p in self.programs):
            raise DataError(
                f"the network `{self.kernel.net.name}` has changed since its kernel matrix was computed",
                remedy="A variance, global, attribute or closure variable that its code reads has another "
                "value. Set it back, or compute the matrix again.",
            )

    def __reduce__(self):
        return Unchanged, (self.kernel,)  # states are valid in one process; unpickling a network checks it
