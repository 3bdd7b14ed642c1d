"""Order and chaos of any network that can be made deeper.

Nearly equal inputs have outputs at a small distance, d = E|f(x) - f(x')|^2. One more layer multiplies d by a
number chi, which deep in the network depends on the variances alone. Where chi < 1 inputs come together
(order), where chi > 1 they part (chaos), and at chi = 1 signals and gradients reach the greatest depth (Poole
et al. 2016, Schoenholz et al. 2017). They derived chi for MLPs, var_w E[phi'^2]; here it is measured on the
limit itself, at two depths, so that it holds for any architecture that is repeated.

A diagram moves variances by the role of a parameter in the program and not by its name. var_w is the variance
of each hidden matrix, var_b that of each bias: a vector of mean 0. A readout is neither, nor is a bias of the
output, because one more layer leaves them as they are. A matrix on data moves where it belongs to the layers,
as the first of them (in an MLP of `depth` matrices, one is on data). It does not move where all layers have
matrices between widths, as in a residual network, which embeds its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

from netsor.arguments import shown
from netsor.build.joint_program import joint
from netsor.build.network import Network
from netsor.errors import DataError
from netsor.gp.gradient import tied_groups
from netsor.lang.program import MatrixLaw, Normal
from netsor.lang.types import A
from netsor.limits import kernel
from netsor.plots.style import INK, Axes, Picture, colour_bar, picture
from netsor.progress import bar

PAIR = ((1.0, -0.5, 0.5, 1.5), (1.5, 0.5, 2.0, 1.0))  # any two inputs will do
Tied = Mapping[str, Sequence[str]] | Sequence[Sequence[str]]
Names = tuple[str, ...]  # of variances


def sensitivity(
    make: Callable[[int], Network],
    var_w: ArrayLike,
    var_b: ArrayLike = 0.0,
    *,
    depth: int = 12,
    inputs: Sequence[ArrayLike] = PAIR,
    tied: Tied | None = None,
    relative: bool = False,
    progress: bool | None = None,
) -> np.ndarray:
    """Factor by which one more layer scales the distance between nearby inputs.

    chi = d(depth) / d(depth - 1),  d = K(x, x) + K(x', x') - 2 K(x, x')

    Parameters
    ----------
    make
        Returns the network of a given depth.
    var_w, var_b
        The variances, which broadcast.
    depth
        Depth at which chi is measured: deep enough that variances no longer change. Where d is rounding or
        saturates at this depth, chi is measured at a smaller one.
    inputs
        Two inputs. Chi is measured at the first one, in the direction of the second.
    tied
        Names of `K.params` that have the variances var_w and var_b, as groups of names or patterns:
        [["W*"], ["b*"]], or {"var_w": ["W*"]}, which leaves the biases as they are. By default var_w is the
        variance of all hidden matrices and var_b that of all biases, whatever they are called. For a
        convolution it is the variance at each position of the kernel, as in `K.params`.
    relative
        Whether to divide d by the variance, for networks whose variance grows without end.
    progress
        Whether to show a progress bar; None shows it for runs longer than two seconds.

    Returns
    -------
    np.ndarray
        chi for each pair of variances; NaN where it cannot be measured.

    Raises
    ------
    DataError
        If var_w or var_b belong to no variance of the network.

    Examples
    --------
    >>> import netsor as ns
    >>> sensitivity(ns.zoo.mlp, var_w=[1.0, 2.0, 3.0]).round(3)  # relu: var_w / 2
    array([0.5, 1. , 1.5])
    """
    across, up = np.broadcast_arrays(np.asarray(var_w, float), np.asarray(var_b, float))
    first, second = (np.asarray(x, float) for x in inputs)
    steps = (1e-1, 3e-3, 3e-4)  # towards the second input: chaos needs small steps, order large ones
    near = [first, *(first + step * (second - first) for step in steps)]
    depths = [d for d in (depth, depth // 2, depth // 4) if d >= 3] + [2]
    network = cache(make)
    moved = _moved(network, depths[0], near, tied, biased=bool(np.any(up > 0)))
    kernels = cache(lambda d: kernel(network(d)))

    def distances(d: int, *variances: float) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances of the first input to the next ones, also by variance: means over outputs."""
        params = {name: var for names, var in zip(moved(d), variances, strict=True) for name in names}
        covariance = np.asarray(kernels(d)(near, params=params))
        rows = len(covariance) // len(near)
        variance = np.diagonal(covariance).reshape(len(near), rows)
        starts = range(rows, len(covariance), rows)
        cross = np.stack([np.diagonal(covariance[:rows, k : k + rows]) for k in starts])
        squared = np.mean(variance[0] + variance[1:] - 2 * cross, axis=1)
        return squared, np.mean(1 - cross / np.sqrt(variance[0] * variance[1:]), axis=1)

    def chi(w: float, b: float) -> float:
        for d in depths:
            (before, ratio_before), (after, ratio) = distances(d - 1, w, b), distances(d, w, b)
            # Relative to the variance, smaller distances are rounding, and larger ones saturate.
            usable = np.flatnonzero((ratio_before > 1e-9) & (ratio > 1e-9) & (ratio < 1e-3))
            if len(usable):
                k = usable[-1]  # the smallest step, which is nearest to a derivative
                return float(ratio[k] / ratio_before[k] if relative else after[k] / before[k])
        return float("nan")

    values = []
    with bar(progress, across.size, "measuring order and chaos") as advance:
        for w, b in zip(across.flat, up.flat, strict=True):
            values.append(chi(float(w), float(b)))
            advance()
    return np.reshape(values, across.shape)


def _moved(
    make: Callable[[int], Network], depth: int, inputs: list[np.ndarray], tied: Tied | None, *, biased: bool
) -> Callable[[int], Sequence[Names]]:
    """The names that var_w and var_b move at each depth up to `depth`: those `tied` to them, or by role."""
    roles = cache(lambda d: _roles(make(d), inputs))
    hidden, *further = roles(depth)
    names = [*hidden, *chain(*further)]
    patterns = [] if tied is None else _by_axis(tied)
    tied_groups(patterns, names)  # refuses names that the deepest network lacks
    added = len(hidden) - len(roles(depth - 1)[0])
    first_on_data = len(hidden) < added * depth

    @cache
    def moved(d: int) -> Sequence[Names]:
        if patterns:
            return tied_groups(patterns, chain(*roles(d)), partial=True)
        matrices, on_data, biases, _ = roles(d)
        return (*matrices, *on_data) if first_on_data else matrices, biases

    matrices, biases = moved(depth)
    if not matrices or (biased and not biases):
        axis, what = ("var_b", "bias") if matrices else ("var_w", "hidden matrix")
        raise DataError(
            f"{axis} moves nothing: the network has no {what}, or none is tied to it",
            remedy=f"Name those that move, as in tied=[['W*'], ['b*']]; known: {', '.join(names)}."
            + (" Or leave var_b at 0." if axis == "var_b" else ""),
        )
    return moved


def _roles(net: Network, inputs: list[np.ndarray]) -> tuple[Names, Names, Names, Names]:
    """The names of hidden matrices, of matrices on data, of biases, and of other vectors."""
    read = joint(net, inputs)
    program = read.tangent.source if read.tangent else read.program
    readouts = {term.readout for output in program.outputs for term in output.terms}
    hidden, on_data, biases, without = [], [], [], []
    for s in program.inputs:
        if isinstance(s.law, MatrixLaw) and isinstance(s.type, A):
            (on_data if isinstance(s.type.cols, int) else hidden).append(s.name)
        elif isinstance(s.law, Normal) and isinstance(s.law.cov, float) and not s.law.each:
            is_bias = s.name not in readouts and not np.any(s.law.mean)
            (biases if is_bias else without).append(s.name)
    return tuple(hidden), tuple(on_data), tuple(biases), tuple(without)


def _by_axis(tied: Tied) -> list[Iterable[str]]:
    """The groups of var_w and var_b; an axis without a group moves nothing."""
    if isinstance(tied, Mapping):
        unknown = [axis for axis in tied if axis not in ("var_w", "var_b")]
        if unknown:
            raise DataError(f"tied[{shown(unknown[0])}]", remedy="Tie names to var_w and var_b.")
        return [tied.get("var_w", ()), tied.get("var_b", ())]
    groups = list(tied) if isinstance(tied, list | tuple) else []
    if not 1 <= len(groups) <= 2:
        raise DataError(
            f"tied={shown(tied)}",
            remedy="Give a group of names or patterns for var_w, and one for var_b: [['W*'], ['b*']].",
        )
    return [*groups, ()][:2]


def phase_diagram(
    make: Callable[[int], Network],
    var_w: ArrayLike,
    var_b: ArrayLike,
    title: str = "",
    *,
    depth: int = 12,
    inputs: Sequence[ArrayLike] = PAIR,
    tied: Tied | None = None,
    relative: bool = False,
) -> Picture:
    """Draw order and chaos over a grid of var_w and var_b, with the critical line.

    Parameters
    ----------
    make, depth, inputs, tied, relative
        As for `sensitivity`.
    var_w, var_b
        The variances along the two axes.
    title
        Title of the picture.

    Returns
    -------
    Picture
        The picture.

    Raises
    ------
    DataError
        If var_w or var_b belong to no variance of the network.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> def make(depth):
    ...     return ns.zoo.mlp(depth, ns.erf)
    >>> ns.plots.phase_diagram(make, np.linspace(0.5, 4, 4), np.linspace(0, 1, 3), depth=6)
    <picture: Factor by which one more layer scales the squared distance between nearby inputs at depth 6...>
    """
    across, up = np.asarray(var_w, float), np.asarray(var_b, float)
    chi = sensitivity(
        make, across[None, :], up[:, None], depth=depth, inputs=inputs, tied=tied, relative=relative
    )
    what = "distance (relative to the variance)" if relative else "squared distance"

    logs = np.log10(np.clip(chi, 1e-3, 1e3))
    low, high = min(float(np.nanmin(logs)), -0.05), max(float(np.nanmax(logs)), 0.05)

    def draw(ax: Axes) -> str:
        from matplotlib.colors import TwoSlopeNorm

        norm = TwoSlopeNorm(0.0, low, high)  # both sides have their full colour
        image = ax.pcolormesh(across, up, logs, cmap="PuOr_r", norm=norm, shading="gouraud")
        if np.nanmin(logs) < 0 < np.nanmax(logs):
            line = ax.contour(across, up, logs, levels=[0.0], colors=INK, linewidths=2.0)
            ax.clabel(line, fmt={0.0: "critical"}, fontsize=8)
        ticks = [low, low / 2, 0.0, high / 2, high]
        colour_bar(image, ax, "chi").set_ticks(ticks, labels=[f"{10**tick:.2g}" for tick in ticks])
        ax.set(xlabel="var_w", ylabel="var_b", title=title)
        return (
            f"Factor by which one more layer scales the {what} between nearby inputs at depth {depth}: chi < "
            "1 is order (purple), chi > 1 is chaos (orange), and between them is the critical line."
        )

    return picture(draw, (5.4, 4.2))
