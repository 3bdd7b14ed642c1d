"""The tangent of a network: its derivative along a random direction of its parameters, as a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from netsor.build.network import Network, require_network
from netsor.build.parameters import Matrix, Vector
from netsor.build.source_lines import fail
from netsor.errors import DataError
from netsor.lang.learning_rates import GivenRates, Rates
from netsor.lang.program import Program
from netsor.lang.tangent import Tangent
from netsor.lang.tangent import tangent as tangent_of


class TangentNetwork(Network):
    """The derivative of `net` along a random direction of its parameters; made by `ns.tangent`.

    If `coarser`, finite differences, which replace unknown derivatives, have twice the step.
    """

    def __init__(self, net: Network, rates: Rates, coarser: bool = False) -> None:
        super().__init__(net.fn, f"tangent of {net.name}")
        self.net, self.rates, self.coarser = net, rates, coarser

    def __reduce__(self):
        return TangentNetwork, (self.net, self.rates, self.coarser)  # not fn, which the network pickles

    def parameters(self, *inputs: Any) -> dict[Any, str]:
        """The parameters of the network by name."""
        return self.net.parameters(*inputs)

    def remember(self, trace: Any) -> None:
        self.net.remember(trace)

    def tangent_of(self, program: Program, parameters: Mapping[str, Any], finite: bool) -> Tangent:
        """Return the tangent of the network's program; if `finite`, with terms that vanish in the limit."""
        rates = self.rates_of(parameters)
        derived = tangent_of(program, rates, tied=finite, scalars=finite, coarser=self.coarser)
        return replace(derived, remarks=(*derived.remarks, *self.net.tangent_remarks()))

    def rates_of(self, parameters: Mapping[str, Matrix | Vector]) -> Rates:
        """Return the rates of a program's inputs: the given ones, else those of the parameter objects."""
        names = {*self.net.parameters().values(), *parameters}
        unknown = sorted(set(self.rates.of) - names)
        if unknown:
            raise fail(
                f"there is no parameter `{unknown[0]}`",
                f"Rates are given by name: {', '.join(names)}.",
                DataError,
            )
        rates = {name: self.rates.of.get(name, p.rate) for name, p in parameters.items()}
        biases = frozenset(name for name, p in parameters.items() if isinstance(p, Vector))
        return replace(self.rates, of=rates, biases=biases)


def tangent(net: Network, rates: GivenRates = None) -> TangentNetwork:
    """Return the derivative of a network along a random direction of its parameters; its kernel is the NTK.

    Parameters
    ----------
    net
        A network.
    rates
        Learning rates by parameter name ({"W1": 0.0} freezes W1), or a convention of what a parameter is:
        "ntk", "unit" or ("standard", width); see `netsor.lang.learning_rates`.

    Returns
    -------
    TangentNetwork
        For `ns.program`, `ns.kernel` and `ns.simulate`.

    Raises
    ------
    BuildError
        If `net` is a tangent already.

    Examples
    --------
    >>> import netsor as ns
    >>> W, v = ns.Matrix(2.0), ns.Matrix(1.0, rows=1)
    >>> perceptron = ns.network(lambda x: v @ ns.relu(W @ x))
    >>> print(ns.program(ns.tangent(perceptron), [1.0, 2.0]).show().splitlines()[-1])
    Output d_v^T a1 / sqrt(n) + v^T d_a1 / sqrt(n)
    """
    require_network(net)
    if isinstance(net, TangentNetwork):
        raise fail(
            "the tangent of a tangent",
            "ns.tangent takes a network that is trained; its tangent has no parameters of its own.",
        )
    return TangentNetwork(net, Rates.given(rates))
