"""JAX functions as networks, and the libraries on JAX: jaxprs at two widths."""

# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context

from netsor.errors import BuildError
from netsor.lang.array_api import double_precision
from netsor.models.jaxpr import operations  # noqa: F401 -- it enters its rules
from netsor.models.jaxpr.graph import constant, walk
from netsor.models.jaxpr.laws import label, read_laws
from netsor.models.laws import Given, ParameterRow, at_two_widths
from netsor.models.network import Front, ModelNetwork, Parameters, two_widths
from netsor.models.reader import Reader
from netsor.models.values import Traced, Value

Init = Callable[[Any, int], Any]  # a key and a width -> a tree of parameters
Apply = Callable[[Any, Any], Any]  # the parameters and an input -> outputs


def from_jax(
    init: Init,
    apply: Apply,
    width: int = 64,
    *,
    laws: Given | None = None,
    tokens: bool = False,
    batch: bool = False,
    scales: str = "shrinking",
    output: int | None = 0,
    name: str | None = None,
    check: bool = True,
) -> ModelNetwork:
    """Import a JAX function as a network.

    `lax.scan` and loops of fixed length are unrolled. Parameters are named after their path in the tree:
    "layers.0.kernel".

    Parameters
    ----------
    init
        `init(key, n)` draws a tree of parameters at width n.
    apply
        `apply(params, x)` computes the outputs.
    width, laws, tokens, batch, scales, output, check
        As for `ns.from_torch`.

    Returns
    -------
    ModelNetwork

    Examples
    --------
    >>> import jax, netsor as ns
    >>> def init(key, n):
    ...     u, v = jax.random.split(key)
    ...     return {"u": jax.random.normal(u, (2, n)), "v": jax.random.normal(v, (n,)) / n**0.5}
    >>> net = ns.from_jax(init, lambda p, x: jax.nn.relu(x @ p["u"]) @ p["v"])
    >>> print(ns.program(net, [1.0, 2.0]))
    Data x = [1, 2]
    Input u :: A(n, 2) ~ N(0, 2/2)
    Input ux :: G(n) ~ MatMul(u, x)
    Input v :: G(n) ~ N(0, 1)
    a1 := relu(ux) :: H(n)
    Output v^T a1 / sqrt(n)
    <BLANKLINE>
    """
    label = name or getattr(apply, "__name__", "network")
    front = JaxFront(init, lambda n: apply, width, tokens, batch)
    return ModelNetwork(front, label, laws, scales, output, check)


def from_flax(
    make: Callable[..., Any],
    width: int = 64,
    *,
    example: Any = None,
    batch: bool = True,
    train: bool = False,
    tokens: bool = False,
    name: str | None = None,
    laws: Given | None = None,
    scales: str = "shrinking",
    output: int | None = 0,
    check: bool = True,
) -> ModelNetwork:
    """Import a Flax module as a network.

    NNX    `make(n, rngs)` builds the module
    Linen  `make(n)` builds it, and `example` is an input: Linen needs one to draw its parameters
    train  with dropout; a Linen module says itself that it is in training (deterministic=False)

    For the other arguments see `ns.from_torch`.
    """
    required = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    if len(required) == 2:
        init, apply_at = _nnx(make, train)
    elif example is not None:
        init, apply_at = _linen(make, example, tokens, batch, train)
    else:
        raise BuildError(
            "no example of an input is given",
            remedy="A Linen module draws its parameters for an input: from_flax(make, example=x). For "
            "NNX, make takes two arguments: lambda n, rngs: ...",
        )
    return ModelNetwork(
        JaxFront(init, apply_at, width, tokens, batch), name or "flax_model", laws, scales, output, check
    )


