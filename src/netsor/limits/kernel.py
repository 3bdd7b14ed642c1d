"""The Gaussian-process kernel of a network: `ns.kernel(net)` is a function of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from netsor import arguments
from netsor.build.network import Joint, Network, as_inputs, require_network
from netsor.build.tangent import TangentNetwork, tangent
from netsor.errors import LimitError
from netsor.expect.points.landmarks import Landmarks
from netsor.lang.libraries import is_traced
from netsor.lang.program import MatrixLaw, Normal, Program
from netsor.lang.tangent import Tangent
from netsor.limits.computation import Computation
from netsor.limits.inputs import Inputs
from netsor.limits.options import Options
from netsor.limits.plan import Plan
from netsor.limits.result import Result
from netsor.limits.sampling.values import HELD
from netsor.limits.tiling import Cut

__all__ = ["KernelFn", "TangentKernelFn", "kernel", "ntk"]


SHOWN = 60  # characters of a value in a message
KEPT = 8  # computations that a kernel keeps


class KernelFn:
    """The kernel of a network: `K(x, y=None)`, and `diag`, `mean`, `evaluate` and `plan` of the same inputs.

    The network is read and planned once for inputs of given shapes; further calls carry out that plan.
    """

    def __init__(self, net: Network, options: Options) -> None:
        self.net, self.options = net, options
        self._known: dict[Any, Computation] = {}

    def __repr__(self) -> str:
        return f"<kernel of {self.net.name}>"

    def __getstate__(self) -> dict[str, Any]:
        """What travels: the network as it was read, without what was recorded and compiled."""
        now, known = self.net.state(), {}
        for (shapes, state), computation in self._known.items():
            if state == now and not computation.made.requirements:  # these are functions of the layers
                known[shapes] = computation
        return {"net": self.net, "options": self.options, "known": known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.net, self.options = state["net"], state["options"]
        now = self.net.state()
        self._known = {(shapes, now): computation for shapes, computation in state["known"].items()}

    def __call__(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Any:
        """The kernel matrix of a set of inputs, or between two sets."""
        inputs = Inputs(x, y, _named(params))
        return inputs.kernel(*self._computation(inputs))

    def of_params(self, x: Any) -> Callable[[Mapping[str, Any]], np.ndarray]:
        """K(x) as a function of the variances, smooth also where it is sampled.

        What sampling chooses by the numbers (directions, the order of variables) is chosen in the first call.

        >>> import numpy as np, netsor as ns
        >>> at = ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0)).of_params(np.eye(2))
        >>> at({"v": 1.0})[0, 0].round(3), at({"v": 2.0})[0, 0].round(3)
        (np.float64(0.25), np.float64(0.5))
        """
        held: dict[str, Any] = {HELD: {}}

        def matrix(params: Mapping[str, Any]) -> np.ndarray:
            computation, data, given = self._computation(Inputs(x, None, params).in_numpy())
            return computation.value(data, {name: float(v) for name, v in given.items()}, held)

        return matrix

    def evaluate(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Result:
        """The kernel matrix with its error estimate and plan."""
        computation, data, given = self._computation(Inputs(x, y, _named(params)).in_numpy())
        return computation.result(data, given)

    def plan(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Plan:
        """What the kernel matrix takes, without computing it: methods, samples, work and memory.

        >>> import numpy as np, netsor as ns
        >>> print(ns.kernel(ns.zoo.mlp(depth=1)).plan(np.ones((3, 2))))
        A program of 7 statements, a kernel of 3 x 3.
          E[relu relu]: closed form, 1 block
          459 multiply-adds in 1 tile, 288 bytes of workspace
        """
        computation, _, _ = self._computation(Inputs(x, y, _named(params)).in_numpy())
        return computation.plan()

    def cut(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Cut | None:
        """How a kernel is cut into tiles, from shapes alone; None if something must be sampled."""
        inputs = Inputs(x, y, _named(params)).in_numpy()
        made = inputs.joint_of_shapes(self.net)
        used = self.check_params(inputs.params, made)
        exact = Computation(made, self.options, tuple(used), inputs.split).exact(errors=True)
        return None if exact is None else exact[1].cut

    def read(self, x: Any, y: Any, cut: Cut, *, params: Mapping[str, Any] | None = None) -> None:
        """Read the network on such inputs: where the kernel travels to, a part of them is not read again."""
        self._computation(Inputs(x, y, params or {}).in_numpy(), cut)

    def part(self, x: Any, y: Any, cut: Cut, *, params: Mapping[str, Any] | None = None) -> Result:
        """A part of a kernel that is cut so: the numbers that the whole has there, to the last bit."""
        computation, data, given = self._computation(Inputs(x, y, params or {}).in_numpy(), cut)
        rows = computation.rows
        if computation.program.noise and rows.left_size + rows.right_size * (y is not None) > rows.count:
            raise LimitError(
                "a part of the kernel of a network with noise and several outputs",
                remedy="The outputs of one input, which share their noise, may stand in two parts. Compute "
                "the kernel in memory, or of one output.",
            )
        return computation.result(data, given)

    def has_landmarks(self, x: Any) -> bool:
        """Whether it is sampled, and inputs like these can be drawn with landmarks."""
        return self._computation(Inputs(x, None, {}).in_numpy())[0].has_landmarks

    def landmark_part(
        self, x: Any, landmarks: Landmarks, *, params: Mapping[str, Any] | None = None
    ) -> Result:
        """The sampled kernel of landmarks and others; each of them is drawn as it is with any others."""
        computation, data, given = self._computation(Inputs(x, None, params or {}).in_numpy())
        return computation.landmark_part(data, given, landmarks)

    def mean(self, x: Any) -> np.ndarray:
        """The means of all outputs: the constants that a network adds to them, else 0."""
        computation, _, _ = self._computation(Inputs(x, None, {}).in_numpy())
        return computation.means()

    def diag(self, x: Any, *, params: Mapping[str, Any] | None = None) -> Any:
        """The variances of all outputs; where the kernel is sampled, each input is sampled on its own."""
        inputs = Inputs(x, None, _named(params))
        computation, data, given = self._computation(inputs.in_numpy())
        found = computation.diagonal(data, given)
        if found is None:
            found = np.concatenate([np.diagonal(self([xi], params=params)) for xi in as_inputs(x)])
        return inputs.in_its_library(found)

    def programs(self) -> list[Program]:
        """The programs that the network was last read as."""
        return [computation.program for computation in self._known.values()]

    def _computation(
        self, inputs: Inputs, cut: Cut | None = None
    ) -> tuple[Computation, dict[str, Any], dict[str, Any]]:
        """The computation for inputs of such shapes, with their data and variances."""
        key, known = None, None
        if inputs.shapes is not None:
            key = (
                (inputs.shapes, cut),
                self.net.state(),
            )  # what the network reads besides its input may change
            known = self._known.pop(key, None)
        if known is None or known.program.changed:
            made = inputs.joint(self.net)
            used = self.check_params(inputs.params, made)
            known = Computation(made, self.options, tuple(used), inputs.split, cut)
            data = made.data
        else:
            used = self.check_params(inputs.params, known.made)
            data = inputs.data(known.made)
        if key is not None and not known.made.concrete:
            self._keep(key, known)
        return known, data, used

    def _keep(self, key: Any, computation: Computation) -> None:
        """Keep a computation, and forget the oldest."""
        self._known[key] = computation
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))

    @property
    def params(self) -> dict[str, float]:
        """The variances of the network's matrices and vectors by name."""
        named = {name: parameter.var for parameter, name in self.net.parameters().items()}
        return {name: var for name, var in named.items() if isinstance(var, float)}

    def check_params(self, given: Mapping[str, Any], made: Joint) -> dict[str, Any]:
        """The given variances that the program has; a short sequence may do without some matrices."""
        if not given:
            return {}
        tangent = made.tangent
        used = program_params(tangent.source if tangent else made.program)
        if tangent:
            used |= {f"{name}.rate": tangent.rates.rate(name) for name in tangent.directions}
        known = {**self.params, **used}
        for name, value in given.items():
            if name not in known:
                raise LimitError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(known)}.")
            _require_variance(name, value)
        found = {name: value for name, value in given.items() if name in used}
        return tangent.variances(found) if tangent else found


