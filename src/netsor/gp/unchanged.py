"""Whether a network is still the one that a model was fitted with."""

from __future__ import annotations

from netsor.errors import DataError
from netsor.limits.kernel import KernelFn

__all__ = ["Unchanged"]


class Unchanged:
    """The network of a kernel, and everything that its code reads, as they were when a model was fitted.

    kernel  None while an estimator is pickled without its kernel
    """

    def __init__(self, kernel: KernelFn | None) -> None:
        self.kernel, self.state = kernel, kernel and kernel.net.state()
        self.programs = [] if kernel is None else [p for p in kernel.programs() if not p.changed]

    def check(self) -> None:
        """Refuse a network that has changed: its covariances do not belong to the fitted matrix."""
        if self.kernel is None:
            return
        if self.kernel.net.state() != self.state or any(p.changed for p in self.programs):
            raise DataError(
                f"the network `{self.kernel.net.name}` has changed since the model was fitted",
                remedy="A variance, global, attribute or closure variable that its code reads has another "
                "value. Set it back, or fit the model again.",
            )

    def __reduce__(self):
        return Unchanged, (self.kernel,)  # a state belongs to its process; a network checks itself on arrival
