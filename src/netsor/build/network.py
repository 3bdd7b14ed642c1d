"""Networks: Python functions of one input, which `program` reads as Netsor programs."""

from __future__ import annotations

import functools
import inspect
import pickle
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from netsor.arguments import a_type
from netsor.build.dependencies import GENERATORS, content_of, reachable, state_of
from netsor.build.graph_nodes import Leaf, Node
from netsor.build.graph_to_program import emit
from netsor.build.parameters import Matrix, Vector
from netsor.build.readouts import Readout
from netsor.build.source_lines import Spot, fail
from netsor.build.trace import Trace, tracing, unused_name
from netsor.build.user_functions import portable
from netsor.errors import NetsorError, Place
from netsor.lang.program import Program
from netsor.lang.tangent import Tangent


class Network:
    """A traceable network: a function of one input that ends in readouts `v @ h`."""

    example: Any = None  # the input of the last reading, for the drawing in notebooks

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        self.name = name or getattr(fn, "__name__", "network")
        self.traced_only: dict[Matrix | Vector, str] = {}  # parameters that traces use, but the code hides
        self.repeatable: set[Any] = set()  # input shapes for which two readings gave the same program
        self._wrap(fn)

    def _wrap(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn.func if isinstance(fn, functools.partial) else fn, updated=())
        self.fn = self.__wrapped__ = fn

    def __repr__(self) -> str:
        return f"<network {self.name}>"

    def _repr_html_(self) -> str:
        from netsor.build.network_html import network_html

        return network_html(self)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the function by value where needed, with the laws of its parameters as a check."""
        left_out = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "example", "fn", "traced_only"}
        state = {key: value for key, value in vars(self).items() if key not in left_out}
        function = self.fn, self.traced_only
        is_method = getattr(self.fn, "__self__", None) is self
        return {**state, "function": function if is_method else portable(function), "laws": self._laws()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        laws, (fn, self.traced_only) = state.pop("laws"), state.pop("function")
        self.__dict__.update(state)
        self._wrap(fn)
        if self._laws() != laws:
            raise fail(
                f"the network `{self.name}` has other parameters here than where it was pickled",
                "A function that it calls is pickled by name, so here it uses its module's matrices. Keep "
                "parameters and all that uses them in one function or object, or pickle the module by value: "
                "cloudpickle.register_pickle_by_value(module).",
            )

    def _laws(self) -> list[str]:
        """Names of the parameters, and digests of their laws."""
        return [f"{name} {content_of(p, texts=True)}" for p, name in self.parameters().items()]

    def __call__(self, *args: object) -> Any:
        """Run the same computation inside another network."""
        if not tracing():
            raise fail(
                f"the network `{self.name}` is called like a function",
                "A network has random weights and a width, so it has no value at x; only another network may "
                "call it. Read it with ns.program(net, x) or ns.simulate(net, [x], width=1000).",
            )
        return self.fn(*args)

    def parameters(self, *inputs: ArrayLike | tuple[ArrayLike, ...]) -> dict[Matrix | Vector, str]:
        """Return the matrices and vectors of the network, with their names in its programs.

        Parameters
        ----------
        *inputs
            Inputs on which to read the network, for the parameters that it uses on them. Without inputs: all
            that the code reaches, through functions, closures and objects, and that earlier readings used.

        Returns
        -------
        dict
            Names by parameter.
        """
        if inputs:
            trace = Trace()
            for i, x in enumerate(inputs):
                read_network(self, trace, x, f"x{i + 1}")
            self.remember(trace)
            used = trace.parameters
            return {p: name for p, name in self.parameters().items() if p in used}
        names: dict[Matrix | Vector, str] = {
            parameter: parameter.name or re.sub(r"\W", "_", name, flags=re.ASCII)
            for name, parameter in reachable(self.fn, (Matrix, Vector))
        }
        taken: set[str] = set()
        for parameter, name in {**names, **self.traced_only, **names}.items():  # the code's names count
            names[parameter] = unused_name(name, taken)  # equal names become W, W_2, ...
            taken.add(names[parameter])
        return names

    def remember(self, trace: Trace) -> None:
        """Name the parameters that the trace used but the code does not mention, in order of use."""
        names = self.parameters()
        taken = set(names.values())
        for parameter in trace.parameters:
            if parameter not in names:
                prefix = "b" if isinstance(parameter, Vector) else "v" if type(parameter.rows) is int else "W"
                fresh = (f"{prefix}{k}" for k in count(1) if f"{prefix}{k}" not in taken)
                self.traced_only[parameter] = parameter.name or next(fresh)
                taken.add(self.traced_only[parameter])

    def state(self) -> tuple[Any, ...]:
        """Return a value that stays equal until an object that the function reaches changes."""
        return state_of(self.fn)

    def tangent_of(self, program: Program, parameters: Mapping[str, Any], finite: bool) -> Tangent | None:
        """The tangent of a program if this is a tangent network, else None."""
        return None

    def tangent_remarks(self) -> tuple[str, ...]:
        """Return remarks about the parameters for plans of the tangent kernel."""
        return ()


def network(fn: Callable[..., Any]) -> Network:
    """Turn a function of one input into a network (a decorator).

    Parameters
    ----------
    fn
        A function of one input that returns readouts `v @ h`, alone or in a tuple or list. It runs on traced
        values, and multiplies by `ns.Matrix` objects that are made outside.

    Returns
    -------
    Network
        For `ns.program`, `ns.kernel` and `ns.simulate`.

    Raises
    ------
    BuildError
        If `fn` is not a function.

    Examples
    --------
    >>> import netsor as ns
    >>> W, v = ns.Matrix(1.0), ns.Matrix(1.0, rows=1)
    >>> @ns.network
    ... def perceptron(x):
    ...     return v @ ns.relu(W @ x)
    >>> print(ns.program(perceptron, [1.0, 2.0]))
    Data x = [1, 2]
    Input W :: A(n, 2) ~ N(0, 1/2)
    Input Wx :: G(n) ~ MatMul(W, x)
    Input v :: G(n) ~ N(0, 1)
    a1 := relu(Wx) :: H(n)
    Output v^T a1 / sqrt(n)
    <BLANKLINE>
    """
    if isinstance(fn, Network):
        return fn
    if not callable(fn) or inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        kind = "an async or generator function" if callable(fn) else f"{a_type(fn)}"
        raise fail(
            f"{kind} cannot be a network",
            "Decorate a function of one input that returns `v @ h` with @ns.network.",
        )
    return Network(fn)


def program(net: Network, *inputs: object) -> Program:
    """Read a network as a Netsor program.

    Parameters
    ----------
    net
        A network.
    *inputs
        One input, or several for a joint program: arrays, or tuples of arrays.

    Returns
    -------
    Program
        The program, type checked.

    Raises
    ------
    BuildError
        If the network does something that a program cannot express; the error points at its line.
    """
    check_network(net)
    if not inputs:
        raise fail(
            "no input is given", "Call ns.program(net, x), or ns.program(net, x1, x2) for a joint program."
        )
    trace = Trace()
    outputs: list[Readout] = []
    for i, x in enumerate(inputs):
        outputs += read_network(net, trace, x, "x" if len(inputs) == 1 else f"x{i + 1}")
    return write_program(net, trace, outputs, inputs[0])[0]


def write_program(
    net: Network, trace: Trace, outputs: list[Readout], x: object, finite: bool = False
) -> tuple[Program, list[int], dict[str, Matrix | Vector], Tangent | None]:
    """Write the program of a network that has been read, with first input x; its tangent may be a finite one.

    Returns what `emit` does, and for a tangent network the relation to its network's program.
    """
    # Names must be fixed before the program is written: traces may use parameters that the code hides.
    net.remember(trace)
    parts = x if isinstance(x, tuple) else (x,)
    # Tracers of other libraries must not outlive a trace.
    net.example = x if all(isinstance(part, np.ndarray | list) for part in parts) else None
    program, counts, parameters = emit(trace, outputs, net.parameters())
    program.check()
    program.refuse_changed()
    tangent = net.tangent_of(program, parameters, finite)
    return tangent.program if tangent else program, counts, parameters, tangent


def require_network(net: object) -> None:
    """Raise an error for anything but a network, with the call that would work."""
    if isinstance(net, Network):
        return
    if isinstance(net, Program):
        remedy = "It has its inputs: ns.limit(program) is its limit, program.tangent() its derivative."
        raise fail("a program is not a network", remedy)
    what = f"the function `{net.__name__}`" if inspect.isfunction(net) else f"{a_type(net)}"
    raise fail(
        f"{what} is not a network", "Decorate a function with @ns.network, or take a network from ns.zoo."
    )


def check_network(net: Any) -> None:
    """Raise an error for anything but a network of one input."""
    require_network(net)
    try:
        inspect.signature(net.fn).bind("x")
    except (ValueError, NetsorError):  # a function without a signature
        return
    except TypeError as error:
        raise fail(
            f"the network `{net.name}` cannot be called with one input: {error}",
            "A network is a function of one input; several arrays of one input go in a tuple: "
            "`def net(x): a, b = x`.",
        ) from None


# Reading


def read_network(net: Network, trace: Trace, x: object, name: str) -> list[Readout]:
    """Return the outputs of a network on an input.

    The first input of each shape is read twice: a network that draws random numbers or counts its calls has
    no program.
    """
    first, generators_before = len(trace.nodes), _random_states(net)
    readouts, shape = _run(net, trace, x, name)
    if shape not in net.repeatable:
        again = Trace(spots=False)  # errors point at the first reading
        try:
            _run(net, again, x, name)
        except NetsorError:
            raise
        except Exception as error:  # the first reading succeeded, so the network has changed
            raise _changing(net) from error
        _check_same(net, trace, again, first, draws=_random_states(net) != generators_before)
        net.repeatable.add(shape)
    if _random_states(net) != generators_before:
        raise _changing(net)
    return readouts


def _run(net: Network, trace: Trace, x: object, name: str) -> tuple[list[Readout], Any]:
    """Trace the network on x; return the outputs and the shape of the input."""
    traced = trace.input(x, name)
    with trace.active():
        readouts = _readouts(net, net.fn(traced))
    if not readouts:
        raise _no_output(net, ())
    return readouts, _shape(traced)


def _shape(traced: Any) -> Any:
    return tuple(map(_shape, traced)) if isinstance(traced, tuple) else traced.index


def _random_states(net: Network) -> list[bytes]:
    """The states of all random number generators that a network can reach, the global ones included."""
    generators = [generator for _, generator in reachable(net.fn, GENERATORS)]
    return [*map(pickle.dumps, (random.getstate(), np.random.get_state(legacy=False), *generators))]


def _changing(net: Network, place: Place | None = None) -> NetsorError:
    return fail(
        f"the network `{net.name}` computes something else when it is read again",
        "It draws random numbers, or depends on a global that it changes itself. A program is straight-line, "
        "and all that is random in it are its ns.Matrix and ns.Vector: make everything else before, once.",
        place=place,
    )


def _check_same(net: Network, trace: Trace, again: Trace, first: int, *, draws: bool) -> None:
    """Raise an error at the first node in which two readings of a network differ.

    If the network `draws` random numbers, a parameter that only one reading uses need not be a new one.
    """
    here, there = trace.signature(first), again.signature()
    different = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
    if different is None and len(here) == len(there):
        return
    nodes = [node for node in trace.nodes[first:] if not isinstance(node, Leaf)]
    node = nodes[min(len(here), len(there)) - 1 if different is None else different]
    temporary = [] if draws else [p for p in trace.parameters if p not in again.parameters]
    if not temporary:
        raise _changing(net, node.place)
    raise fail(
        f"a {type(temporary[0]).__name__} is made inside the network `{net.name}`",
        "Sharing is object identity: a network that makes its parameters anew whenever it is read has other "
        "weights for each input. Make matrices, vectors and layers outside the function, once.",
        place=node.place,
    )


def _readouts(net: Network, returned: object) -> list[Readout]:
    """Flatten the returned outputs, which may be in nested tuples and lists."""
    if isinstance(returned, tuple | list):
        return [out for part in returned for out in _readouts(net, part)]
    if isinstance(returned, Readout):
        return [returned]
    raise _no_output(net, returned)


def _no_output(net: Network, returned: object) -> NetsorError:
    """The error about a network that does not return readouts; it points at the returned value."""
    what, place = a_type(returned), _last_line(net.fn)
    if isinstance(returned, str | int | float | None):
        what = repr(returned)[:60]
    elif isinstance(returned, dict | list | tuple | set):
        what = f"{what} of {len(returned)}" if returned else "nothing"
    elif isinstance(returned, Node):
        what = {"K": "data", "C": "a C-var", "G": "a G-var", "H": "an H-var"}[returned.kind]
        place = place if returned.kind == "K" else returned.place or place
    return fail(
        f"the network `{net.name}` returns {what}, not an output",
        "Rule Output: an output is a readout of a vector, `return v @ h` with `v = ns.Matrix(1.0, rows=1)`. "
        "Several are returned as a tuple or a list.",
        place=place,
    )


def _last_line(fn: Callable[..., Any]) -> Place | None:
    """The last line of a function, which usually is its return statement."""
    code = getattr(fn, "__code__", None)
    lines = [line for _, _, line in code.co_lines() if line is not None] if code else []
    if code is None or not lines:
        return None
    place = Spot(code, max(lines), 0, code.co_filename).place()
    return replace(place, start=len(place.text) - len(place.text.lstrip()), end=len(place.text))
