"""Recurrent cells. A cell maps (state, input) to the next state; its matrices are shared over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from netsor.build.graph_nodes import Node
from netsor.build.layers.dense import bias, label
from netsor.build.parameters import Matrix
from netsor.build.source_lines import fail
from netsor.lang.functions import FUNCTIONS, sigmoid, tanh

PerGate = float | Sequence[float]
Activation = Callable[[Any], Any]


def per_gate(value: Any, count: int, what: str) -> list[float]:
    """Return one number per gate (or layer), from a number or a sequence."""
    if _is_number(value):
        return [float(value)] * count
    remedy = "Give a number for all layers (or gates), or a list with one for each."
    many = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    values = list(value) if many and not np.ma.is_masked(value) else []
    if not values or not all(_is_number(v) for v in values):
        raise fail(f"{what}={value!r:.60}", remedy)
    if len(values) != count:
        raise fail(
            f"{what} has {len(values)} value{'s' if len(values) > 1 else ''}, but {count} are needed", remedy
        )
    return [float(v) for v in values]


def _is_number(value: Any) -> bool:
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return real and bool(np.isfinite(value))


def check_functions(**functions: object) -> None:
    """Check that activations are functions, not names."""
    for what, phi in functions.items():
        if not callable(phi):
            name = phi if isinstance(phi, str) and phi in FUNCTIONS else "tanh"
            remedy = f"Give a function of netsor, as in {what}=ns.{name}, or one of your own."
            raise fail(f"{what}={phi!r:.60} is not a function", remedy)


class _Gates:
    """Matrices W_g, U_g and bias b_g for each gate: `preactivation(g, state, x)`."""

    def __init__(
        self, gates: str, var_w: PerGate, var_u: PerGate, var_b: PerGate, mean_b: PerGate, name: str
    ) -> None:
        count = len(gates)
        label("W", name)
        vw, vu = per_gate(var_w, count, "var_w"), per_gate(var_u, count, "var_u")
        vb, mb = per_gate(var_b, count, "var_b"), per_gate(mean_b, count, "mean_b")
        self.W = {g: Matrix(v, name=f"W{name}{_sub(g)}") for g, v in zip(gates, vw, strict=True)}
        self.U = {g: Matrix(v, name=f"U{name}{_sub(g)}") for g, v in zip(gates, vu, strict=True)}
        self.b = {g: bias(v, m, f"b{name}{_sub(g)}") for g, v, m in zip(gates, vb, mb, strict=True)}

    def preactivation(self, gate: str, state: object, x: object) -> Any:
        return self.W[gate] @ state + self.U[gate] @ x + self.b[gate]


def _sub(gate: str) -> str:
    return f"_{gate}" if gate != "." else ""


class RNNCell:
    """A simple recurrent cell: the new state is phi(W s + U x + b).

    Parameters
    ----------
    phi
        The activation.
    var_w, var_u, var_b, mean_b
        Variances (times the fan-in) of W and U, variance and mean of b.
    name
        A suffix of the parameters' names.
    """

    def __init__(
        self,
        phi: Activation = tanh,
        var_w: float = 1.0,
        var_u: float = 1.0,
        var_b: float = 1.0,
        mean_b: float = 0.0,
        *,
        name: str = "",
    ) -> None:
        check_functions(phi=phi)
        self.phi = phi
        self.gates = _Gates(".", var_w, var_u, var_b, mean_b, name)

    def __call__(self, state: object, x: object) -> Node:
        return self.phi(self.gates.preactivation(".", state, x))


class _GatedCell:
    """A cell with a matrix on the state, a matrix on the input and a bias for each gate."""

    gate_names: ClassVar[str]

    def __init__(
        self,
        phi: Activation = tanh,
        gate: Activation = sigmoid,
        var_w: PerGate = 1.0,
        var_u: PerGate = 1.0,
        var_b: PerGate = 1.0,
        mean_b: PerGate = 0.0,
        *,
        name: str = "",
    ) -> None:
        check_functions(phi=phi, gate=gate)
        self.phi, self.gate = phi, gate
        self.gates = _Gates(self.gate_names, var_w, var_u, var_b, mean_b, name)


class GRUCell(_GatedCell):
    """The paper's gated recurrent unit.

        z = gate(W_z s + U_z x + b_z),  r = gate(W_r s + U_r x + b_r),
        new state (1 - z) s + z phi(W_h (r s) + U_h x + b_h).

    Parameters
    ----------
    phi, gate
        The activations of the candidate and of the gates.
    var_w, var_u, var_b, mean_b
        Variances (times the fan-in) of W and U, variances and means of b: one number, or one per gate in the
        order z, r, h.
    name
        A suffix of the parameters' names.
    """

    gate_names = "zrh"

    def __call__(self, state: object, x: object) -> Node:
        z = self.gate(self.gates.preactivation("z", state, x))
        r = self.gate(self.gates.preactivation("r", state, x))
        candidate = self.phi(self.gates.preactivation("h", state * r, x))
        return (1 - z) * state + z * candidate


class LSTMCell(_GatedCell):
    """A long short-term memory cell, whose state is a pair (h, c).

        c = f c + i g with i, f, o = gate(...), g = phi(...), and h = o phi(c).

    Parameters
    ----------
    phi, gate
        The activations of the candidate and of the gates.
    var_w, var_u, var_b, mean_b
        As for `GRUCell`, in the order i, f, g, o.
    name
        A suffix of the parameters' names.
    """

    gate_names = "ifgo"

    def __call__(self, state: tuple[Any, Any], x: object) -> tuple[Node, Node]:
        h, c = state
        i, f, o = (self.gate(self.gates.preactivation(g, h, x)) for g in "ifo")
        g = self.phi(self.gates.preactivation("g", h, x))
        c = f * c + i * g
        return o * self.phi(c), c
