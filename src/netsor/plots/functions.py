"""Functions: draws from priors and posteriors, and an ensemble in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from netsor.errors import DataError
from netsor.gp.regression import GP, sample
from netsor.gp.training import Trained
from netsor.limits import KernelFn
from netsor.plots.style import COLOURS, INK, RED, Picture, picture, plain_axes

__all__ = ["draw_training", "samples", "training", "training_numbers"]

TIMES = (0.0, 1.0, 10.0, 100.0, inf)
VISIBLE = 1e-10  # of the largest loss; below are the rounding errors of a fit without noise


def samples(model: KernelFn | GP, x: Any, title: str = "", *, count: int = 5, seed: int = 0) -> Picture:
    """Functions drawn from the prior (of a kernel) or the posterior (of a fitted model).

    x  inputs of one number each: a band of two deviations and the functions; of two numbers each, on a grid
       (rows, columns, 2): images of the functions

    >>> import numpy as np, netsor as ns
    >>> ns.plots.samples(ns.kernel(ns.zoo.mlp(3, ns.erf, var_w=4.0)), np.linspace(-2, 2, 40))
    <picture: 5 functions drawn from the prior: networks of infinite width at random. Shade: two deviations.>
    """
    places = np.asarray(x, float)
    if places.ndim == 3 and places.shape[2] == 2:
        return _images(model, places, title, min(count, 4), seed)
    line = places.reshape(len(places), -1)
    if line.shape[1] != 1:
        raise DataError(
            f"inputs of shape {places.shape}",
            remedy="Give numbers (n,), or a grid of points (rows, columns, 2).",
        )
    line = line[np.argsort(line[:, 0])]
    drawn, mean, std, told = _drawn(model, line, count, seed)

    def draw(ax: Any) -> str:
        ax.fill_between(line[:, 0], mean - 2 * std, mean + 2 * std, color=COLOURS[4], alpha=0.25, linewidth=0)
        for k, one in enumerate(drawn):
            ax.plot(line[:, 0], one, color=COLOURS[k % len(COLOURS)], linewidth=1.1, alpha=0.9)
        if isinstance(model, GP):
            ax.plot(line[:, 0], mean, color=INK, linewidth=2.0, label="mean")
            ax.plot(np.ravel(model.x), model.y[:, 0], "o", color=INK, markersize=4.5, zorder=5, label="data")
            ax.legend(fontsize=8, frameon=False)
        plain_axes(ax)
        ax.set(xlabel="input", ylabel="output", title=title)
        return f"{told} Shade: two deviations."

    return picture(draw, (5.6, 3.9))


def _drawn(model: KernelFn | GP, x: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Functions, mean and deviation at the inputs, and what they are."""
    if isinstance(model, GP):
        if not model.flat:
            raise DataError("the model has several targets", remedy="Fit it to one column, which is drawn.")
        found = model.predict(x)
        told: Any = f"{count} functions drawn from the posterior given {len(model.y)} data (dots)."
        return model.sample(x, count, seed), found.mean, found.std, told
    told = f"{count} functions drawn from the prior: networks of infinite width at random."
    return sample(model, x, count, seed), model.mean(x), np.sqrt(model.diag(x)), told


def _images(model: KernelFn | GP, grid: np.ndarray, title: str, count: int, seed: int) -> Picture:
    drawn, _, _, told = _drawn(model, grid.reshape(-1, 2), count, seed)
    images = drawn.reshape(count, *grid.shape[:2])
    reach = np.abs(images).max()
    (top, left), (bottom, right) = grid[0, 0, ::-1], grid[-1, -1, ::-1]

    def draw(*axes: Any) -> str:
        shown: Any = None
        for k, (ax, image) in enumerate(zip(axes, images, strict=True)):
            shown = ax.imshow(
                image,
                cmap="PuOr_r",
                vmin=-reach,
                vmax=reach,
                origin="lower",
                extent=(left, right, top, bottom),
                interpolation="bilinear",
            )
            ax.set(xlabel="first input", title=title if not k else "")
            if not k:
                ax.set_ylabel("second input")
        bar = axes[0].figure.colorbar(shown, ax=axes, fraction=0.02, pad=0.02, shrink=0.85)
        bar.set_label("output", fontsize=8)
        return str(told)

    return picture(draw, (2.5 * count + 0.8, 3.3), columns=count)


