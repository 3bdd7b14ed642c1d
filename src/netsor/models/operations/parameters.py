"""Parameters as vectors, constants and matrices of netsor."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from netsor.build.parameters import Matrix, Vector
from netsor.build.trace import current_trace
from netsor.models.axes import Axes, AxisFactor, AxisLayout, WidthClass, finite, unknown
from netsor.models.laws import MIXED, ParameterRow
from netsor.models.reader import Reader, Use
from netsor.models.scalars import NEAR, ONE, Size, WidthScale
from netsor.models.values import Parameter, Value, fixed


def parameter(row: ParameterRow, cuts: dict[tuple[str, int], AxisLayout]) -> Parameter:
    """Create a parameter as the model stores it, with the known layouts of its widths."""
    axes: list = []
    for k, size in enumerate(row.shape):
        if size[0] == size[1]:
            axes.append(finite(size[0]))
            continue
        cut = cuts.get((row.name, k), AxisLayout())
        parts = cut.outer * cut.inner
        if size[0] % parts or size[1] % parts:
            raise ValueError(f"the width {size[0]} of `{row.name}` is no multiple of {parts}")
        width = AxisFactor((size[0] // parts, size[1] // parts), WidthClass((row.name, k)))
        axes.append((*finite(cut.outer), width, *finite(cut.inner)))
    return Parameter(row.name, tuple(axes), tuple(axes), row.law)


def parameter_value(reader: Reader, p: Parameter) -> Value:
    """Convert a parameter to a constant or a vector."""
    if p.is_constant:
        axes = tuple(unknown(size) for size in p.shape)
        return Value(axes, float(p.law.mean), p.scale)
    if len(p.widths) != 1 or p.law.fan_in:
        raise reader.refuse(
            f"the random parameter `{p.name}` of shape {tuple(s[0] for s in p.shape)} is used as a "
            "vector, but it "
            + (f"has {len(p.widths)} width dimensions" if not p.law.fan_in else "has the law of a matrix"),
            "A random parameter without a width stays random in the limit, and the network is then no "
            "Gaussian process. Make it a constant (a gain of 1, a bias of 0), let it grow with the width, or "
            'condition on the numbers that the model itself has: laws={name: "values"}.'
            if len(p.widths) != 1
            else f'Give laws={{"{p.name}": ns.Vector(var, mean)}}.',
        )
    vector = _vector(reader, p)
    v = Value(p.stored, current_trace("a model").leaf(vector))
    return replace(_repeat_steps(v, p), scale=p.scale * law_scale(p, ONE))


def check_law(reader: Reader, p: Parameter) -> None:
    """Check that all entries of a parameter have one law."""
    if p.law.source == MIXED:
        raise reader.refuse(
            f"the parts of the parameter `{p.name}` are filled with different laws",
            f'Entries of one matrix or vector have one law. Give it, laws={{"{p.name}": ns.Vector(1.0)}} '
            "or ns.Matrix(1.0), or let each part be a parameter of its own.",
        )


def _vector(reader: Reader, p: Parameter) -> Vector:
    check_law(reader, p)
    key = (p.name, "vector")
    registry = reader.registry
    if key not in registry.by_piece:
        index = tuple(f.size[0] for a in p.stored for f in a if f.is_index)
        name = registry.name(p.name)
        registry.by_piece[key] = Vector(_rounded(p.law.var[0]), p.law.mean, index=index, name=name)
        registry.uses[name] = Use(replace(p, axes=p.stored, steps=(), scale=ONE), "vector")
    vector = registry.by_piece[key]
    assert isinstance(vector, Vector)
    return vector


def _rounded(var: float) -> float:
    """Round a variance to a nearby simple fraction, to undo the rounding of initialisers."""
    fraction = float(Fraction(var).limit_denominator(100_000))
    return fraction if math.isclose(fraction, var, rel_tol=1e-12) else var


def _repeat_steps(v: Value, p: Parameter) -> Value:
    """Repeat the operations on the stored array for the vector."""
    from netsor.models.operations.shapes import reshape_value, transpose_value

    sizes = _shapes_of_steps(p)
    for (kind, argument), shape in zip(p.steps, sizes, strict=True):
        v = transpose_value(v, argument) if kind == "transpose" else reshape_value(v, shape)
    return v


def _shapes_of_steps(p: Parameter) -> list[list[Size]]:
    """Compute the shape after each step, at both widths."""
    return [shape if kind == "reshape" else [] for kind, shape in p.steps]


def law_scale(p: Parameter, cols: WidthScale) -> WidthScale:
    """The factor at the two widths that remains of a parameter's law beyond that of a vector or a matrix.

    cols  for a matrix, the square roots of its numbers of columns, which cancel the variance var/n
    """
    if p.law.at_width or p.law.fan_in or not p.law.var[0]:
        return ONE
    ratio = math.sqrt(p.law.var[1] / p.law.var[0]) * cols.two / cols.one
    power = math.log2(ratio)  # the second width is twice the first
    half = round(2 * power) / 2
    power = half if abs(power - half) < NEAR else power
    names = frozenset([p.name])
    return ONE if power == 0 else WidthScale(1.0, 2**power, names, names if power > 0 else frozenset())


def matrix(
    reader: Reader,
    p: Parameter,
    var: float,
    index: tuple[int, ...],
    role: str,
    contracted: tuple[int, ...] = (),
    rows: int | None = None,
) -> Matrix:
    """Return the Matrix of a parameter in this role; all inputs share it."""
    check_law(reader, p)
    home = frozenset(f.width.home for i in contracted for f in p.axes[i] if f.width)
    registry, key = reader.registry, (p.name, role, home, p.piece)
    for other in registry.by_piece:
        if other[0] == p.name and other != key and not _apart(other, key):
            raise reader.refuse(
                f"the parameter `{p.name}` is used in two ways, as {other[1]} and as "
                f"{'its transpose' if other[1] == role else role} (tied weights)",
                "A matrix and its transpose, or a readout that is used elsewhere, cannot be in one "
                "program. Untie them: give the second use a parameter of its own "
                "(tie_word_embeddings=False).",
            )
    if key not in registry.by_piece:
        name = registry.name("_".join([p.name, *(str(first) for _, first, _ in p.piece)]))
        registry.by_piece[key] = Matrix(_rounded(var), rows, index=index, name=name)
        registry.uses[name] = Use(p, role, contracted)
    matrices = registry.by_piece[key]
    assert isinstance(matrices, Matrix)
    return matrices


def _apart(one: tuple, two: tuple) -> bool:
    """Whether two pieces of a parameter have no entry in common."""
    if len(one) < 4 or one[1:3] != two[1:3]:
        return False
    return any(
        axis == other and (last <= start or stop <= first)
        for axis, first, last in one[3]
        for other, start, stop in two[3]
    )


def stored_numbers(p: Parameter, array: np.ndarray) -> np.ndarray:
    """Return the model's numbers of a parameter, reshaped to the factors of its axes."""
    for kind, argument in p.steps:
        if kind == "transpose":
            array = array.transpose(argument)
        elif kind == "reshape":
            array = array.reshape([s[0] for s in argument])
        else:
            axis, start, stop = argument
            array = array[(slice(None),) * axis + (slice(start, stop),)]
    return array.reshape([f.size[0] for a in p.axes for f in a])


def zeros(axes: Axes) -> Value:
    return Value(fixed(axes), 0.0)
