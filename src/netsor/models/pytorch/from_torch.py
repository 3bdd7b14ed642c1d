"""PyTorch models as networks: `torch.export` at two widths."""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from netsor.models.laws import Given
from netsor.models.network import Front, ModelNetwork, Parameters, two_widths
from netsor.models.pytorch import layers, operations  # noqa: F401 -- they enter their rules
from netsor.models.pytorch.graph import EMPTY, export, walk
from netsor.models.pytorch.laws import built, read_rows
from netsor.models.reader import Reader
from netsor.models.values import Traced, Value


def from_torch(
    make: Callable[[int], Any],
    width: int = 64,
    *,
    laws: Given | None = None,
    tokens: bool = False,
    batch: bool = True,
    train: bool = False,
    scales: str = "shrinking",
    output: int | None = 0,
    name: str | None = None,
    check: bool = True,
) -> ModelNetwork:
    """Import a PyTorch model as a network.

    Parameters
    ----------
    make
        `make(n)` builds the model at width n, as an nn.Module.
    width
        The model's own width, at which laws and scales are read. The model is also built at twice this width;
        the sizes that differ go to infinity.
    laws
        Laws by parameter name (`*` matches any text) that replace those that were read: ns.Matrix(var) for
        entries of variance var / fan_in, ns.Vector(var, mean), or "width" for the law at this width.
    tokens
        Whether inputs are integers, for an embedding.
    batch
        Whether to add a batch axis of length 1 to each input of the model.
    train
        Whether to use training mode (batchnorm over a batch, dropout) instead of evaluation mode.
    scales
        Treatment of factors that are powers of the width. "shrinking": factors that vanish keep their value
        at this width, and factors that grow are refused. "width": both keep their value. "strict": both are
        refused.
    output
        The number of one of several results; None for all.
    name
        The name of the network.
    check
        Whether to compare program and model, with the model's weights, on the first input of each shape, as
        `ns.check_import` does.

    Returns
    -------
    ModelNetwork

    Examples
    --------
    >>> import netsor as ns, torch.nn as nn
    >>> net = ns.from_torch(lambda n: nn.Sequential(nn.Linear(3, n), nn.ReLU(), nn.Linear(n, 1, bias=False)))
    >>> print(ns.program(net, [1.0, 2.0, 2.0]))
    Data x = [1, 2, 2]
    Input p0_weight :: A(n, 3) ~ N(0, 0.3333333333333333/3)
    Input p0_weightx :: G(n) ~ MatMul(p0_weight, x)
    Input p0_bias :: G(n) ~ N(0, 0.1111111111111111)
    Input p2_weight :: G(n) ~ N(0, 0.3333333333333333)
    h1 := p0_weightx + p0_bias :: G(n)
    a1 := relu(h1) :: H(n)
    Output p2_weight^T a1 / sqrt(n)
    <BLANKLINE>
    """
    front = TorchFront(make, width, tokens, batch, train)
    label = name or type(front.models[0]).__name__
    return ModelNetwork(front, label, laws, scales, output, check)


class TorchFront(Front):
    """A PyTorch model at two widths, exported once for each shape of inputs."""

    def __init__(
        self, make: Callable[[int], Any], width: int, tokens: bool, batch: bool, train: bool
    ) -> None:
        self.widths, self.tokens, self.batch = two_widths(width), tokens, batch
        (one, laws), (two, laws2) = (built(make, n) for n in self.widths)
        self.rows = read_rows(one, laws, two, laws2)
        self.models = tuple(m.train(train).requires_grad_(False) for m in (one, two))
        self.graphs: dict[Any, list[Any]] = {}

    @property
    def dtype(self) -> Any:
        floats = [p.dtype for p in self.models[0].parameters() if p.is_floating_point()]
        return floats[0] if floats else torch.get_default_dtype()

    def tensors(self, inputs: Sequence[np.ndarray], double: bool = False) -> tuple[Any, ...]:
        """Inputs as the model takes them."""
        kind = torch.long if self.tokens else torch.float64 if double else self.dtype
        arrays = [torch.as_tensor(np.array(x)).to(kind) for x in inputs]
        return tuple(t[None] if self.batch else t for t in arrays)

    def walk(self, reader: Reader, parameters: Parameters, inputs: Sequence[Value]) -> list[Traced]:
        shapes = tuple(tuple(s[0] for s in v.shape) for v in inputs)
        if shapes not in self.graphs:
            kind = torch.long if self.tokens else self.dtype
            examples = tuple(torch.zeros(shape, dtype=kind) for shape in shapes)
            self.graphs[shapes] = [export(copy.deepcopy(m), examples) for m in self.models]
        return walk(reader, self.graphs[shapes], parameters, inputs)

    def numbers(self) -> dict[str, np.ndarray]:
        return {name: p.detach().double().numpy() for name, p in self.models[0].named_parameters()}

    def run(
        self, inputs: Sequence[np.ndarray], fills: Mapping[str, float], double: bool = False
    ) -> list[np.ndarray]:
        model = copy.deepcopy(self.models[0])
        for name, p in model.named_parameters():
            if name in fills:
                p.fill_(fills[name])
        tensors = self.tensors(inputs, double)
        if double:
            model.double()
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _default(double), RunRecorder() as run:
            results = model(*tensors)
        self.drawn = run.drawn
        return [t.numpy() for t in _tensors(results)]


@contextmanager
def _default(double: bool) -> Iterator[None]:
    """New tensors are in double precision, if asked."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if double else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class RunRecorder(TorchDispatchMode):
    """Keeps the zeros and ones that dropout draws, and marks memory that nobody has written."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[np.ndarray] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bernoulli_.float:
            self.drawn.append(result.double().numpy().copy())
        if func._schema.name.removeprefix("aten::") in EMPTY and result.is_floating_point():
            result.fill_(np.nan)
        return result


def _tensors(results: Any) -> list[Any]:
    """The tensors of a result in order, as torch.export lists them."""
    flat, _ = tree_flatten(results)
    return [t for t in flat if isinstance(t, torch.Tensor)]