def training(model: Trained, x: Any, title: str = "", *, times: Sequence[float] = TIMES) -> Picture:
    """An ensemble in training: its predictions at new inputs over time, and its loss.

    >>> import numpy as np, netsor as ns
    >>> x = np.linspace(-1, 1, 6)[:, None]
    >>> model = ns.gp.train(ns.zoo.mlp(2), x, np.sin(3 * x[:, 0]))
    >>> ns.plots.training(model, np.linspace(-1.5, 1.5, 30)[:, None])
    <picture: The ensemble of infinitely wide networks in training on 6 targets: ...>
    """
    return draw_training(training_numbers(model, x, times), title)


def training_numbers(model: Trained, x: Any, times: Sequence[float]) -> dict[str, Any]:
    """What a picture of training is drawn from: predictions at given times, and the loss over time."""
    found = [model.predict(x, float(time)) for time in times]
    curve = np.geomspace(1e-2, 1e5, 60) / model.rate
    return {
        "times": np.asarray(times, float),
        "mean": np.array([p.mean for p in found]),
        "std": np.array([p.std for p in found]),
        "x": np.array([np.asarray(one, float) for one in model.x]),
        "y": model.y[:, 0] if model.flat else model.y,
        "new": np.asarray(x, float),
        "loss": model.loss(times),
        "curve_times": curve,
        "curve_loss": model.loss(curve),
    }


def draw_training(stored: Mapping[str, np.ndarray], title: str = "") -> Picture:
    """The picture of `training_numbers`; predictions are drawn if inputs have one number each."""
    new = np.asarray(stored["new"], float).reshape(len(stored["new"]), -1)
    line = new.shape[1] == 1 and stored["mean"].ndim == 2

    def draw(*axes: Any) -> str:
        import matplotlib

        colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(stored["times"])))
        if line:
            _predictions(axes[0], stored, new[:, 0], colours)
            axes[0].set(xlabel="input", ylabel="output", title=title)
        ax = axes[-1]
        ax.plot(stored["curve_times"], stored["curve_loss"], color=INK, linewidth=1.5)
        for time, loss, colour in zip(stored["times"], stored["loss"], colours, strict=True):
            if 0 < time < inf:
                ax.plot([time], [loss], "o", color=colour, markersize=6)
        plain_axes(ax)
        ax.set_ylim(bottom=VISIBLE * np.max(stored["curve_loss"]))
        name = "loss" if line else title
        ax.set(xscale="log", yscale="log", xlabel="time", ylabel="expected loss", title=name)
        return (
            f"The ensemble of infinitely wide networks in training on {np.size(stored['y'])} targets: mean "
            "at several times, band of two deviations at the first and the last, and the expected loss over "
            "time (of gradient flow, in units of 1 / rate)."
        )

    return picture(draw, (4.6 + 4.6 * line, 3.9), columns=1 + line)


def _predictions(ax: Any, stored: Mapping[str, np.ndarray], x: np.ndarray, colours: Any) -> None:
    order = np.argsort(x)
    rows = zip(stored["times"], stored["mean"][:, order], stored["std"][:, order], colours, strict=True)
    for k, (time, mean, std, colour) in enumerate(rows):
        label = "t = ∞" if time == inf else f"t = {time:g}"
        ax.plot(x[order], mean, color=colour, linewidth=1.5, label=label)
        if k in (0, len(stored["times"]) - 1):
            ax.fill_between(x[order], mean - 2 * std, mean + 2 * std, color=colour, alpha=0.15, linewidth=0)
    ax.plot(np.ravel(stored["x"]), np.ravel(stored["y"]), "o", color=RED, markersize=4.5, zorder=5)
    plain_axes(ax)
    ax.legend(fontsize=8, frameon=False)