def _nnx(make: Callable[..., Any], train: bool) -> tuple[Init, Callable[[int], Apply]]:
    from flax import nnx

    def init(key: Any, n: int) -> Any:
        return nnx.to_pure_dict(nnx.state(make(n, nnx.Rngs(key)), nnx.Param))

    def apply_at(n: int) -> Apply:
        model = make(n, nnx.Rngs(0))
        model.train() if train else model.eval()
        graph, parameters, buffers = nnx.split(model, nnx.Param, ...)

        def apply(p: Any, *x: Any) -> Any:
            state, buffer_state = (jax.tree.map(lambda leaf: leaf, part) for part in (parameters, buffers))
            nnx.replace_by_pure_dict(state, p)
            return nnx.merge(graph, state, buffer_state)(*x)

        return apply

    return init, apply_at


def _linen(
    make: Callable[..., Any], example: Any, tokens: bool, batch: bool, train: bool
) -> tuple[Init, Callable[[int], Apply]]:
    parts = example if isinstance(example, tuple) else (example,)
    inputs = [jnp.asarray(x, jnp.int32 if tokens else float) for x in parts]
    inputs = [x[None] if batch else x for x in inputs]
    rngs = {"dropout": jax.random.key(0)} if train else {}

    def init(key: Any, n: int) -> Any:
        return make(n).init({"params": key, **rngs}, *inputs)["params"]

    def apply_at(n: int) -> Apply:
        module = make(n)
        collections = module.init({"params": jax.random.key(0), **rngs}, *inputs)
        constants = {k: v for k, v in collections.items() if k != "params"}
        return lambda p, *x: module.apply({"params": p, **constants}, *x, rngs=rngs)

    return init, apply_at


def from_equinox(
    make: Callable[[int, Any], Any],
    width: int = 64,
    *,
    laws: Given | None = None,
    tokens: bool = False,
    batch: bool = False,
    train: bool = False,
    scales: str = "shrinking",
    output: int | None = 0,
    name: str | None = None,
    check: bool = True,
) -> ModelNetwork:
    """Import an Equinox module as a network, in inference mode: `make(n, key)` builds it at width n.

    With `train`, the module is called unchanged, with a key for its dropout: model(x, key=...). For the other
    arguments see `ns.from_torch`.
    """
    import equinox as eqx

    def init(key: Any, n: int) -> Any:
        return eqx.filter(make(n, key), eqx.is_inexact_array)

    def apply_at(n: int) -> Apply:
        _, static = eqx.partition(make(n, jax.random.key(0)), eqx.is_inexact_array)
        if train:
            return lambda p, *x: eqx.combine(p, static)(*x, key=jax.random.key(0))
        return lambda p, *x: eqx.nn.inference_mode(eqx.combine(p, static))(*x)

    front = JaxFront(init, apply_at, width, tokens, batch)
    return ModelNetwork(front, name or "equinox_model", laws, scales, output, check)


def from_keras(
    make: Callable[[int], Any],
    width: int = 64,
    *,
    laws: Given | None = None,
    tokens: bool = False,
    scales: str = "shrinking",
    output: int | None = 0,
    name: str | None = None,
    check: bool = True,
) -> ModelNetwork:
    """Import a Keras 3 model on the JAX backend, in evaluation mode: `make(n)` builds it at width n.

    The model must be built (it has an Input). Parameters are named by their number and by Keras's path
    without counters: "000.sequential/dense/kernel". For the other arguments see `ns.from_torch`.
    """
    import keras

    if keras.backend.backend() != "jax":
        raise BuildError(
            f"Keras runs on {keras.backend.backend()}",
            remedy="Set the environment variable KERAS_BACKEND=jax before Keras is imported.",
        )

    def init(key: Any, n: int) -> Any:
        keras.utils.set_random_seed(
            int(jax.random.randint(key, (), 0, 1_000_000)) if not _is_traced(key) else 0
        )
        return {_keras_name(k, v): jnp.asarray(v.value) for k, v in enumerate(make(n).trainable_variables)}

    def apply_at(n: int) -> Apply:
        model = make(n)
        buffers = [v.value for v in model.non_trainable_variables]
        return lambda p, *x: model.stateless_call(list(p.values()), buffers, *x, training=False)[0]

    front = JaxFront(init, apply_at, width, tokens, batch=True)
    return ModelNetwork(front, name or "keras_model", laws, scales, output, check)


