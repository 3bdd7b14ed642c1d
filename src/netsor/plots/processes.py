"""Functions: draws from priors and posteriors, and an ensemble in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from netsor.errors import DataError
from netsor.gp.regression import GP, sample
from netsor.gp.training import Trained
from netsor.limits import KernelFn
from netsor.plots.style import COLOURS, INK, RED, Axes, Picture, colour_bar, picture, plain_axes


def samples(model: KernelFn | GP, x: ArrayLike, title: str = "", *, count: int = 5, seed: int = 0) -> Picture:
    """Draw functions from the prior (a kernel) or the posterior (a fitted model).

    Parameters
    ----------
    model
        The kernel, or the Gaussian process that is fitted to data.
    x
        Inputs of one number each, for curves in a band of two deviations; or a grid of points of shape
        (rows, columns, 2), for images.
    title
        Title of the picture.
    count
        Number of functions; at most four images are drawn.
    seed
        Seed of the draws.

    Returns
    -------
    Picture
        The picture.

    Raises
    ------
    DataError
        If the inputs have another shape, or if the model has several targets.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> ns.plots.samples(ns.kernel(ns.zoo.mlp(3, ns.erf, var_w=4.0)), np.linspace(-2, 2, 40))
    <picture: 5 functions drawn from the prior: networks of infinite width at random. Shade: two deviations.>
    """
    points = np.asarray(x, float)
    on_grid = points.ndim == 3 and points.shape[2] == 2
    if not on_grid and points.size != len(points):
        raise DataError(
            f"inputs of shape {points.shape}",
            remedy="Give numbers (n,), or a grid of points (rows, columns, 2).",
        )
    inputs = points.reshape(-1, 2) if on_grid else np.sort(points.reshape(-1, 1), axis=0)
    count = min(count, 4) if on_grid else count
    if isinstance(model, GP):
        if not model.flat:
            raise DataError("the model has several targets", remedy="Fit it to one column, which is drawn.")
        functions, prediction = model.sample(inputs, count, seed), model.predict(inputs)
        mean, std = prediction.mean, prediction.std
        caption = f"{count} functions drawn from the posterior given {len(model.y)} data (dots)."
    else:
        functions = sample(model, inputs, count, seed)
        mean, std = model.mean(inputs), np.sqrt(model.diag(inputs))
        caption = f"{count} functions drawn from the prior: networks of infinite width at random."
    if on_grid:
        return _images(functions.reshape(count, *points.shape[:2]), points, title, caption)

    def draw(ax: Axes) -> str:
        # Two deviations hold 95% of the functions at each input.
        ax.fill_between(
            inputs[:, 0], mean - 2 * std, mean + 2 * std, color=COLOURS[4], alpha=0.25, linewidth=0
        )
        for k, values in enumerate(functions):
            ax.plot(inputs[:, 0], values, color=COLOURS[k % len(COLOURS)], linewidth=1.1, alpha=0.9)
        if isinstance(model, GP):
            ax.plot(inputs[:, 0], mean, color=INK, linewidth=2.0, label="mean")
            ax.plot(np.ravel(model.x), model.y[:, 0], "o", color=INK, markersize=4.5, zorder=5, label="data")
            ax.legend(fontsize=8, frameon=False)
        plain_axes(ax)
        ax.set(xlabel="input", ylabel="output", title=title)
        return f"{caption} Shade: two deviations."

    return picture(draw, (5.6, 3.9))


def _images(images: np.ndarray, grid: np.ndarray, title: str, caption: str) -> Picture:
    """Draw functions of two inputs side by side, with one scale."""
    reach = np.abs(images).max()
    (top, left), (bottom, right) = grid[0, 0, ::-1], grid[-1, -1, ::-1]
    looks = {"cmap": "PuOr_r", "interpolation": "bilinear", "vmin": -reach, "vmax": reach}

    def draw(*axes: Axes) -> str:
        for ax, image in zip(axes, images, strict=True):
            ax.imshow(image, origin="lower", extent=(left, right, top, bottom), **looks)
            ax.set_xlabel("first input")
        axes[0].set(ylabel="second input", title=title)
        colour_bar(axes[0].images[0], list(axes), "output", fraction=0.02, pad=0.02, shrink=0.85)
        return caption

    return picture(draw, (2.5 * len(images) + 0.8, 3.3), "ABCD"[: len(images)])


def training(
    model: Trained, x: ArrayLike, title: str = "", *, times: Sequence[float] = (0.0, 1.0, 10.0, 100.0, inf)
) -> Picture:
    """Draw an ensemble in training: its predictions at new inputs at several times, and its loss over time.

    Parameters
    ----------
    model
        What `ns.gp.train` returns.
    x
        New inputs. Predictions are drawn if each has one number.
    title
        Title of the picture.
    times
        Times of the predictions, in units of 1 / rate.

    Returns
    -------
    Picture
        The picture.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> x = np.linspace(-1, 1, 6)[:, None]
    >>> model = ns.gp.train(ns.zoo.mlp(2), x, np.sin(3 * x[:, 0]))
    >>> ns.plots.training(model, np.linspace(-1.5, 1.5, 30)[:, None])
    <picture: The ensemble of infinitely wide networks in training on 6 targets: ...>
    """
    return draw_training(training_numbers(model, x, times), title)


def training_numbers(model: Trained, x: ArrayLike, times: Sequence[float]) -> dict[str, np.ndarray]:
    """What a picture of training shows: predictions at given times, and the loss over time."""
    predictions = [model.predict(x, float(time)) for time in times]
    curve = np.geomspace(1e-2, 1e5, 60) / model.rate
    return {
        "times": np.asarray(times, float),
        "mean": np.array([p.mean for p in predictions]),
        "std": np.array([p.std for p in predictions]),
        "x": np.array([np.asarray(given, float) for given in model.x]),
        "y": model.y[:, 0] if model.flat else model.y,
        "new": np.asarray(x, float),
        "loss": model.loss(times),
        "curve_times": curve,
        "curve_loss": model.loss(curve),
    }


def draw_training(numbers: Mapping[str, np.ndarray], title: str = "") -> Picture:
    """The picture of `training_numbers`."""
    new = np.asarray(numbers["new"], float).reshape(len(numbers["new"]), -1)
    on_line = new.shape[1] == 1 and numbers["mean"].ndim == 2

    def draw(*axes: Axes) -> str:
        import matplotlib

        colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(numbers["times"])))
        if on_line:
            _draw_predictions(axes[0], numbers, new[:, 0], colours)
            axes[0].set(xlabel="input", ylabel="output", title=title)
        ax = axes[-1]
        ax.plot(numbers["curve_times"], numbers["curve_loss"], color=INK, linewidth=1.5)
        for time, loss, colour in zip(numbers["times"], numbers["loss"], colours, strict=True):
            if 0 < time < inf:
                ax.plot([time], [loss], "o", color=colour, markersize=6)
        plain_axes(ax)
        # Below 1e-10 of the largest loss are the rounding errors of a fit without noise.
        ax.set_ylim(bottom=1e-10 * np.max(numbers["curve_loss"]))
        ax.set(xscale="log", yscale="log", xlabel="time", ylabel="expected loss")
        ax.set_title("loss" if on_line else title)
        return (
            f"The ensemble of infinitely wide networks in training on {np.size(numbers['y'])} targets: mean "
            "at several times, band of two deviations at the first and the last, and the expected loss over "
            "time (of gradient flow, in units of 1 / rate)."
        )

    return picture(draw, (9.2, 3.9) if on_line else (4.6, 3.9), "AB" if on_line else "A")


def _draw_predictions(
    ax: Axes, numbers: Mapping[str, np.ndarray], x: np.ndarray, colours: np.ndarray
) -> None:
    order = np.argsort(x)
    rows = zip(numbers["times"], numbers["mean"][:, order], numbers["std"][:, order], colours, strict=True)
    for k, (time, mean, std, colour) in enumerate(rows):
        label = "t = ∞" if time == inf else f"t = {time:g}"
        ax.plot(x[order], mean, color=colour, linewidth=1.5, label=label)
        if k in (0, len(numbers["times"]) - 1):
            ax.fill_between(x[order], mean - 2 * std, mean + 2 * std, color=colour, alpha=0.15, linewidth=0)
    ax.plot(np.ravel(numbers["x"]), np.ravel(numbers["y"]), "o", color=RED, markersize=4.5, zorder=5)
    plain_axes(ax)
    ax.legend(fontsize=8, frameon=False)