class TangentKernelFn(KernelFn):
    """The tangent kernel of a network: a kernel like any other, and what it is made of.

    Variances of `params` are those of the network's parameters; their rates are called `W.rate`.
    """

    net: TangentNetwork

    @cached_property
    def nngp(self) -> KernelFn:
        """The kernel of the network itself."""
        return KernelFn(self.net.net, self.options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "nngp": self.nngp}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.nngp = state["nngp"]

    def evaluate(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Result:
        """The kernel matrix with its error estimate and plan.

        Where derivatives are differences, the error has what a step twice as long changes.
        """
        found = super().evaluate(x, y, params=params)
        if not self._tangent(Inputs(x, y, _named(params)).in_numpy()).differences:
            return found
        other = self._coarser.evaluate(x, y, params=params)
        return found.moved(other.value, y is None, self.options.tol)

    def part(self, x: Any, y: Any, cut: Cut, *, params: Mapping[str, Any] | None = None) -> Result:
        """A part of a kernel that is cut so: the numbers that the whole has there, to the last bit."""
        found = super().part(x, y, cut, params=params)
        if not self._tangent(Inputs(x, y, params or {}).in_numpy(), cut).differences:
            return found
        return found.moved(self._coarser.part(x, y, cut, params=params).value, y is None)

    def landmark_part(
        self, x: Any, landmarks: Landmarks, *, params: Mapping[str, Any] | None = None
    ) -> Result:
        """The sampled kernel of landmarks and others; each of them is drawn as it is with any others."""
        found = super().landmark_part(x, landmarks, params=params)
        if not self._tangent(Inputs(x, None, params or {}).in_numpy()).differences:
            return found
        return found.moved(self._coarser.landmark_part(x, landmarks, params=params).value, True)

    @cached_property
    def _coarser(self) -> KernelFn:
        """With differences over twice the step."""
        return KernelFn(TangentNetwork(self.net.net, self.net.rates, True), self.options)

    def parts(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The part of each parameter that is trained; they add up to the kernel, linear in the rates.

        >>> import numpy as np, netsor as ns
        >>> parts = ns.ntk(ns.zoo.mlp(depth=1, var_b=0.0)).parts(np.eye(2))
        >>> {name: part.round(3).tolist() for name, part in parts.items()}
        {'W1': [[0.25, 0.0], [0.0, 0.25]], 'v': [[0.25, 0.08], [0.08, 0.25]]}
        """
        inputs = Inputs(x, y, _named(params)).in_numpy()
        tangent = self._tangent(inputs)
        rates = {name: tangent.rates.rate(name) for name in tangent.directions}
        own = [{f"{p}.rate": rate if p == name else 0.0 for p, rate in rates.items()} for name in rates]
        found = self._versions(inputs, [tangent.variances({**inputs.params, **part}) for part in own])
        if found is None:
            return {
                name: self(x, y, params={**inputs.params, **part})
                for name, part in zip(rates, own, strict=True)
            }
        return dict(zip(rates, map(inputs.in_its_library, found), strict=True))

    def both(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """The kernel of the network itself (NNGP) and its tangent kernel, in one pass.

        The first is the part of readouts that move as far as they vary, if nothing else moves.
        """
        inputs = Inputs(x, y, _named(params)).in_numpy()
        tangent = self._tangent(inputs)
        readouts = {t.readout for s in tangent.source.outputs for t in s.terms}
        own = {**program_params(tangent.source), **inputs.params}
        if readouts <= tangent.directions.keys() and readouts <= own.keys():
            still = {d: own[p] if p in readouts else 0.0 for p, d in tangent.directions.items()}
            moving = tangent.variances({**own, **inputs.params})
            found = self._versions(inputs, [{**moving, **still}, moving])
            if found is not None:
                return inputs.in_its_library(found[0]), inputs.in_its_library(found[1])
        return self.nngp(x, y, params=params), self(x, y, params=params)

    def _tangent(self, inputs: Inputs, cut: Cut | None = None) -> Tangent:
        tangent = self._computation(inputs, cut)[0].made.tangent
        assert tangent is not None
        return tangent

    def _versions(self, inputs: Inputs, variances: list[dict[str, Any]]) -> np.ndarray | None:
        """Kernels for several variances of the directions, from one pass; None where it takes several."""
        plain, data, used = self._computation(inputs)
        names = set(self._tangent(inputs).directions.values())
        varied = tuple(name for name in variances[0] if name in names)
        numbers = names <= program_params(plain.program).keys()  # and no covariance matrices
        if not numbers or len(varied) < len(names) or self.options.tol is not None or inputs.shapes is None:
            return None
        scalars = {name: value for name, value in used.items() if name not in names}
        key = (inputs.shapes, self.net.state(), varied, len(variances))
        several = self._known.pop(key, None)
        if several is None or several.program.changed:
            made = replace(plain.made, data=data)
            several = Computation(
                made, self.options, tuple(scalars), inputs.split, varied=varied, versions=len(variances)
            )
        if not plain.made.concrete:
            self._keep(key, several)
        return several.several(data, scalars, variances)


def _named(params: Any) -> Mapping[str, Any]:
    return arguments.mapping("params", params, '{"W1": 2.0}', error=LimitError)


def _require_variance(name: str, value: Any) -> None:
    """One real number that is finite and not negative, as far as can be seen: JAX may trace it."""
    if hasattr(value, "requires_grad"):
        value = arguments.array(f"the variance `{name}`", value, error=LimitError)
    array: Any = value if is_array_api_obj(value) else np.asarray(value)
    real = array.ndim == 0 and str(array.dtype).startswith(("float", "int", "uint", "bfloat"))
    if real and (is_traced(array) or (np.isfinite(float(array)) and float(array) >= 0)):
        return
    shown = repr(value) if len(repr(value)) < SHOWN else f"of shape {array.shape}"
    raise LimitError(
        f"the variance `{name}` is {shown}",
        remedy="A variance is one real number for all inputs, finite and >= 0.",
    )


def kernel(
    net: Network,
    *,
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
) -> KernelFn:
    """The infinite-width kernel of a network as a function of inputs; the options are those of `Options`.

    >>> import numpy as np, netsor as ns
    >>> K = ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0))
    >>> K(np.array([[1.0, 0.0], [0.0, 2.0]])).round(4)
    array([[0.25  , 0.1592],
           [0.1592, 1.    ]])
    """
    require_network(net)
    options = Options.of(
        method=method,
        tol=tol,
        seed=seed,
        dtype=dtype,
        points=points,
        repeats=repeats,
        max_points=max_points,
        progress=progress,
        memory=memory,
        confirm=confirm,
        **unknown,
    )
    return TangentKernelFn(net, options) if isinstance(net, TangentNetwork) else KernelFn(net, options)


def ntk(net: Network, rates: Any = None, **options: Any) -> TangentKernelFn:
    """The tangent kernel of a network at infinite width: `ns.kernel(ns.tangent(net, rates), **options)`.

    >>> import numpy as np, netsor as ns
    >>> ns.ntk(ns.zoo.mlp(depth=1, var_b=0.0))(np.eye(2)).round(4)
    array([[0.5   , 0.0796],
           [0.0796, 0.5   ]])
    """
    found = kernel(tangent(net, rates), **options)
    assert isinstance(found, TangentKernelFn)
    return found


def program_params(program: Program) -> dict[str, float]:
    """The variances of a program by the name of their input."""
    found: dict[str, float] = {}
    for s in program.inputs:
        if isinstance(s.law, MatrixLaw):
            found[s.name] = s.law.var
        elif isinstance(s.law, Normal) and isinstance(s.law.cov, float):
            found[s.name] = s.law.cov
    return found
