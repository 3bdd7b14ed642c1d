"""Curves: spectra, kernels over an angle, correlation maps, convergence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from netsor.build.network import Network
from netsor.errors import DataError
from netsor.limits import Result, kernel
from netsor.plots.maps import values_of
from netsor.plots.panels import distance_lines
from netsor.plots.style import COLOURS, INK, Picture, minus, picture, plain_axes
from netsor.verify import Verification

__all__ = ["angle", "convergence", "correlation_map", "spectrum"]

ROUNDING = 1e-15  # shares below it are rounding errors
LINES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 2, 1, 2)))  # a curve is told by its dashes, too


def spectrum(kernels: Result | np.ndarray | Mapping[str, Result | np.ndarray], title: str = "") -> Picture:
    """The eigenvalues of one or several kernel matrices, as shares of their sums.

    >>> import numpy as np, netsor as ns
    >>> x = np.random.default_rng(0).standard_normal((20, 3))
    >>> found = {f"depth {d}": ns.kernel(ns.zoo.mlp(d)).evaluate(x) for d in (1, 5)}
    >>> ns.plots.spectrum(found)
    <picture: Eigenvalues of the kernel matrix of 20 rows, as shares of their sum. ...>
    """
    named = kernels if isinstance(kernels, Mapping) else {"": kernels}
    found = {}
    for name, one in named.items():
        K = values_of(one)
        if K.shape[0] != K.shape[1]:
            raise DataError(f"{K.shape} is no square matrix", remedy="A spectrum is that of one set.")
        values = np.linalg.eigvalsh((K + K.T) / 2)[::-1]
        found[name] = values / values.sum()

    def draw(ax: Any) -> str:
        for k, (name, shares) in enumerate(found.items()):
            there = shares > ROUNDING
            ax.plot(
                1 + np.flatnonzero(there),
                shares[there],
                color=COLOURS[k % len(COLOURS)],
                linestyle=LINES[k % len(LINES)],
                marker="o",
                markersize=3,
                linewidth=1.3,
                label=name,
            )
        plain_axes(ax)
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="number of the eigenvalue",
            ylabel="share of the sum",
            title=title,
        )
        if len(found) > 1:
            ax.legend(fontsize=8, frameon=False)
        first = [f"{name}: {_count(s)}" if name else _count(s) for name, s in found.items()]
        rows = " and ".join(dict.fromkeys(str(len(s)) for s in found.values()))
        return (
            f"Eigenvalues of the kernel matrix of {rows} rows, as shares of their sum. "
            f"{'; '.join(first)} of them hold 99% of it."
        )

    return picture(draw, (5.2, 3.9))


def _count(shares: np.ndarray) -> str:
    return str(int(np.searchsorted(np.cumsum(shares), 0.99) + 1))


def angle(
    nets: Network | Mapping[str, Network], title: str = "", *, dimension: int = 2, points: int = 91
) -> Picture:
    """The kernel of two unit vectors over the angle between them, divided by its value at angle 0.

    >>> import netsor as ns
    >>> ns.plots.angle({"relu": ns.zoo.mlp(3), "erf": ns.zoo.mlp(3, ns.erf)})
    <picture: Kernel of two vectors of length sqrt(2) over their angle, as a share of its value at 0.>
    """
    angles = np.linspace(0, np.pi, points)
    found = {name: _over_angles(net, angles, dimension) for name, net in _named(nets).items()}

    def draw(ax: Any) -> str:
        _draw_curves(ax, np.degrees(angles), {name: K / K[0] for name, K in found.items()})
        ax.set(xlabel="angle (degrees)", ylabel="kernel, share of its value at 0", title=title)
        ax.set_xticks(range(0, 181, 30))
        length = f"sqrt({dimension})"
        return f"Kernel of two vectors of length {length} over their angle, as a share of its value at 0."

    return picture(draw, (5.2, 3.9))


def correlation_map(nets: Network | Mapping[str, Network], title: str = "", *, points: int = 81) -> Picture:
    """What becomes of a correlation: that of the outputs over that of the inputs.

    Above the diagonal a network brings inputs together, below it takes them apart.

    >>> import netsor as ns
    >>> ns.plots.correlation_map({f"depth {d}": ns.zoo.mlp(d, ns.erf, var_w=2.0) for d in (1, 4, 16)})
    <picture: Correlation of the outputs over that of the inputs. On the dashed line nothing changes.>
    """
    cosines = np.linspace(-1, 1, points)
    found = {name: _over_angles(net, np.arccos(cosines), 2) for name, net in _named(nets).items()}

    def draw(ax: Any) -> str:
        ax.plot([-1, 1], [-1, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        _draw_curves(ax, cosines, {name: K / K[-1] for name, K in found.items()})
        ax.set(
            xlabel="correlation of the inputs", ylabel="correlation of the outputs", title=title, xlim=(-1, 1)
        )
        ax.set_box_aspect(1)
        return "Correlation of the outputs over that of the inputs. On the dashed line nothing changes."

    return picture(draw, (5.2, 4.6))


def _over_angles(net: Network, angles: np.ndarray, dimension: int) -> np.ndarray:
    """K of a vector and one turned away from it, of length sqrt(dimension): coordinates are of size 1."""
    x = np.zeros((len(angles), dimension))
    x[:, 0], x[:, 1] = np.cos(angles), np.sin(angles)
    K = np.asarray(kernel(net)(np.sqrt(dimension) * np.eye(1, dimension), np.sqrt(dimension) * x))
    if K.shape != (1, len(angles)):
        raise DataError(
            f"the network `{net.name}` has {K.shape[0]} outputs for a vector",
            remedy="Curves over an angle are for networks that map a vector to one number.",
        )
    return K[0]


def _named(nets: Network | Mapping[str, Network]) -> Mapping[str, Network]:
    return {"": nets} if isinstance(nets, Network) else nets


def _draw_curves(ax: Any, x: np.ndarray, curves: Mapping[str, np.ndarray]) -> None:
    for k, (name, y) in enumerate(curves.items()):
        ax.plot(
            x,
            y,
            color=COLOURS[k % len(COLOURS)],
            linestyle=LINES[k % len(LINES)],
            linewidth=1.7,
            label=minus(name),
        )
    plain_axes(ax)
    if len(curves) > 1:
        ax.legend(fontsize=8, frameon=False)


def convergence(found: Verification | Mapping[str, Verification], title: str = "") -> Picture:
    """Distances of finite networks to the limit over the width, with a line of slope -1/2.

    >>> import numpy as np, netsor as ns
    >>> ns.plots.convergence(ns.verify(ns.zoo.mlp(2), np.eye(3), widths=(16, 64), samples=10))
    <picture: Relative Frobenius distance of kernels of finite networks to the limit: ...>
    """
    named = found if isinstance(found, Mapping) else {"networks": found}

    def draw(ax: Any) -> str:
        first = next(iter(named.values()))
        distance_lines(ax, first.widths, [(name, one.distances) for name, one in named.items()], title)
        slopes = "; ".join(
            f"{name if len(named) > 1 else 'slope'} {one.slope:.3f} ± {one.slope_error:.3f}"
            for name, one in named.items()
        )
        return (
            f"Relative Frobenius distance of kernels of finite networks to the limit: geometric means of "
            f"{first.distances.shape[1]} networks with two standard errors, shade for the middle half. "
            f"{'Slopes: ' if len(named) > 1 else ''}{slopes} (theory: -0.5)."
        )

    return picture(draw, (5.2, 4.0))
