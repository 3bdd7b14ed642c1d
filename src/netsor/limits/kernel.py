"""The Gaussian-process kernel of a network: `ns.kernel(net)` is a function of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj
from numpy.typing import DTypeLike

from netsor import arguments
from netsor.build.joint_program import Joint, as_inputs
from netsor.build.network import Network, require_network
from netsor.build.tangent_network import TangentNetwork, tangent
from netsor.errors import LimitError
from netsor.lang.array_api import is_traced
from netsor.lang.program import MatrixLaw, Normal, Program
from netsor.limits.computation import Computation
from netsor.limits.inputs import Inputs, InputSet, Variances
from netsor.limits.options import Options
from netsor.limits.plan import Plan
from netsor.limits.result import Result
from netsor.limits.tiling import Cut


class KernelFn:
    """The kernel of a network: `K(x, y=None)`, and `diag`, `mean`, `evaluate` and `plan` of the same inputs.

    Inputs are an array whose first axis runs over inputs, or a list of arrays of any shapes. NumPy arrays
    give NumPy arrays; arrays of another library (JAX, PyTorch) give arrays of that library. `params` replaces
    variances of the network, by name.

    The network is read and planned once for inputs of given shapes. Further calls reuse that plan. All
    methods take inputs and variances as `K(x, y, params=...)` does.
    """

    def __init__(self, net: Network, options: Options) -> None:
        self.net, self.options = net, options
        self._computations: dict[Any, Computation] = {}

    def __repr__(self) -> str:
        return f"<kernel of {self.net.name}>"

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the network as it was read, without recordings and compiled code."""
        now = self.net.state()
        computations = {
            shapes: computation
            for (shapes, state), computation in self._computations.items()
            if state == now and not computation.made.requirements  # requirements are functions: no pickle
        }
        return {"net": self.net, "options": self.options, "computations": computations}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.net, self.options = state["net"], state["options"]
        now = self.net.state()
        self._computations = {(shapes, now): kept for shapes, kept in state["computations"].items()}

    def __call__(self, x: InputSet, y: InputSet | None = None, *, params: Variances = None) -> np.ndarray:
        """Return the kernel matrix of a set of inputs, or between two sets.

        Parameters
        ----------
        x, y
            Inputs of the rows and of the columns; without y, x is both.
        params
            Variances that replace the network's own, by name.

        Returns
        -------
        np.ndarray
            (rows, columns): one row for each output of each input. An array of the inputs' library.

        Raises
        ------
        LimitError
            The network has no limit on these inputs, no exact method (`method="exact"`), or an error above
            `tol`.

        Examples
        --------
        >>> import numpy as np, netsor as ns
        >>> ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0))(np.eye(2), params={"v": 2.0}).round(3)
        array([[0.5  , 0.159],
               [0.159, 0.5  ]])
        """
        inputs = Inputs(x, y, params)
        return inputs.kernel(*self._computation(inputs))

    def evaluate(self, x: InputSet, y: InputSet | None = None, *, params: Variances = None) -> Result:
        """Return the kernel matrix with an error for each entry, and its plan.

        If derivatives are differences, the error includes the change that a step twice as long makes.

        Parameters
        ----------
        x, y, params
            As in `K(x, y, params=...)`. They must have values: JAX cannot trace this call.

        Returns
        -------
        Result
            `value` and `error`, (rows, columns), and `plan`.

        Examples
        --------
        >>> import numpy as np, netsor as ns
        >>> ns.kernel(ns.zoo.mlp(depth=1)).evaluate(np.eye(2)).error.max() < 1e-14
        np.True_
        """
        return self._result(Inputs(x, y, params), Computation.result, tol=self.options.tol)

    def plan(self, x: InputSet, y: InputSet | None = None, *, params: Variances = None) -> Plan:
        """Return what the kernel matrix takes, without computing it: methods, samples, work and memory.

        Parameters
        ----------
        x, y, params
            As in `K(x, y, params=...)`; only their shapes matter.

        Returns
        -------
        Plan
            `print` shows it as text.

        Examples
        --------
        >>> import numpy as np, netsor as ns
        >>> print(ns.kernel(ns.zoo.mlp(depth=1)).plan(np.ones((3, 2))))
        A program of 7 statements, a kernel of 3 x 3.
          E[relu relu]: closed form, 1 block
          459 multiply-adds in 1 tile, 288 bytes of workspace
        """
        computation, _, _ = self._computation(Inputs(x, y, params).in_numpy())
        return computation.plan()

    def mean(self, x: InputSet) -> np.ndarray:
        """Return the means of all outputs: the constants that a network adds to them, else 0.

        Parameters
        ----------
        x
            As in `K(x)`.

        Returns
        -------
        np.ndarray
            (rows,)
        """
        computation, _, _ = self._computation(Inputs(x).in_numpy())
        means = np.zeros(computation.rows.left_size)
        for output, rows in zip(computation.program.outputs, computation.rows.left, strict=True):
            means[rows[rows >= 0]] = output.shift
        return means

    def diag(self, x: InputSet, *, params: Variances = None) -> np.ndarray:
        """Return the variances of all outputs; if the kernel is sampled, sample each input separately.

        Parameters
        ----------
        x, params
            As in `K(x, params=...)`.

        Returns
        -------
        np.ndarray
            (rows,), in the inputs' library.

        Examples
        --------
        >>> import numpy as np, netsor as ns
        >>> ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0)).diag(np.eye(2)).round(3)
        array([0.25, 0.25])
        """
        inputs = Inputs(x, params=params)
        computation, data, used = self._computation(inputs.in_numpy())
        variances = computation.diagonal(data, used)
        if variances is None:
            variances = np.concatenate([np.diagonal(self([xi], params=params)) for xi in as_inputs(x)])
        return inputs.in_its_library(variances)

    def programs(self) -> list[Program]:
        """Return the programs of the network for the inputs of recent calls."""
        return [computation.program for computation in self._computations.values()]

    @property
    def params(self) -> dict[str, float]:
        """The variances of the network's matrices and vectors, by name."""
        return {name: p.var for p, name in self.net.parameters().items() if isinstance(p.var, float)}

    def _computation(
        self, inputs: Inputs, cut: Cut | None = None
    ) -> tuple[Computation, dict[str, Any], dict[str, Any]]:
        """Return the computation for inputs of these shapes, with their data and variances."""
        # The network may read state besides its input, which can change between calls.
        key = None if inputs.shapes is None else ((inputs.shapes, cut), self.net.state())
        computation = self._computations.pop(key, None)
        if computation is None or computation.program.changed:
            joint = inputs.joint(self.net)
            used, data = self._used_params(inputs.params, joint), joint.data
            computation = Computation(joint, self.options, tuple(used), inputs.split, cut)
        else:
            used, data = self._used_params(inputs.params, computation.made), inputs.data(computation.made)
        if key is not None and not computation.made.concrete:
            self._computations[key] = computation
            if len(self._computations) > 8:  # calls often alternate between a few shapes
                del self._computations[next(iter(self._computations))]
        return computation, data, used

    def _result(
        self,
        inputs: Inputs,
        run: Callable[[Computation, Any, Any], Result],
        cut: Cut | None = None,
        tol: float | None = None,
    ) -> Result:
        """Return the result of a run, with the error of differences that stand for derivatives."""
        computation, data, used = self._computation(inputs.in_numpy(), cut)
        result, tangent = run(computation, data, used), computation.made.tangent
        if not (tangent and tangent.differences) or self._coarser is None:
            return result
        return result.moved(self._coarser._result(inputs, run, cut).value, inputs.y is None, tol)

    def _used_params(self, given: Mapping[str, Any], joint: Joint) -> dict[str, Any]:
        """Return those given variances that the program uses; short sequences may not use all matrices."""
        if not given:
            return {}
        tangent = joint.tangent
        laws = {s.name: s.law for s in (tangent.source if tangent else joint.program).inputs}
        in_program = {
            name: None
            for name, law in laws.items()
            if isinstance(law, MatrixLaw) or (isinstance(law, Normal) and isinstance(law.cov, float))
        }
        if tangent:
            in_program |= dict.fromkeys(f"{name}.rate" for name in tangent.directions)
        names = dict.fromkeys([*self.params, *in_program])
        for name, value in given.items():
            if name not in names:
                raise LimitError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(names)}.")
            _require_variance(name, value)
        used = {name: value for name, value in given.items() if name in in_program}
        return tangent.variances(used) if tangent else used

    @cached_property
    def _coarser(self) -> KernelFn | None:
        """The same kernel with differences over twice the step, if there can be differences."""
        return None


