"""The Gaussian-process kernel of a network: `ns.kernel(net)` is a function of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from netsor.build.network import Network, as_inputs, data_of
from netsor.errors import DataError, LimitError
from netsor.lang.program import MatrixLaw, Normal, Program
from netsor.limits.inputs import joint_of, shapes_of
from netsor.limits.run import KernelRun, Options, Result

__all__ = ["KernelFn", "kernel"]


KEPT = 8  # computations that a kernel keeps


class KernelFn:
    """The kernel of a network: `K(x)`, `K(x, y)`, `K.diag(x)`, `K.evaluate(x, y)`.

    The network is read once for inputs of given shapes; further calls run what was recorded then.
    """

    def __init__(self, net: Network, options: Options) -> None:
        self.net, self.options = net, options
        self._known: dict[Any, KernelRun] = {}

    def __repr__(self) -> str:
        return f"<kernel of {self.net.name}>"

    def __call__(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Any:
        """The kernel matrix of a set of inputs, or between two sets."""
        shapes = shapes_of(x, y, params or {})
        run = self._again(shapes, x, y, params or {}) or self.run(x, y, params)
        value = run.value()
        if shapes is not None and run.serves_others:
            self._known.pop(shapes, None)
            self._known[shapes] = run.on({}, {})
            while len(self._known) > KEPT:
                self._known.pop(next(iter(self._known)))
        return value

    def _again(self, shapes: Any, x: Any, y: Any, params: Mapping[str, Any]) -> KernelRun | None:
        """The computation that is known for such shapes, on these inputs."""
        known = self._known.get(shapes)
        if known is None:
            return None
        inputs = as_inputs(x) + ([] if y is None else as_inputs(y))
        try:
            return known.on(data_of(known.made, inputs), self.check_params(params, known.program))
        except DataError:  # tracing says which input it is
            return None

    def evaluate(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Result:
        """The kernel matrix with its error estimate and plan."""
        return self.run(x, y, params).result()

    def run(self, x: Any, y: Any = None, params: Mapping[str, Any] | None = None) -> KernelRun:
        """The computation of a kernel matrix, ready to start."""
        made, split = joint_of(self.net, x, y, params or {})
        used = self.check_params(params or {}, made.program)
        return KernelRun(made, self.options, used, split)

    def diag(self, x: Any, *, params: Mapping[str, Any] | None = None) -> Any:
        """The variances of all outputs; where the kernel is sampled, each input is sampled on its own."""
        found = self.run(x, None, params).diagonal()
        if found is None:
            found = np.concatenate([np.diagonal(self([xi], params=params)) for xi in as_inputs(x)])
        return found

    @property
    def params(self) -> dict[str, float]:
        """The variances of the network's matrices and vectors by name."""
        named = {name: parameter.var for parameter, name in self.net.parameters().items()}
        return {name: var for name, var in named.items() if isinstance(var, float)}

    def check_params(self, given: Mapping[str, Any], program: Program) -> dict[str, Any]:
        """The given variances that the program has; a short sequence may do without some matrices."""
        if not given:
            return {}
        used = program_params(program)
        known = {**self.params, **used}
        for name, value in given.items():
            if name not in known:
                raise LimitError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(known)}.")
            if isinstance(value, int | float) and not (np.isfinite(value) and value >= 0):
                raise LimitError(f"the variance `{name}` is {value}", remedy="A variance is finite and >= 0.")
        return {name: value for name, value in given.items() if name in used}


def kernel(net: Network, **options: Any) -> KernelFn:
    """The infinite-width kernel of a network as a function of inputs; options as in `Options`.

    >>> import numpy as np, netsor as ns
    >>> K = ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0))
    >>> K(np.array([[1.0, 0.0], [0.0, 2.0]])).round(4)
    array([[0.25  , 0.1592],
           [0.1592, 1.    ]])
    """
    if not isinstance(net, Network):
        raise LimitError(
            f"{net!r} is not a network",
            remedy="Decorate the function with @ns.network, or take one from ns.zoo.",
        )
    return KernelFn(net, Options(**options))


def program_params(program: Program) -> dict[str, float]:
    """The variances of a program by the name of their input."""
    found: dict[str, float] = {}
    for s in program.inputs:
        if isinstance(s.law, MatrixLaw):
            found[s.name] = s.law.var
        elif isinstance(s.law, Normal) and isinstance(s.law.cov, float):
            found[s.name] = s.law.cov
    return found
