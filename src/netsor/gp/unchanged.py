"""Whether a network is still the one whose kernel matrix was computed."""

from __future__ import annotations

from netsor.errors import DataError
from netsor.limits.kernel import KernelFn

__all__ = ["Unchanged"]


class Unchanged:
    """The network of a kernel, and everything that its code reads, as they were when its matrix was computed.

    kernel  None while an estimator is pickled without its kernel
    """

    def __init__(self, kernel: KernelFn | None) -> None:
        self.kernel, self.state = kernel, kernel and kernel.net.state()
        self.programs = [] if kernel is None else [p for p in kernel.programs() if not p.changed]

    def check(self) -> None:
        """Refuse a network that has changed: its covariances do not belong to the matrix."""
        if self.kernel is None:
            return
        if self.kernel.net.state() != self.state or any(p.changed for p in self.programs):
            raise DataError(
                f"the network `{self.kernel.net.name}` has changed since its kernel matrix was computed",
                remedy="A variance, global, attribute or closure variable that its code reads has another "
                "value. Set it back, or compute the matrix again.",
            )

    def __reduce__(self):
        return Unchanged, (self.kernel,)  # a state belongs to its process; a network checks itself on arrival
