"""Models as networks: a model is read for each shape of inputs, and again if a width must be split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netsor.build.graph_nodes import Node
from netsor.build.network import Network
from netsor.build.trace import current_trace
from netsor.errors import BuildError
from netsor.models.axes import Axis, AxisLayout, CutWidth, finite
from netsor.models.laws import VALUES, Given, ParameterRow, override
from netsor.models.operations.outputs import finish, rows_first
from netsor.models.operations.parameters import parameter
from netsor.models.reader import WIDTHS, Mask, Reader, Registry
from netsor.models.scalars import Size
from netsor.models.values import Constant, OutputValue, Parameter, Traced, Value
from netsor.progress import bar

Parameters = dict[str, Parameter | Constant]


class Front(ABC):
    """A model of some library, built at two widths."""

    widths: Size
    rows: list[ParameterRow]
    batch: bool
    tokens: bool
    drawn: Sequence[np.ndarray] = ()  # the masks of dropout in the last run, if the model draws them itself

    @abstractmethod
    def walk(self, reader: Reader, parameters: Parameters, inputs: Sequence[Value]) -> list[Traced]:
        """Compute the results of the model symbolically, from values."""

    @abstractmethod
    def numbers(self) -> dict[str, np.ndarray]:
        """Return the numbers of the model's parameters, at the first width."""

    @abstractmethod
    def run(
        self, inputs: Sequence[np.ndarray], fills: Mapping[str, float], double: bool = False
    ) -> list[np.ndarray]:
        """Run the model at the first width, in its own precision or in double.

        fills  for some parameters, a number that replaces all entries
        """