class TangentKernelFn(KernelFn):
    """The tangent kernel of a network: a kernel with the contributions of its parameters.

    `params` replaces variances of the network's parameters; the learning rate of W is called `W.rate`.
    """

    net: TangentNetwork

    @cached_property
    def nngp(self) -> KernelFn:
        """The kernel of the network itself."""
        return KernelFn(self.net.net, self.options)

    @cached_property
    def _coarser(self) -> KernelFn | None:
        return KernelFn(TangentNetwork(self.net.net, self.net.rates, True), self.options)

    def parts(
        self, x: InputSet, y: InputSet | None = None, *, params: Variances = None
    ) -> dict[str, np.ndarray]:
        """Return the contribution of each trained parameter; they add up to the kernel.

        Parameters
        ----------
        x, y, params
            As in `K(x, y, params=...)`.

        Returns
        -------
        dict
            A kernel matrix (rows, columns) for each name.

        Examples
        --------
        >>> import numpy as np, netsor as ns
        >>> parts = ns.ntk(ns.zoo.mlp(depth=1, var_b=0.0)).parts(np.eye(2))
        >>> {name: part.round(3).tolist() for name, part in parts.items()}
        {'W1': [[0.25, 0.0], [0.0, 0.25]], 'v': [[0.25, 0.08], [0.08, 0.25]]}
        """
        inputs = Inputs(x, y, params)
        tangent = self._computation(inputs.in_numpy())[0].made.tangent
        assert tangent is not None
        rates = {name: tangent.rates.rate(name) for name in tangent.directions}

        def alone(name: str) -> np.ndarray:
            # The kernel is linear in the rates, so all other rates at 0 leave one contribution.
            only = {f"{p}.rate": rate * (p == name) for p, rate in rates.items()}
            return self(x, y, params={**inputs.params, **only})

        return {name: alone(name) for name in rates}

    def both(
        self, x: InputSet, y: InputSet | None = None, *, params: Variances = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel of the network itself (NNGP) and its tangent kernel.

        Parameters
        ----------
        x, y, params
            As in `K(x, y, params=...)`.

        Returns
        -------
        tuple
            Two kernel matrices (rows, columns).
        """
        return self.nngp(x, y, params=params), self(x, y, params=params)


def _require_variance(name: str, value: Any) -> None:
    """Refuse anything but one real number >= 0 and finite; the value of a JAX tracer cannot be checked."""
    if hasattr(value, "requires_grad"):
        value = arguments.array(f"the variance `{name}`", value, error=LimitError)
    array: Any = value if is_array_api_obj(value) else np.asarray(value)
    real = array.ndim == 0 and str(array.dtype).startswith(("float", "int", "uint", "bfloat"))
    if real and (is_traced(array) or (np.isfinite(float(array)) and float(array) >= 0)):
        return
    shown = repr(value) if len(repr(value)) < 60 else f"of shape {array.shape}"
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
    dtype: DTypeLike = np.float64,
    points: int | None = None,
    repeats: int = 16,
    max_points: int = 2**18,
    progress: bool | None = None,
    memory: int | None = None,
    confirm: bool = False,
    **unknown: Any,
) -> KernelFn:
    """Return the infinite-width kernel of a network as a function of inputs.

    Parameters
    ----------
    net
        The result of `ns.network` or of a model's importer; that of `ns.tangent` gives the tangent kernel.
    method
        "auto" uses an exact method wherever there is one, "exact" raises `LimitError` if there is none,
        "sample" samples everything that can be sampled.
    tol
        Sampling continues until twice the error is below tol * sqrt(K_ii K_jj), or raises `LimitError`.
    seed
        Seed of the sample points.
    dtype
        Type of the kernel: float64 or float32.
    points
        Sample points per repeat to begin with, a power of two. Without a tolerance 4096, and up to four times
        as many in a second try if the error is above 5e-4 of the scale.
    repeats
        Number of independent randomisations; their spread is the error. `tol` may take four times as many.
    max_points
        Largest number of sample points per repeat that `tol` may lead to.
    progress
        Whether to show a bar, or in a log a line every ten seconds; by default after two seconds.
    memory
        Bytes of workspace beyond inputs and kernel; by default 256 MB, or what one pair of inputs needs.
    confirm
        Allow a run that takes more than an hour by its plan; otherwise it is refused.

    Returns
    -------
    KernelFn
        K(x) is the kernel matrix, K.evaluate(x) has its errors.

    Raises
    ------
    LimitError
        An option has an invalid value.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> K = ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0))
    >>> K(np.array([[1.0, 0.0], [0.0, 2.0]])).round(4)
    array([[0.25  , 0.1592],
           [0.1592, 1.    ]])
    """
    require_network(net)
    Options.of(**unknown)  # refuses them
    options = Options(method, tol, seed, dtype, points, repeats, max_points, progress, memory, confirm)
    return TangentKernelFn(net, options) if isinstance(net, TangentNetwork) else KernelFn(net, options)


def ntk(net: Network, rates: Any = None, **options: Any) -> TangentKernelFn:
    """Return the infinite-width tangent kernel of a network: `ns.kernel(ns.tangent(net, rates), **options)`.

    Parameters
    ----------
    net
        The result of `ns.network` or of a model's importer.
    rates
        Learning rates of single parameters, or the name of a convention, as for `ns.tangent`.
    options
        As for `ns.kernel`.

    Returns
    -------
    TangentKernelFn
        Theta(x) is the kernel matrix, Theta.parts(x) that of each parameter.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> ns.ntk(ns.zoo.mlp(depth=1, var_b=0.0))(np.eye(2)).round(4)
    array([[0.5   , 0.0796],
           [0.0796, 0.5   ]])
    """
    theta = kernel(tangent(net, rates), **options)
    assert isinstance(theta, TangentKernelFn)
    return theta
