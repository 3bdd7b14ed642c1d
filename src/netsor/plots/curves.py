"""Curves: spectra, kernels over an angle, correlation maps, convergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from netsor.build.network import Network
from netsor.errors import DataError
from netsor.limits import Result, kernel
from netsor.plots.maps import eigenvalue_fractions, values_of
from netsor.plots.style import COLOURS, INK, Axes, Picture, minus, picture, plain_axes
from netsor.verify import Verification, log_means

T = TypeVar("T")


def spectrum(kernels: Result | ArrayLike | Mapping[str, Result | ArrayLike], title: str = "") -> Picture:
    """Draw the eigenvalues of kernel matrices, as fractions of their sums.

    Parameters
    ----------
    kernels
        One kernel, or several by name.
    title
        Title of the picture.

    Returns
    -------
    Picture
        The picture; its caption says how many eigenvalues make up 99% of the sum.

    Raises
    ------
    DataError
        If a kernel is not a square matrix of finite numbers.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> x = np.random.default_rng(0).standard_normal((20, 3))
    >>> kernels = {f"depth {d}": ns.kernel(ns.zoo.mlp(d)).evaluate(x) for d in (1, 5)}
    >>> ns.plots.spectrum(kernels)
    <picture: Eigenvalues of the kernel matrix of 20 rows, as fractions of their sum. ...>
    """
    matrices = {name: values_of(K) for name, K in _named(kernels).items()}
    fractions = {name: eigenvalue_fractions(K) for name, K in matrices.items()}
    largest = {name: int(np.searchsorted(np.cumsum(f), 0.99) + 1) for name, f in fractions.items()}
    counts = "; ".join(f"{name}: {count}" if name else str(count) for name, count in largest.items())
    rows = " and ".join(dict.fromkeys(str(len(K)) for K in matrices.values()))

    def draw(ax: Axes) -> str:
        numbered = {name: (np.arange(1, len(f) + 1), f) for name, f in fractions.items()}
        _draw_curves(ax, numbered, linewidth=1.3, marker="o", markersize=3)
        ax.set(xscale="log", yscale="log", title=title)
        ax.set(xlabel="number of the eigenvalue", ylabel="fraction of the sum")
        return (
            f"Eigenvalues of the kernel matrix of {rows} rows, as fractions of their sum. "
            f"{counts} of them hold 99% of it."
        )

    return picture(draw, (5.2, 3.9))


def angle(
    nets: Network | Mapping[str, Network], title: str = "", *, dimension: int = 2, points: int = 91
) -> Picture:
    """Draw the kernel of two vectors over the angle between them, divided by its value at angle 0.

    Parameters
    ----------
    nets
        A network that maps a vector to one number, or several by name.
    title
        Title of the picture.
    dimension
        Dimension of the vectors, which have length sqrt(dimension).
    points
        Number of angles.

    Returns
    -------
    Picture
        The picture.

    Raises
    ------
    DataError
        If a network has several outputs for a vector.

    Examples
    --------
    >>> import netsor as ns
    >>> ns.plots.angle({"relu": ns.zoo.mlp(3), "erf": ns.zoo.mlp(3, ns.erf)})
    <picture: Kernel of two vectors of length sqrt(2) over their angle, as a fraction of its value at 0.>
    """
    angles = np.linspace(0, np.pi, points)
    kernels = {name: _over_angles(net, angles, dimension) for name, net in _named(nets).items()}

    def draw(ax: Axes) -> str:
        _draw_curves(ax, {name: (np.degrees(angles), K / K[0]) for name, K in kernels.items()})
        ax.set(xlabel="angle (degrees)", ylabel="kernel, fraction of its value at 0", title=title)
        ax.set_xticks(range(0, 181, 30))
        length = f"sqrt({dimension})"
        return f"Kernel of two vectors of length {length} over their angle, as a fraction of its value at 0."

    return picture(draw, (5.2, 3.9))


def correlation_map(nets: Network | Mapping[str, Network], title: str = "", *, points: int = 81) -> Picture:
    """Draw the correlation of two outputs over that of the inputs.

    Above the diagonal a network brings inputs together, below it takes them apart.

    Parameters
    ----------
    nets, title
        As for `angle`.
    points
        Number of correlations.

    Returns
    -------
    Picture
        The picture.

    Raises
    ------
    DataError
        If a network has several outputs for a vector.

    Examples
    --------
    >>> import netsor as ns
    >>> ns.plots.correlation_map({f"depth {d}": ns.zoo.mlp(d, ns.erf, var_w=2.0) for d in (1, 4, 16)})
    <picture: Correlation of the outputs over that of the inputs. On the dashed line nothing changes.>
    """
    cosines = np.linspace(-1, 1, points)
    kernels = {name: _over_angles(net, np.arccos(cosines), 2) for name, net in _named(nets).items()}

    def draw(ax: Axes) -> str:
        ax.plot([-1, 1], [-1, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        _draw_curves(ax, {name: (cosines, K / K[-1]) for name, K in kernels.items()})
        ax.set(xlabel="correlation of the inputs", ylabel="correlation of the outputs", xlim=(-1, 1))
        ax.set_title(title)
        ax.set_box_aspect(1)
        return "Correlation of the outputs over that of the inputs. On the dashed line nothing changes."

    return picture(draw, (5.2, 4.6))


def convergence(verifications: Verification | Mapping[str, Verification], title: str = "") -> Picture:
    """Draw the distances of finite networks to the limit over the width, with a line of slope -1/2.

    Parameters
    ----------
    verifications
        What `ns.verify` returns, or several by name.
    title
        Title of the picture.

    Returns
    -------
    Picture
        The picture; its caption has the fitted slopes.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> ns.plots.convergence(ns.verify(ns.zoo.mlp(2), np.eye(3), widths=(16, 64), samples=10))
    <picture: Relative Frobenius distance of kernels of finite networks to the limit: ...>
    """
    named = _named(verifications, "networks")
    first = next(iter(named.values()))
    fits = {name: f"{v.slope:.3f} ± {v.slope_error:.3f}" for name, v in named.items()}
    several = "Slopes: " + "; ".join(f"{name} {fit}" for name, fit in fits.items())
    slopes = several if len(fits) > 1 else f"slope {fits.popitem()[1]}"

    def draw(ax: Axes) -> str:
        distance_lines(ax, first.widths, [(name, v.distances) for name, v in named.items()], title)
        return (
            f"Relative Frobenius distance of kernels of finite networks to the limit: geometric means of "
            f"{first.distances.shape[1]} networks with two standard errors, shade for the middle half. "
            f"{slopes} (theory: -0.5)."
        )

    return picture(draw, (5.2, 4.0))


def _over_angles(net: Network, angles: np.ndarray, dimension: int) -> np.ndarray:
    """K of a vector of length sqrt(dimension), whose coordinates are of size 1, and the vector turned."""
    x = np.zeros((len(angles), dimension))
    x[:, 0], x[:, 1] = np.cos(angles), np.sin(angles)
    K = np.asarray(kernel(net)(np.sqrt(dimension) * np.eye(1, dimension), np.sqrt(dimension) * x))
    if K.shape != (1, len(angles)):
        raise DataError(
            f"the network `{net.name}` has {K.shape[0]} outputs for a vector",
            remedy="Curves over an angle are for networks that map a vector to one number.",
        )
    return K[0]


def _named(given: T | Mapping[str, T], name: str = "") -> Mapping[str, T]:
    """Several things by name, or one under a name that a legend does not need."""
    return given if isinstance(given, Mapping) else {name: given}


def _draw_curves(ax: Axes, curves: Mapping[str, tuple[np.ndarray, np.ndarray]], **looks: Any) -> None:
    """Draw curves (x, y) by name, with a legend if there are several."""
    dashes = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 2, 1, 2)))
    for k, (name, (x, y)) in enumerate(curves.items()):
        line = {"linewidth": 1.7, "color": COLOURS[k % len(COLOURS)], "linestyle": dashes[k % len(dashes)]}
        ax.plot(x, y, label=minus(name), **{**line, **looks})
    plain_axes(ax)
    if len(curves) > 1:
        ax.legend(fontsize=8, frameon=False)


def distance_lines(
    ax: Axes,
    widths: Sequence[int],
    lines: Sequence[tuple[str, np.ndarray]],
    title: str = "",
    *,
    beside: bool = False,
) -> None:
    """Draw geometric means of distances (widths, samples) with two standard errors, and a slope of -1/2.

    A shade holds the middle half of the distances, if there are few lines; the legend stands `beside` many.
    """
    from matplotlib.ticker import FixedLocator

    means = [np.exp(log_means(distances)[0]) for _, distances in lines]
    for k, ((label, distances), mean) in enumerate(zip(lines, means, strict=True)):
        colour, marker = COLOURS[k % len(COLOURS)], "osD^vP*Xdph<"[k % 12]
        if len(lines) <= 6:  # more shades than that hide each other
            low, high = np.quantile(distances, (0.25, 0.75), axis=1)
            ax.fill_between(widths, low, high, color=colour, alpha=0.12, linewidth=0)
        factor = np.exp(2 * log_means(distances)[1])
        looks = {"color": colour, "linewidth": 1.4, "elinewidth": 0.9, "markersize": 4.5, "marker": marker}
        ax.errorbar(widths, mean, mean * [1 - 1 / factor, factor - 1], label=minus(label), **looks)
    # A dashed line of slope -1/2 below the others.
    slope = 0.62 * min(mean[-1] for mean in means) * np.sqrt(widths[-1] / np.asarray(widths, float))
    ax.plot(
        widths, slope, color=INK, linestyle=(0, (4, 3)), linewidth=1.0, label=r"$1/\sqrt{\mathrm{width}}$"
    )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(FixedLocator([m * 10.0**e for e in range(-5, 2) for m in (1, 2, 5)]))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xticks(widths, [str(w) for w in widths])  # powers of two read better than 10^1.5
    ax.minorticks_off()
    plain_axes(ax)
    ax.set(xlabel="width", ylabel="relative Frobenius distance to the limit", title=title)
    legend = ax.legend(fontsize=8, frameon=not beside, framealpha=0.9, edgecolor="none")
    if beside:
        legend.set_loc("center left")
        legend.set_bbox_to_anchor((1.01, 0.5))
