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
    remedy = "Give a number for all layers (or gates), or a list with one for each."
    many = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    values: list[Any] = list(value) if many else [value] * count
    real = int | float | np.integer | np.floating
    if not values or not all(isinstance(v, real) and type(v) is not bool and np.isfinite(v) for v in values):
        raise fail(f"{what}={value!r:.60}", remedy)
    if len(values) != count:
        raise fail(
            f"{what} has {len(values)} value{'s' if len(values) > 1 else ''}, but {count} are needed", remedy
        )
    return [float(v) for v in values]


def check_functions(**functions: object) -> None:
    """Check that activations are functions, not names."""
    for what, phi in functions.items():
        if not callable(phi):
            name = phi if isinstance(phi, str) and phi in FUNCTIONS else "tanh"
            remedy = f"Give a function of netsor, as in {what}=ns.{name}, or one of your own."
            raise fail(f"{what}={phi!r:.60} is not a function", remedy)


class _Cell:
    """Matrices W_g on the state, U_g on the input and a bias b_g for each gate g."""

    gate_names: ClassVar[tuple[str, ...]]

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
        label("W", name)
        values = {"var_w": var_w, "var_u": var_u, "var_b": var_b, "mean_b": mean_b}
        laws = (per_gate(value, len(self.gate_names), what) for what, value in values.items())
        self.W, self.U, self.b = {}, {}, {}
        for g, w, u, b, mean in zip(self.gate_names, *laws, strict=True):
            end = f"{name}_{g}" if g else name
            self.W[g], self.U[g] = Matrix(w, name=f"W{end}"), Matrix(u, name=f"U{end}")
            self.b[g] = bias(b, mean, f"b{end}")

    def preactivation(self, gate: str, state: object, x: object) -> Any:
        return self.W[gate] @ state + self.U[gate] @ x + self.b[gate]


class RNNCell(_Cell):
    """A simple recurrent cell: the new state is phi(W s + U x + b).

    Parameters
    ----------
    phi, var_w, var_u, var_b, mean_b, name
        As for `GRUCell`, with one number each.
    """

    gate_names = ("",)

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
        super().__init__(phi, sigmoid, var_w, var_u, var_b, mean_b, name=name)

    def __call__(self, state: object, x: object) -> Node:
        return self.phi(self.preactivation("", state, x))


class GRUCell(_Cell):
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

    gate_names = ("z", "r", "h")

    def __call__(self, state: object, x: object) -> Node:
        z = self.gate(self.preactivation("z", state, x))
        r = self.gate(self.preactivation("r", state, x))
        candidate = self.phi(self.preactivation("h", state * r, x))
        return (1 - z) * state + z * candidate


class LSTMCell(_Cell):
    """A long short-term memory cell, whose state is a pair (h, c).

        c = f c + i g with i, f, o = gate(...), g = phi(...), and h = o phi(c).

    Parameters
    ----------
    phi, gate, var_w, var_u, var_b, mean_b, name
        As for `GRUCell`, with the gates in the order i, f, g, o.
    """

    gate_names = ("i", "f", "g", "o")

    def __call__(self, state: tuple[Any, Any], x: object) -> tuple[Node, Node]:
        h, c = state
        i, f, o = (self.gate(self.preactivation(g, h, x)) for g in "ifo")
        g = self.phi(self.preactivation("g", h, x))
        c = f * c + i * g
        return o * self.phi(c), c
