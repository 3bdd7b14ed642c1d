"""Order and chaos of any network that can be made deeper.

Nearly equal inputs have outputs at a small distance, d = E|f(x) - f(x')|^2. One layer more multiplies d by a
number chi, which deep in the network depends on the variances alone. Where chi < 1 inputs come together
(order), where chi > 1 they part (chaos), and at chi = 1 signals and gradients reach the greatest depth (Poole
et al. 2016, Schoenholz et al. 2017). They derived chi for MLPs, var_w E[phi'^2]; here it is measured on the
limit itself, at two depths, so that it holds for whatever is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from netsor.build.network import Network
from netsor.limits import KernelFn, kernel
from netsor.plots.moving import Groups, moving
from netsor.plots.style import INK, Picture, picture
from netsor.progress import bar

__all__ = ["phase_diagram", "sensitivity"]

STEPS = (1e-1, 3e-3, 3e-4)  # how far towards the second input: chaos needs small steps, order large ones
SMALLEST, LARGEST = 1e-9, 1e-3  # distances, relative to the variance, between rounding and saturation
Tied = Mapping[str, Sequence[str]] | Sequence[Sequence[str]]
PAIR = np.array([[1.0, -0.5, 0.5, 1.5], [1.5, 0.5, 2.0, 1.0]])


def sensitivity(
    make: Callable[[int], Network],
    var_w: Any,
    var_b: Any = 0.0,
    *,
    depth: int = 12,
    inputs: Any = PAIR,
    tied: Tied | None = None,
    relative: bool = False,
    progress: bool | None = None,
) -> np.ndarray:
    """By how much one layer more multiplies the distance of near inputs, at given variances, which broadcast.

    chi = d(depth) / d(depth - 1),  d = K(x, x) + K(x', x') - 2 K(x, x')

    make      the network of a given depth
    depth     where it is measured: deep enough that variances no longer change; less deep where d is rounding
              or saturates there
    inputs    two of them: chi is measured from the first one towards the second
    tied      names of `K.params` that have the variances var_w and var_b, as groups of names or patterns:
              [["W*"], ["b*"]], or {"var_w": ["W*"]}, which leaves the biases as they are. By default var_w is
              for all hidden matrices and var_b for all biases, whatever they are called (`plots.moving`). Of
              a convolution it is the variance at each position of the kernel, as in `K.params`
    relative  d relative to the variance, 1 - correlation: for networks whose variance grows without end
    progress  a bar; by default only for runs longer than two seconds

    >>> import netsor as ns
    >>> sensitivity(ns.zoo.mlp, var_w=[1.0, 2.0, 3.0]).round(3)  # relu: var_w / 2
    array([0.5, 1. , 1.5])
    """
    first, second = (np.asarray(one, float) for one in inputs)
    near = [first, *(first + step * (second - first) for step in STEPS)]
    depths = [d for d in (depth, depth // 2, depth // 4) if d >= 3] + [2]

    across, up = np.broadcast_arrays(np.asarray(var_w, float), np.asarray(var_b, float))
    network = cache(make)
    groups = moving(network, depths[0], near, tied, biased=bool(np.any(up > 0)))

    @cache
    def measured(d: int) -> tuple[KernelFn, Groups]:
        return kernel(network(d)), groups(d)

    def chi(values: Mapping[str, float]) -> float:
        for d in depths:
            before, after = (_distances(*measured(k), near, values, relative) for k in (d - 1, d))
            usable = (after.ratio < LARGEST) & (before.ratio > SMALLEST) & (after.ratio > SMALLEST)
            if usable.any():
                k = int(np.flatnonzero(usable)[-1])  # the smallest step, which is nearest to a derivative
                return float(after.d[k] / before.d[k])
        return float("nan")

    found = []
    with bar(progress, across.size, "measuring order and chaos") as advance:
        for w, b in zip(across.flat, up.flat, strict=True):
            found.append(chi({"var_w": float(w), "var_b": float(b)}))
            advance()
    return np.reshape(found, across.shape)


@dataclass(frozen=True)
class Distances:
    """Squared distances of the outputs of near inputs, as asked for, and relative to the variance."""

    d: np.ndarray
    ratio: np.ndarray


def _distances(
    K: KernelFn,
    groups: Groups,
    near: list[Any],
    values: Mapping[str, float],
    relative: bool,
) -> Distances:
    """From the first input to the others, averaged over the outputs of an input."""
    found = np.asarray(K(near, params={name: values[axis] for axis in values for name in groups[axis]}))
    rows = len(found) // len(near)
    own = np.diagonal(found).reshape(len(near), rows)
    cross = np.stack([np.diagonal(found[:rows, k * rows : (k + 1) * rows]) for k in range(1, len(near))])
    squared = np.mean(own[0] + own[1:] - 2 * cross, axis=1)
    ratio = np.mean(1 - cross / np.sqrt(own[0] * own[1:]), axis=1)
    return Distances(ratio if relative else squared, ratio)


def phase_diagram(
    make: Callable[[int], Network],
    var_w: Any,
    var_b: Any,
    title: str = "",
    *,
    depth: int = 12,
    inputs: Any = PAIR,
    tied: Tied | None = None,
    relative: bool = False,
) -> Picture:
    """Order and chaos over a grid of var_w and var_b, with the critical line; arguments as for `sensitivity`.

    >>> import numpy as np, netsor as ns
    >>> def make(depth):
    ...     return ns.zoo.mlp(depth, ns.erf)
    >>> ns.plots.phase_diagram(make, np.linspace(0.5, 4, 4), np.linspace(0, 1, 3), depth=6)
    <picture: By how much one layer multiplies the squared distance of nearly equal inputs at depth 6: ...>
    """
    across, up = np.asarray(var_w, float), np.asarray(var_b, float)
    chi = sensitivity(
        make, across[None, :], up[:, None], depth=depth, inputs=inputs, tied=tied, relative=relative
    )

    what = "distance (relative to the variance)" if relative else "squared distance"

    def draw(ax: Any) -> str:
        from matplotlib.colors import TwoSlopeNorm

        logs = np.log10(np.clip(chi, 1e-3, 1e3))
        low, high = min(float(np.nanmin(logs)), -0.05), max(float(np.nanmax(logs)), 0.05)
        centred = TwoSlopeNorm(0.0, low, high)  # white is critical, and both sides have their whole colour
        image = ax.pcolormesh(across, up, logs, cmap="PuOr_r", norm=centred, shading="gouraud")
        if np.nanmin(logs) < 0 < np.nanmax(logs):
            line = ax.contour(across, up, logs, levels=[0.0], colors=INK, linewidths=2.0)
            ax.clabel(line, fmt={0.0: "critical"}, fontsize=8)
        bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
        marked = [low, low / 2, 0.0, high / 2, high]
        bar.set_ticks(marked, labels=[f"{10**tick:.2g}" for tick in marked])
        bar.set_label("chi", fontsize=8)
        bar.ax.tick_params(labelsize=7.5)
        bar.outline.set_linewidth(0.5)
        ax.set(xlabel="var_w", ylabel="var_b", title=title)
        return (
            f"By how much one layer multiplies the {what} of nearly equal inputs at depth {depth}: chi < 1 "
            "is order (purple), chi > 1 is chaos (orange), and between them is the critical line."
        )

    return picture(draw, (5.4, 4.2))
