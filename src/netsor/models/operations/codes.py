"""Constants that vary along a width, such as sines and cosines of positions.

Random matrices and norms depend on such vectors c, c' only through their average products sum_i c_i c'_i / n.
Let E_k be orthonormal functions of the coordinate, sum_i E_k(i) E_l(i) / n = delta_kl, and c = sum_k a_k E_k.
Then sum_k a_k z_k has the same average products, for independent standard Gaussian vectors z_k. The codes of
all inputs share the z_k, so the products of different codes agree, too. E_0 = 1 is not replaced.
"""

from __future__ import annotations

import numpy as np

from netsor.build.array_functions import contract
from netsor.build.parameters import Vector
from netsor.build.trace import current_trace
from netsor.models.axes import AxisFactor, AxisLayout, WidthClass, finite
from netsor.models.operations.nodes import reshape_node
from netsor.models.reader import Reader
from netsor.models.values import Constant, Value


def width_of_code(c: Constant) -> int | None:
    """The axis along which the numbers vary, if it is the only width."""
    wide = [k for k, (a, b) in enumerate(c.shape) if a != b]
    if len(wide) != 1 or not np.isfinite(c.one).all():
        return None
    return None if (c.one == c.one.take([0], wide[0])).all() else wide[0]


def code(reader: Reader, c: Constant, axis: int) -> Value:
    """Replace the numbers by Gaussian vectors with the same average products, at the model's width."""
    origin = ("fixed numbers", c.one.shape[axis])
    cut = reader.cuts.get(origin, AxisLayout())
    before, after = c.one.shape[:axis], c.one.shape[axis + 1 :]
    one, two = (
        np.moveaxis(np.asarray(a, float).reshape(*before, cut.outer, -1, cut.inner, *after), axis + 1, -1)
        for a in (c.one, c.two)
    )
    n, shape = one.shape[-1], one.shape[:-1]
    products = [a.reshape(-1, a.shape[-1]) @ a.reshape(-1, a.shape[-1]).T / a.shape[-1] for a in (one, two)]
    change = float(np.abs(products[1] - products[0]).max() / np.abs(products[0]).max())
    if change > 0.5:  # averages that change so much between two widths have no limit
        raise reader.refuse(
            f"numbers of shape {c.one.shape} differ along a width, and their average products change by "
            f"{change:.0%} from width {n} to {two.shape[-1]}",
            "They have no limit. Sines and cosines of positions have one, t / 10000^(i / n) for coordinate i "
            "of n, in any order; learned positions have one, too.",
        )
    reader.note(
        f"{reader.where}: fixed numbers that differ along the width are taken for Gaussian vectors with "
        f"their average products at n = {n} (at {two.shape[-1]} these differ by {change:.1%}): the same if "
        "a matrix or a norm meets them before any other function"
    )
    shares = one.reshape(-1, n) @ cosines(n).T / n
    node = contract(shares, current_trace("a model").leaf(_waves(reader, n)))
    sizes = tuple(s for s in shape if s != 1)
    width = AxisFactor((n, two.shape[-1]), WidthClass(origin))
    axes = [finite(s) for s in before] + [(*finite(cut.outer), width, *finite(cut.inner))]
    return Value((*axes, *(finite(s) for s in after)), reshape_node(node, sizes))


def cosines(n: int) -> np.ndarray:
    """(n, n): E_0 = 1, E_k(i) = sqrt(2) cos(pi k (i + 1/2) / n), with average products 0 and 1."""
    k, i = np.arange(n)[:, None], np.arange(n)
    return np.where(k == 0, 1.0, np.sqrt(2) * np.cos(np.pi * k * (i + 0.5) / n))


def _waves(reader: Reader, n: int) -> Vector:
    """The vectors z_k of a width; they are not trained."""
    waves = reader.registry.waves
    if n not in waves:
        first = np.zeros(n)
        first[0] = 1.0
        waves[n] = Vector(np.diag(1.0 - first), mean=first, index=(n,), name=f"waves{n}", rate=0.0)
    return waves[n]
