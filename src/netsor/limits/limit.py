"""mu, Sigma and the scalar limits of the variables of one program: `ns.limit(net, x)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.build.joint_program import InputGroup, Joint
from netsor.build.network import Network, program
from netsor.errors import LimitError
from netsor.lang.expr import Ref
from netsor.lang.program import Program
from netsor.lang.types import C, G, H
from netsor.limits.computation import Computation
from netsor.limits.options import Options
from netsor.limits.plan import Plan
from netsor.limits.result import Result
from netsor.limits.rules.lincomb import cov, mean
from netsor.limits.rules.moment import scalar
from netsor.limits.rules.nonlin import first, second
from netsor.limits.rules.pairs import Pair


class Limit:
    """The limit of a program: `mu(g)`, `sigma(g, g')`, `scalar(c)`, `moment(h, h')` and `kernel()`.

    Variables are named as in `program`. Each method returns an array over the index shapes of its
    arguments (a number for plain variables).
    """

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        group = InputGroup((0,), tuple(range(len(program.outputs))))
        self.computation = Computation(Joint(program, dict(program.data), (group,)), options, (), None)

    def __repr__(self) -> str:
        return f"<limit of a program with {len(self.program.statements)} statements>"

    def mu(self, name: str) -> Any:
        """Return the mean of a G-var."""
        self._require(name, G, "mu is defined for G-vars")
        return self._quantity(self._index(name), mean, Ref(name))

    def sigma(self, name: str, other: str | None = None) -> Any:
        """Return the covariance of two G-vars, by default of one with itself."""
        other = name if other is None else other
        for n in (name, other):
            self._require(n, G, "Sigma is defined for G-vars")
        shape = (*self._index(name), *self._index(other))
        if self.program.types[name].width != self.program.types[other].width:  # type: ignore[union-attr]
            raise LimitError(f"`{name}` and `{other}` have different widths", remedy="Sigma needs one width.")
        return self._quantity(shape, cov, Ref(name), Ref(other), Pair(True))

    def moment(self, name: str, other: str | None = None) -> Any:
        """Return E[h h'] of two vectors, the limit of h.h'/n; without a second vector E[h]."""
        self._require(name, H, "moments are defined for vectors")
        if other is None:
            return self._quantity(self._index(name), first, Ref(name))
        self._require(other, H, "moments are defined for vectors")
        shape = (*self._index(name), *self._index(other))
        return self._quantity(shape, second, Ref(name), Ref(other), Pair(True))

    def scalar(self, name: str) -> Any:
        """Return the limit of a C-var."""
        self._require(name, C, "scalar limits are defined for C-vars")
        return self._quantity(self._index(name), scalar, name)

    def kernel(self) -> Result:
        """Return the covariance of the outputs, with errors and plan."""
        self._require_outputs()
        return self.computation.result(self.program.data, {})

    def plan(self) -> Plan:
        """Return what the kernel of the outputs takes, without computing it."""
        self._require_outputs()
        return self.computation.plan()

    def explain(self) -> str:
        """Return which method computes which expectation of the kernel, as text."""
        return self.kernel().explain()

    def _index(self, name: str) -> tuple[int, ...]:
        return self.program.types[name].index

    def _require_outputs(self) -> None:
        self.program.refuse_changed()
        if not self.program.outputs:
            raise LimitError(
                "the program has no output",
                remedy="A kernel is the covariance of outputs: add a line `Output v^T x / sqrt(n)`, or ask "
                "for mu, sigma, moment or scalar of a variable.",
            )

    def _require(self, name: str, kind: type, why: str) -> None:
        if name not in self.program.types:
            raise LimitError(f"there is no variable `{name}`", remedy=f"The program is:\n{self.program}")
        if not isinstance(self.program.types[name], kind):
            raise LimitError(f"`{name}` is {self.program.types[name]}", remedy=f"Here {why}.")

    def _quantity(self, shape: tuple[int, ...], *question: Any) -> Any:
        self.program.refuse_changed()
        value = self.computation.measure(self.program.data, {}, *question)
        value = np.zeros(shape) if value is None else np.broadcast_to(np.asarray(value)[0, 0], shape)
        return float(value) if not shape else value


def limit(
    net: Network | Program,
    *inputs: Any,
    method: str = "auto",
    tol: float | None = None,
    seed: int = 0,
    dtype: Any = np.float64,
    points: int | None = None,
    repeats: int = 16,
    max_points: int = 2**18,
    progress: bool | None = None,
    memory: int | None = None,
    confirm: bool = False,
    **unknown: Any,
) -> Limit:
    """Return the limit of a network on one or several inputs, or of a program, with these `Options`.

    >>> import netsor as ns
    >>> L = ns.limit(ns.parse('''
    ... Input g :: G(n) ~ N(0, 4)
    ... Input W :: A(n, n) ~ N(0, 2/n)
    ... x := relu(g)
    ... h := MatMul(W, x)
    ... '''))
    >>> L.sigma("h")     # 2 E[relu(g)^2] = 2 * 4 / 2
    4.0
    """
    Options.of(**unknown)  # refuses them
    options = Options(method, tol, seed, dtype, points, repeats, max_points, progress, memory, confirm)
    traced = net if isinstance(net, Program) else program(net, *inputs)
    traced.check()
    return Limit(traced, options)
