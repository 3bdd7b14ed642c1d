"""Networks as parameters of estimators, and conversion of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from netsor import arguments, zoo
from netsor.build.network import Network, program
from netsor.errors import DataError, NetsorError
from netsor.gp.targets import output_sizes
from netsor.lang.expr import Apply, subtrees
from netsor.lang.functions import FUNCTIONS, MIXINGS
from netsor.limits.kernel import KernelFn, kernel


class TableError(DataError, ValueError):
    """scikit-learn refuses X or y; a ValueError, as its tools expect."""


class TableTypeError(DataError, TypeError):
    """scikit-learn refuses X or y where its tools expect a TypeError."""


class Architecture:
    """A function that builds a network, with its options.

    The options are parameters in scikit-learn's sense, so a search can run over `network__depth`.

    Parameters
    ----------
    factory
        The name of a network in `ns.zoo`, or a function that returns a network.
    options
        Arguments of the factory; functions such as `phi` may be given by name.

    Examples
    --------
    >>> Architecture("mlp", depth=3, phi="erf")
    Architecture('mlp', depth=3, phi='erf')
    """

    def __init__(self, factory: str | Callable[..., Network] = "mlp", **options: Any) -> None:
        self.factory, self.options = factory, options

    def __repr__(self) -> str:
        parts = [repr(self.factory), *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"Architecture({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture):
            return NotImplemented
        return self.factory == other.factory and self.options == other.options

    __hash__ = None  # type: ignore[assignment]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the factory and its options."""
        return {"factory": self.factory, **self.options}

    def set_params(self, **params: Any) -> Architecture:
        """Change the factory or its options."""
        self.factory = params.pop("factory", self.factory)
        self.options = {**self.options, **params}
        return self

    def build(self) -> Network:
        """Build the network."""
        factory = self.factory
        if isinstance(factory, str):
            if factory not in zoo.__all__:
                raise DataError(
                    f"there is no network `{factory}` in the zoo",
                    remedy=f"Choose one of {', '.join(sorted(zoo.__all__))}, or give a function.",
                )
            factory = getattr(zoo, factory)

        def named(value: Any) -> Any:  # the nonlinearity of this name; other values, such as padding="same"
            return FUNCTIONS.get(value.removesuffix("_"), value) if isinstance(value, str) else value

        try:
            network = factory(**{name: named(value) for name, value in self.options.items()})
        except TypeError as error:
            raise DataError(f"{self!r} cannot be built: {error}", remedy="Check its options.") from None
        if not isinstance(network, Network):
            raise _not_a_network(repr(self))
        return network


NetworkLike = Network | Architecture | str | Callable[..., Network] | None  # None: two hidden layers


def _not_a_network(what: str) -> DataError:
    return DataError(
        f"{what} is not a network",
        remedy="Give a network, an Architecture, a name of the zoo, or a function that returns a network.",
    )


def kernel_of(network: NetworkLike, options: Mapping[str, Any] | None) -> KernelFn:
    """Return the kernel of the network that a parameter specifies."""
    if network is None:
        network = Architecture(depth=2)
    elif isinstance(network, str) or (callable(network) and not isinstance(network, Network)):
        network = Architecture(network)
    net = network.build() if isinstance(network, Architecture) else network
    if not isinstance(net, Network):
        raise _not_a_network(arguments.shown(network))
    return kernel(net, **arguments.mapping("kernel_options", options, '{"points": 2**10}'))


@contextmanager
def checked_by_sklearn() -> Iterator[None]:
    """Translate scikit-learn's errors about X and y to a TableError or a TableTypeError."""
    try:
        yield
    except NetsorError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        kind = TableTypeError if isinstance(error, TypeError) else TableError
        raise kind(str(error), remedy="These are scikit-learn's rules for X and y.") from None


def reshaped(table: ArrayLike, shape: tuple[int, ...] | None) -> np.ndarray:
    """Reshape the rows of a table (rows, features) to the shape that the network reads, (rows, *shape)."""
    X = np.asarray(table, np.float64)
    if shape is None:
        return X
    if not isinstance(shape, tuple | list) or not all(isinstance(n, int | np.integer) for n in shape):
        raise DataError(
            f"input_shape={arguments.shown(shape)}", remedy="Give the shape of one input, as in (8, 8, 1)."
        )
    if prod(shape) != prod(X.shape[1:]):
        raise DataError(
            f"input_shape={tuple(shape)} does not fit rows of {prod(X.shape[1:])} features",
            remedy="The product of the shape is the number of features.",
        )
    return X.reshape(len(X), *shape)


def check_pairwise(net: Network, x: np.ndarray) -> None:
    """Raise a DataError unless the network has one output at x, and it depends on x alone."""
    try:
        outputs = output_sizes(net, [x])[0]
    except NetsorError:
        if x.ndim == 1:
            _refuse_batchnorm(net, np.stack([x, 1.0 - 0.5 * x[::-1]]))
        raise
    if outputs > 1:
        _refuse_batchnorm(net, x)
        raise DataError(
            f"the network `{net.name}` has {outputs} outputs at one input, and scikit-learn wants one",
            remedy="Read out the last state only (`return v @ state`), or use ns.gp.fit, which takes all.",
        )


def _refuse_batchnorm(net: Network, x: np.ndarray) -> None:
    """Raise a DataError if the network reads x as a batch, and normalises it."""
    try:
        expressions = program(net, x).expressions()
    except NetsorError:
        return
    nodes = (node for expr in expressions for node in subtrees(expr))
    if any(isinstance(node, Apply) and node.op is MIXINGS["batchnorm"] for node in nodes):
        raise DataError(
            f"the network `{net.name}` has batchnorm over a batch, and its inputs here are the rows of X",
            remedy="With batchnorm the output at a row depends on the whole batch that it is in, so there is "
            "no kernel of two rows. Use ns.gp.fit with whole batches as inputs, or layernorm.",
        ) from None