class ModelNetwork(Network):
    """A network that is read from a model.

    rows      the parameters and their laws
    registry  their Matrix and Vector objects
    notes     places where a power of the width was replaced by its value at the model's width
    checks    whether to check the program with the model's weights on the first input of each shape
    """

    def __init__(
        self,
        front: Front,
        name: str,
        laws: Given | None,
        scales: str,
        output: int | None,
        check: bool = True,
    ) -> None:
        if scales not in ("strict", "shrinking", "width"):
            raise BuildError(
                f"scales={scales!r}",
                remedy='"shrinking": a power of the width that vanishes is kept as it is at the model\'s '
                'own width; "width": one that grows, too; "strict": both are refused.',
            )
        self.front, self.scales, self.output = front, scales, output
        self.rows = override(front.rows, laws)
        self.registry, self.cuts = Registry(), {}
        self.notes: list[str] = []
        self.results: list[OutputValue] = []
        self.latest: Any = None  # the trace that has used the registry last
        self.masks: list[Mask] = []  # of dropout, for the input that was read last
        self.single = False  # whether the model computes something in less than double precision
        self.offset = False  # whether a constant that is added to an output was left out
        self.checks = check
        self.checked: set[Any] = set()  # shapes of inputs
        super().__init__(self.read, name)

    def parameters(self, *inputs: Any) -> dict[Any, str]:
        """Return the matrices and vectors of the model's parameters, for the inputs read so far."""
        if inputs:
            return super().parameters(*inputs)
        return {parameter: parameter.name for parameter in self.registry.by_piece.values() if parameter.name}

    def tangent_remarks(self) -> tuple[str, ...]:
        """Remark on parameters that the tangent kernel trains differently from the model's library."""
        constant = [row.name for row in self.rows if row.trained and row.law.is_constant]
        frozen = [row.name for row in self.rows if not row.trained and not row.law.is_constant]
        remarks = []
        if constant:
            remarks.append(
                f"The tangent kernel leaves out {_listed(constant)}: trained parameters that begin as "
                "constants (gains of 1, biases of 0) are constants of the limit."
            )
        if frozen:
            remarks.append(
                f"The tangent kernel trains {_listed(frozen)}, frozen in the model: a rate of 0 freezes a "
                "parameter."
            )
        return tuple(remarks)

    def read(self, x: Any) -> list[Any]:
        """Read the model on one input; return its readouts."""
        with bar(None, 0, f"reading {self.name}"):
            readouts = self._read(x)
            self._check_first(x)
        return readouts

    def _check_first(self, x: Any) -> None:
        """Check the program with the model's weights on the first input of each shape."""
        from netsor.models.check import check_import

        parts = x if isinstance(x, tuple) else (x,)
        shapes = tuple(part.index for part in parts)
        if not self.checks or shapes in self.checked or any(part.kind != "K" for part in parts):
            return
        arrays = tuple(current_trace("a model").values_of(part) for part in parts)
        if not self.front.tokens and not any(a.any() for a in arrays):  # zeros tell nothing
            arrays = tuple(np.random.default_rng(0).standard_normal(a.shape) for a in arrays)
        latest = self.latest
        check_import(self, arrays if isinstance(x, tuple) else arrays[0])
        self.latest = latest
        self.checked.add(shapes)

    def _read(self, x: Any) -> list[Any]:
        trace = current_trace("a model")
        inputs = [self._input(part) for part in (x if isinstance(x, tuple) else (x,))]
        before = trace.copy()
        while True:
            reader = Reader(self.front.widths, self.scales, self.registry, self.cuts)
            try:
                parameters = {row.name: self._parameter(row) for row in self.rows}
                results = self.front.walk(reader, parameters, inputs)
                chosen = results if self.output is None else [results[self.output]]
                with reader.at(reader.last):
                    out = [finish(reader, result) for result in chosen]
            except CutWidth as cut:
                self._cut(cut, reader, trace)
                trace.rewind(before)  # the network is that of the last walk alone
                continue
            self.latest = trace
            self.single, self.masks, self.offset = reader.single, reader.masks, reader.offset
            self.notes += [note for note in reader.notes if note not in self.notes]
            self.results = [result for result in chosen if isinstance(result, OutputValue)]
            return out

    def _parameter(self, row: ParameterRow) -> Parameter | Constant:
        """Return a parameter, or a constant with its numbers if the user conditions on them."""
        if row.law.source != VALUES:
            return parameter(row, self.cuts)
        numbers = self.front.numbers()[row.name]
        return Constant(numbers, numbers)

    def _input(self, x: Node) -> Value:
        axes: tuple[Axis, ...] = tuple(finite(size) for size in x.index)
        index = tuple(size for size in x.index if size != 1)
        node = x if index == x.index else x.reshape(index)
        return Value((((),) if self.front.batch else ()) + axes, node)

    def _cut(self, cut: CutWidth, reader: Reader, trace: Any) -> None:
        """Record the split of a width for all axes in its class; the reading then restarts."""
        origins = cut.width.root().origins
        reader.where = reader.last
        if cut.parts < 2:  # reading again would change nothing
            raise reader.refuse("a width is cut where it has no blocks", WIDTHS)
        if not origins:
            raise reader.refuse(
                "a width that belongs to no parameter is cut", "Cut a vector that a layer made."
            )
        if trace is self.latest:
            raise reader.refuse(
                "an input of another shape cuts a width in another way",
                "Read this input first, ns.program(net, x); the network then knows all its cuts.",
            )
        sizes = {(row.name, k): size for row in self.rows for k, size in enumerate(row.shape)}
        for origin in origins:
            old = self.cuts.get(origin, AxisLayout())
            parts = cut.parts
            new = (
                replace(old, inner=old.inner * parts) if cut.inner else replace(old, outer=old.outer * parts)
            )
            size, _ = sizes.get(origin, (origin[1], None))  # fixed numbers are known by their size
            if size < 2 * new.outer * new.inner:
                raise reader.refuse(
                    f"a width of {size} is cut into {new.outer * new.inner} parts, as if two "
                    "vectors met whose coordinates are in different order",
                    "Blocks of a width must come together again in the order in which they were cut. If "
                    f"they do, give a larger width: width={2 * self.front.widths[0]}.",
                )
            self.cuts[origin] = new
        self.registry = Registry()

    def output_orders(self) -> list[list[int]]:
        """The permutations from the order of the model's results to netsor's: rows of a readout first."""
        return [rows_first(result) for result in self.results]


def _listed(names: list[str]) -> str:
    """List the first names, and the number of all."""
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:4])}, ... ({len(names)} parameters)"


def two_widths(width: int) -> Size:
    if not isinstance(width, int) or width < 2:
        raise BuildError(
            f"width={width!r}", remedy="The width that make(n) is called with is an integer >= 2: width=64."
        )
    return width, 2 * width