def _is_traced(x: Any) -> bool:
    return isinstance(x, Tracer)


def _keras_name(k: int, variable: Any) -> str:
    """The number of a variable, padded with zeros, and its path without Keras's counters."""
    return f"{k:03d}." + re.sub(r"_\d+(?=/|$)", "", variable.path)


class JaxFront(Front):
    """A function of JAX at two widths, traced for each shape of inputs."""

    def __init__(
        self, init: Init, apply_at: Callable[[int], Apply], width: int, tokens: bool, batch: bool
    ) -> None:
        self.widths, self.tokens, self.batch = two_widths(width), tokens, batch
        self.init = init
        self.apply = tuple(apply_at(n) for n in self.widths)
        (laws, _), (laws2, two) = (read_laws(lambda key, n=n: init(key, n)) for n in self.widths)
        self.trees = (init(jax.random.key(0), self.widths[0]), two)  # numbers, and the shapes of others
        self.rows = self._rows(laws, laws2)
        self.traces: dict[Any, Any] = {}

    def _rows(self, laws: Any, laws2: Any) -> list[ParameterRow]:
        one, two = (jax.tree_util.tree_flatten_with_path(t)[0] for t in self.trees)
        if [label(path) for path, _ in one] != [label(path) for path, _ in two]:
            raise BuildError(
                "the two widths have different parameters",
                remedy="The model is one architecture, in which only sizes depend on n.",
            )
        rows = []
        for (path, a), (_, b) in zip(one, two, strict=True):
            name = label(path)
            shape = tuple(zip(a.shape, b.shape, strict=True))
            rows.append(ParameterRow(name, shape, at_two_widths(name, laws[name], laws2[name])))
        return rows

    @property
    def dtype(self) -> Any:
        return jnp.int32 if self.tokens else jnp.result_type(*jax.tree_util.tree_leaves(self.trees[0]))

    def walk(self, reader: Reader, parameters: Parameters, inputs: Sequence[Value]) -> list[Traced]:
        shapes = tuple(tuple(s[0] for s in v.shape) for v in inputs)
        if shapes not in self.traces:
            structs = [jax.ShapeDtypeStruct(shape, self.dtype) for shape in shapes]
            self.traces[shapes] = [
                jax.make_jaxpr(fn)(tree, *structs) for fn, tree in zip(self.apply, self.trees, strict=True)
            ]
        one, two = self.traces[shapes]
        consts = [constant(a, b) for a, b in zip(one.consts, two.consts, strict=True)]
        args = [*(parameters[row.name] for row in self.rows), *inputs]
        with eval_context():  # as in `run`, here for the operations on constants
            return walk(reader, one.jaxpr, two.jaxpr, consts, args)

    def numbers(self) -> dict[str, np.ndarray]:
        leaves = jax.tree_util.tree_flatten_with_path(self.trees[0])[0]
        return {label(path): np.asarray(leaf, float) for path, leaf in leaves}

    def run(
        self, inputs: Sequence[np.ndarray], fills: Mapping[str, float], double: bool = False
    ) -> list[np.ndarray]:
        # A kernel that JAX traces reads its network inside the trace, but the model runs on numbers.
        # jax.ensure_compile_time_eval is no substitute: it fails on lax.scan in JAX 0.6.0, and before 0.8.2
        # it leaves custom_jvp functions traced (https://github.com/jax-ml/jax/pull/33711).
        with eval_context(), double_precision() if double else nullcontext():
            kind = jnp.float64 if double and not self.tokens else self.dtype
            arrays = [jnp.asarray(x, kind) for x in inputs]
            tree = jax.tree_util.tree_map_with_path(
                lambda path, leaf: jnp.full_like(leaf, fills[label(path)]) if label(path) in fills else leaf,
                self.trees[0],
            )
            if double:
                tree = jax.tree.map(_double, tree)
            results = self.apply[0](tree, *(x[None] if self.batch else x for x in arrays))
            return [np.asarray(a) for a in jax.tree_util.tree_leaves(results)]


def _double(x: Any) -> Any:
    return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
