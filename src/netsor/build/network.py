"""A network is a Python function of one input; `program` reads it as a Netsor program."""

from __future__ import annotations

import functools
import inspect
import pickle
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from netsor.arguments import a_type
from netsor.build.emit import emit
from netsor.build.nodes import Leaf, Node, Readout, fail
from netsor.build.parameters import Matrix, Vector
from netsor.build.reachable import generators, reachable, users_code
from netsor.build.source import Spot
from netsor.build.states import content_of, state_of
from netsor.build.trace import Requirement, Trace, numbers, tracing
from netsor.build.travel import arrived, portable
from netsor.errors import DataError, NetsorError, Place
from netsor.garbage import search_put_off
from netsor.lang.program import Program
from netsor.lang.tangent import Tangent

__all__ = [
    "Group",
    "Joint",
    "Network",
    "as_inputs",
    "data_of",
    "joint",
    "network",
    "program",
    "require_network",
]


class Network:
    """A traceable network: a function of one input that ends in readouts `v @ h`."""

    example: Any = None  # the input that it was last read for, which its drawing is of

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        self.fn = fn
        self.name = name or getattr(fn, "__name__", "network")
        self.met: dict[Any, str] = {}  # parameters that only a trace has found
        functools.update_wrapper(self, fn, updated=())

    def __repr__(self) -> str:
        return f"<network {self.name}>"

    def _repr_html_(self) -> str:
        from netsor.build.drawing import network_html

        return network_html(self)

    def __getstate__(self) -> dict[str, Any]:
        """What travels: all but what `functools` and `cached_property` add, and the laws as a check."""
        added = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "_roots", "example"}
        own = {key: value for key, value in vars(self).items() if key not in added}
        return {**own, "fn": portable(self.fn), "laws": self._laws()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        laws = state.pop("laws")
        self.__dict__.update({**state, "fn": arrived(state["fn"])})
        functools.update_wrapper(self, self.fn, updated=())
        if self._laws() != laws:
            raise fail(
                f"the network `{self.name}` has other parameters here than where it was pickled",
                "A function that it calls comes from a module, with matrices of its own. Keep the parameters "
                "and all that uses them in one function or object, or let the module travel, too: "
                "cloudpickle.register_pickle_by_value(module).",
            )

    def _laws(self) -> list[str]:
        """The names of the parameters that the code mentions, and digests of all that is said of them."""
        found = self.parameters().items()
        return [f"{name} {content_of(parameter, texts=True)}" for parameter, name in found]

    def __call__(self, *args: Any) -> Any:
        """Inside another network: the same computation, in place."""
        if not tracing():
            raise fail(
                f"the network `{self.name}` is called like a function",
                "A network has random weights and a width, so it has no value at x; only another network may "
                "call it. Read it with ns.program(net, x) or ns.simulate(net, [x], width=1000).",
            )
        return self.fn(*args)

    def parameters(self, *inputs: Any) -> dict[Any, str]:
        """The matrices and vectors of the network, with the names that they have in its programs.

        Without inputs: all that the code mentions, through helper functions, closures and objects, and all
        that a trace has met. With inputs: those that the network uses on them, from the trace.
        """
        if inputs:
            trace = Trace()
            for i, x in enumerate(inputs):
                _run(self, trace, x, f"x{i + 1}")
            self.remember(trace)
            used = {*trace.uses, *trace.vectors, *trace.biases}
            return {parameter: name for parameter, name in self.parameters().items() if parameter in used}
        found: dict[Any, str] = {}
        for name, value in reachable(self.fn, (Matrix, Vector)):
            if isinstance(value, Matrix | Vector):
                found[value] = value.name or re.sub(r"\W", "_", name, flags=re.ASCII)
        return _unique({**found, **{p: name for p, name in self.met.items() if p not in found}})

    def remember(self, trace: Trace) -> None:
        """Keep the parameters that a trace has met, under names by order of appearance."""
        known = self.parameters()
        taken = set(known.values())
        for parameter in (*trace.uses, *trace.vectors, *trace.biases):
            if parameter not in known:
                prefix = "b" if isinstance(parameter, Vector) else "v" if type(parameter.rows) is int else "W"
                fresh = (f"{prefix}{k}" for k in count(1) if f"{prefix}{k}" not in taken)
                self.met[parameter] = parameter.name or next(fresh)
                taken.add(self.met[parameter])

    def state(self) -> tuple[Any, ...]:
        """A summary of everything that the function depends on: equal as long as no global, closure
        variable, attribute or parameter that it can reach has changed."""
        return state_of(*self._roots)

    def tangent_of(self, made: Program, parameters: Mapping[str, Any], finite: bool) -> Tangent | None:
        """What a tangent network makes of a program; any other network takes it as it is."""
        return None

    def tangent_remarks(self) -> tuple[str, ...]:
        """What plans of the tangent kernel say about its parameters."""
        return ()

    @functools.cached_property
    def _roots(self) -> list[Any]:
        """The function, if it is a user's; of one of our own, the users' functions and the parameters."""
        code, leaves = users_code(self.fn, (Matrix, Vector)), (Matrix, Vector)
        if any(fn is self.fn for fn in code):
            return code
        return [*code, *(value for _, value in reachable(self.fn, leaves) if isinstance(value, leaves))]


def network(fn: Callable[..., Any]) -> Network:
    """Decorator: turn a function of one input into a network.

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


def program(net: Network, *inputs: Any) -> Program:
    """The checked Netsor program of a network on one input, or jointly on several."""
    _check_network(net)
    if not inputs:
        raise fail(
            "no input is given", "Call ns.program(net, x), or ns.program(net, x1, x2) for a joint program."
        )
    trace = Trace()
    outputs: list[Readout] = []
    for i, x in enumerate(inputs):
        outputs += _run(net, trace, x, "x" if len(inputs) == 1 else f"x{i + 1}")
    net.remember(trace)
    net.example = _plain(inputs[0])
    made, _, parameters = emit(trace, outputs, net.parameters())
    made.check()
    made.refuse_changed()
    tangent = net.tangent_of(made, parameters, finite=False)
    return tangent.program if tangent else made


@dataclass(frozen=True)
class Group:
    """Inputs of one shape: their positions in the set, and their Output statements in the program.

    data  the names of their arrays
    own   for each member the Outputs that it has, if not all
    """

    members: tuple[int, ...]
    outputs: tuple[int, ...]
    data: tuple[str, ...] = ()
    own: tuple[tuple[int, ...], ...] = ()

    def outputs_of(self, k: int) -> tuple[int, ...]:
        """The Outputs of member k."""
        return self.own[k] if self.own else self.outputs


@dataclass(frozen=True)
class Joint:
    """A network on a set of inputs: one program in which inputs of one shape share their statements.

    `data` holds the program's arrays; those of a group with several members have a leading axis that
    runs over them. `concrete` tells that the network looked at the values of its data; `requirements` are
    what its layers ask of the data of a group; `tangent` tells where the program of a tangent is from.
    """

    program: Program
    data: dict[str, Any]
    groups: tuple[Group, ...]
    concrete: bool = False
    requirements: tuple[tuple[int, Requirement], ...] = ()  # of the data of a group
    tangent: Tangent | None = None
    parameters: Mapping[str, Matrix | Vector] = field(default_factory=dict)  # by their names in the program


@search_put_off()
def joint(net: Network, inputs: list[Any], finite: bool = False) -> Joint:
    """Trace each shape once; a network that looks at the values of its data is traced for each input.

    `finite` asks for the program at finite width, which differs from the limit's for tangent networks.
    """
    _check_network(net)
    if not inputs:
        raise fail("the set of inputs is empty", "Give at least one input.", DataError)
    trace, outputs, stacked = Trace(), [], {}
    members_of: list[tuple[tuple[int, ...], int, tuple[str, ...]]] = []
    queue, concrete = _by_shape(inputs), False
    requirements: list[tuple[int, Requirement]] = []
    while queue:
        members = queue.pop(0)
        name = f"x{len(members_of) + 1}"
        trace.concrete = False
        found = _run(net, trace, inputs[members[0]], name)
        concrete = concrete or trace.concrete
        if trace.concrete:
            queue[:0] = [[i] for i in members[1:]]
            members = members[:1]
        arrays = _stack(inputs, name, members)
        asked = [(len(members_of), r) for r in trace.requirements[len(requirements) :]]
        _check_requirements(asked, trace.data, inputs, name, members[1:])
        requirements += asked
        stacked |= arrays
        members_of.append((tuple(members), len(found), tuple(arrays)))
        outputs += found
    net.remember(trace)
    net.example = _plain(inputs[0])
    made, counts, parameters = emit(trace, outputs, net.parameters())
    made.check()
    made.refuse_changed()
    tangent = net.tangent_of(made, parameters, finite)
    made = tangent.program if tangent else made
    data = {name: stacked.get(name, array) for name, array in made.data.items()}
    return Joint(made, data, _groups(members_of, counts), concrete, tuple(requirements), tangent, parameters)


def _plain(x: Any) -> Any:
    """An input that may be kept; what another library traces may not."""
    parts = x if isinstance(x, tuple) else (x,)
    return x if all(isinstance(part, np.ndarray | list) for part in parts) else None


def _check_requirements(
    requirements: list[tuple[int, Requirement]],
    known: dict[str, Any],
    inputs: list[Any],
    name: str,
    members: Sequence[int],
) -> None:
    """Check the data of every input that shares the statements of another."""
    for i in members if requirements else ():
        arrays = {**known, **_stack(inputs, name, [i])}
        for _, requirement in requirements:
            requirement.apply(arrays)


def _groups(
    members_of: list[tuple[tuple[int, ...], int, tuple[str, ...]]], counts: list[int]
) -> tuple[Group, ...]:
    """Which Output statements belong to which inputs, from the number of readouts and their sizes."""
    groups, readout, statement = [], 0, 0
    for members, readouts, data in members_of:
        size = sum(counts[readout : readout + readouts])
        groups.append(Group(members, tuple(range(statement, statement + size)), data))
        readout, statement = readout + readouts, statement + size
    return tuple(groups)


def _run(net: Network, trace: Trace, x: Any, name: str) -> list[Readout]:
    """The outputs of a network on an input, which are the same when it is read again."""
    started = time.perf_counter()
    numbers_before = _random_states(net)
    first = len(trace.nodes)
    found = _read(net, trace, x, name)
    if _random_states(net) != numbers_before:
        raise fail(
            f"the network `{net.name}` draws random numbers",
            "A program is straight-line, and all that is random in it are its ns.Matrix and ns.Vector. Draw "
            "other numbers outside the network, once.",
        )
    for again in range(READ_AGAIN):
        if again and time.perf_counter() - started > CHEAP_SECONDS:
            break
        other = Trace(spots=False)
        try:
            _read(net, other, x, name)
        except NetsorError:
            raise
        except Exception as error:  # what could be read once cannot be read again
            raise _changing(net) from error
        _check_same(net, trace, other, first)
    return found


READ_AGAIN, CHEAP_SECONDS = 5, 0.005  # a network is read again once, and more often if that costs nothing


def _read(net: Network, trace: Trace, x: Any, name: str) -> list[Readout]:
    with trace.active():
        found = _readouts(net, net.fn(trace.input(x, name)))
    if not found:
        raise _no_output(net, ())
    return found


def _random_states(net: Network) -> list[Any]:
    """Where the random number generators stand that a network can reach."""
    own = (g.getstate() if isinstance(g, random.Random) else _bits(g).state for g in generators(net.fn))
    return [pickle.dumps(x) for x in (random.getstate(), np.random.get_state(legacy=False), *own)]


def _bits(generator: Any) -> Any:
    return generator.bit_generator if isinstance(generator, np.random.Generator) else generator._bit_generator


def _changing(net: Network) -> NetsorError:
    return fail(
        f"the network `{net.name}` computes something else when it is read again",
        "It depends on something that changes: a random choice, or a global that it changes itself. A "
        "network is a function of its input and its parameters; make everything else before.",
    )


def _check_same(net: Network, trace: Trace, other: Trace, first: int) -> None:
    """Refuse a network that computes something else when it is read again."""
    here, there = trace.signature(first), other.signature()
    different = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
    if different is None and len(here) == len(there):
        return
    nodes = [node for node in trace.nodes[first:] if not isinstance(node, Leaf)]
    node = nodes[min(len(here), len(there)) - 1 if different is None else different]
    kept = {*other.uses, *other.vectors, *other.biases}
    made = [p for p in (*trace.uses, *trace.vectors, *trace.biases) if p not in kept]
    if made:
        what = type(made[0]).__name__
        error = fail(
            f"a {what} is made inside the network `{net.name}`",
            "Sharing is object identity: a network that makes its parameters anew whenever it is read has "
            "other weights for each input. Make matrices, vectors and layers outside the function, once.",
        )
    else:
        error = _changing(net)
    error.place = node.spot.place() if node.spot else error.place
    raise error


def require_network(net: Any) -> None:
    """Refuse what is not a network, with what it has instead."""
    if isinstance(net, Network):
        return
    if isinstance(net, Program):
        remedy = "It has its inputs: ns.limit(program) is its limit, program.tangent() its derivative."
        raise fail("a program is not a network", remedy)
    what = f"the function `{net.__name__}`" if inspect.isfunction(net) else f"{a_type(net)}"
    raise fail(
        f"{what} is not a network", "Decorate a function with @ns.network, or take a network from ns.zoo."
    )


def _check_network(net: Any) -> None:
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


def _by_shape(inputs: list[Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for i, x in enumerate(inputs):
        groups.setdefault(_shape(x, f"input {i} of the set"), []).append(i)
    return list(groups.values())


def _shape(x: Any, what: str) -> Any:
    return tuple(_shape(part, what) for part in x) if isinstance(x, tuple) else numbers(x, what).shape


def data_of(made: Joint, inputs: list[Any]) -> dict[str, np.ndarray]:
    """The data of a joint program on other inputs of the same shapes."""
    given: dict[str, np.ndarray] = {}
    for k, group in enumerate(made.groups):
        name, asked = f"x{k + 1}", [r for r in made.requirements if r[0] == k]
        _check_requirements(asked, dict(made.program.data), inputs, name, group.members)
        given |= _stack(inputs, name, group.members)
    return {name: given.get(name, array) for name, array in made.program.data.items()}


def _stack(inputs: list[Any], name: str, members: Sequence[int]) -> dict[str, np.ndarray]:
    """Some inputs of a set as stacked arrays, under the names that the trace gives to their parts."""
    first = inputs[members[0]]
    if isinstance(first, tuple):
        found = {}
        for k in range(len(first)):
            found |= _stack([x[k] if isinstance(x, tuple) else None for x in inputs], f"{name}_{k}", members)
        return found
    if len(members) > 1 and all(type(inputs[i]) is np.ndarray for i in members):
        stacked = np.stack([inputs[i] for i in members])
        if stacked.dtype.kind in "iuf" and np.isfinite(stacked).all():  # all at once, as most sets are
            return {name: numbers(stacked, "the set of inputs")}
    arrays = [numbers(inputs[i], f"input {i} of the set") for i in members]
    return {name: arrays[0] if len(arrays) == 1 else np.stack(arrays)}


def as_inputs(x: Any) -> list[Any]:
    """A set of inputs: the rows of an array, or the members of a list (a tuple is one input)."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise fail(
            "the set of inputs is a masked array",
            "Masked entries have no value: fill or leave them out first, as in x.filled(0.0).",
            DataError,
        )
    if isinstance(x, np.ndarray):
        if x.ndim == 0:
            raise fail(
                "the set of inputs is a single number",
                "Give an array whose first axis runs over inputs, or a list of inputs: [x] for one.",
                DataError,
            )
        return list(x)
    if isinstance(x, list):
        return x
    raise fail(
        f"the set of inputs is {a_type(x)}" if x is not None else "no set of inputs is given",
        "Give an array whose first axis runs over inputs, or a list of inputs: [x] for one.",
        DataError,
    )


