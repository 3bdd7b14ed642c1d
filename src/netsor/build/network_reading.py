"""Run the function of a network on traced values, and check that repeated runs agree."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.arguments import a_type
from netsor.build.dependencies import GENERATORS, reachable
from netsor.build.graph_nodes import Leaf, Node
from netsor.build.readouts import Readout
from netsor.build.source_lines import Spot, fail
from netsor.build.trace import Trace
from netsor.errors import NetsorError, Place

if TYPE_CHECKING:
    from netsor.build.network import Network


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
    states: list[Any] = [random.getstate(), np.random.get_state(legacy=False)]
    states += [value for _, value in reachable(net.fn, GENERATORS) if isinstance(value, GENERATORS)]
    return [pickle.dumps(state) for state in states]


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