def _readouts(net: Network, returned: Any) -> list[Readout]:
    """The outputs in order, whatever tuple or list they come in."""
    if isinstance(returned, tuple | list):
        return [out for part in returned for out in _readouts(net, part)]
    if isinstance(returned, Readout):
        return [returned]
    raise _no_output(net, returned)


def _no_output(net: Network, returned: Any) -> NetsorError:
    """The error for a network that does not end in readouts; it points at what the network returns."""
    what, place = _described(returned), _last_line(net.fn)
    if isinstance(returned, Node):
        what = {"K": "data", "C": "a C-var", "G": "a G-var", "H": "an H-var"}[returned.kind]
        place = returned.spot.place() if returned.spot and returned.kind != "K" else place
    error = fail(
        f"the network `{net.name}` returns {what}, not an output",
        "Rule Output: an output is a readout of a vector, `return v @ h` with `v = ns.Matrix(1.0, rows=1)`. "
        "Several are returned as a tuple or a list.",
    )
    error.place = place or error.place
    return error


def _described(returned: Any) -> str:
    """A value in a few words."""
    if isinstance(returned, str | int | float | None):
        return repr(returned)[:60]
    if isinstance(returned, dict | list | tuple | set):
        return f"{a_type(returned)} of {len(returned)}" if returned else "nothing"
    return f"{a_type(returned)}"


def _last_line(fn: Callable[..., Any]) -> Place | None:
    """The last line of a function, which most often is where it returns."""
    code = getattr(fn, "__code__", None)
    lines = [line for _, _, line in code.co_lines() if line is not None] if code else []
    if code is None or not lines:
        return None
    place = Spot(code, max(lines), 0, code.co_filename).place()
    return replace(place, start=len(place.text) - len(place.text.lstrip()), end=len(place.text))


def _unique(names: dict[Any, str]) -> dict[Any, str]:
    """Two parameters of one name become `W` and `W_2`."""
    taken: set[str] = set()
    for parameter, base in names.items():
        name, k = base, 1
        while name in taken:
            k += 1
            name = f"{base}_{k}"
        taken.add(name)
        names[parameter] = name
    return names
