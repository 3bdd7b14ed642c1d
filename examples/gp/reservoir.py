"""Infinite reservoir computing: a Gaussian process with an RNN's kernel forecasts the Mackey-Glass series.

    python examples/gp/reservoir.py --out docs/gp

An echo state network is a random recurrent network whose readout alone is trained, by ridge regression. At
infinite width that is the posterior mean of the network's Gaussian process. Both read the series and
forecast it at many horizons at once (one target column per horizon). Both are tuned on a validation part.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matrices import table
from scipy.linalg import cho_factor, cho_solve

import netsor as ns

NOISES = 10.0 ** np.arange(-9.0, -1.9, 1.0)  # in units of the mean variance of the states
RADII = (0.7, 0.9, 1.1)  # spectral radius of the finite reservoirs
RECURRENT = (0.5, 0.7, 0.9)  # var_w of the infinite one
INPUTS = (0.1, 1.0)  # variance of the input weights, for both
BIAS = 0.1


def mackey_glass(length: int, *, delay: float = 17.0, step: float = 0.1, skip: int = 500) -> np.ndarray:
    """x' = 0.2 x(t - delay) / (1 + x(t - delay)^10) - 0.1 x by Heun's rule, one value per unit of time."""
    lag, per = round(delay / step), round(1 / step)
    x = np.full(lag + 1 + (length + skip) * per, 1.2)

    def slope(now: float, past: float) -> float:
        return 0.2 * past / (1 + past**10) - 0.1 * now

    for t in range(lag, len(x) - 1):
        first = slope(x[t], x[t - lag])
        second = slope(x[t] + step * first, x[t + 1 - lag])
        x[t + 1] = x[t] + step * (first + second) / 2
    series = x[lag + skip * per :: per][:length]
    return (series - series.mean()) / series.std()


class Task:
    """Times at which forecasts are made, with the windows before them and the values after them."""

    def __init__(
        self, series: np.ndarray, window: int, horizons: Sequence[int], sizes: Sequence[int]
    ) -> None:
        self.series, self.window = series, window
        start = 200  # a finite reservoir forgets where it began
        self.times = np.arange(start, start + sum(sizes))
        self.y = np.stack([series[self.times + h] for h in horizons], axis=1)
        stops = np.cumsum(sizes)
        self.train, self.valid, self.test = (
            np.arange(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)
        )

    def windows(self) -> np.ndarray:
        """The last values up to each time: (times, window, 1)."""
        reach = np.arange(-self.window + 1, 1)
        return self.series[self.times[:, None] + reach][..., None]


def infinite(task: Task, var_w: float, var_u: float) -> np.ndarray:
    """The kernel of an RNN's last state over all times."""
    cell, v = ns.RNNCell(ns.erf, var_w, var_u, BIAS), ns.Matrix(1.0, rows=1, name="v")

    @ns.network
    def reservoir(tokens: Any) -> Any:
        state: Any = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    return ns.kernel(reservoir)(task.windows())


def finite(task: Task, width: int, radius: float, var_u: float, seed: int) -> np.ndarray:
    """The kernel of an echo state network: products of its states as it runs along the series."""
    rng = np.random.default_rng([seed, width])
    W = rng.standard_normal((width, width))
    W *= radius / np.abs(np.linalg.eigvals(W)).max()
    U, b = (np.sqrt(var) * rng.standard_normal(width) for var in (var_u, BIAS))
    state, states = np.zeros(width), np.empty((len(task.times), width))
    for t in range(task.times[-1] + 1):
        state = np.tanh(W @ state + U * task.series[t] + b)
        if t >= task.times[0]:
            states[t - task.times[0]] = state
    return states @ states.T / width


def forecast(
    matrix: np.ndarray, y: np.ndarray, rows: np.ndarray, noise: float, new: np.ndarray
) -> np.ndarray:
    """Posterior mean (ridge regression)."""
    block = matrix[np.ix_(rows, rows)] + noise * np.mean(np.diagonal(matrix)) * np.eye(len(rows))
    return matrix[np.ix_(new, rows)] @ cho_solve(cho_factor(block), y[rows])


def errors(task: Task, matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Normalised root mean squared errors on the test part, by horizon; tuned on the validation part."""
    options = [(matrix, noise) for matrix in matrices for noise in NOISES]
    losses = []
    for matrix, noise in options:
        gap = forecast(matrix, task.y, task.train, noise, task.valid) - task.y[task.valid]
        losses.append(np.mean(np.log(np.mean(gap**2, axis=0))))  # every horizon counts alike
    matrix, noise = options[int(np.argmin(losses))]
    known = np.concatenate([task.train, task.valid])
    gap = forecast(matrix, task.y, known, noise, task.test) - task.y[task.test]
    return np.sqrt(np.mean(gap**2, axis=0))


def picture(horizons: Sequence[int], limit: np.ndarray, finites: dict[int, np.ndarray], folder: Path) -> None:
    """Error against horizon, for the infinite reservoir and for finite ones."""
    from netsor.plots import style

    def draw(ax: Any) -> str:
        for k, (width, runs) in enumerate(finites.items()):
            logs, colour = np.log(runs), style.COLOURS[k + 1]
            mean, error = logs.mean(0), logs.std(0, ddof=1) / np.sqrt(len(runs))
            label = f"echo state, width {width}"
            ax.plot(horizons, np.exp(mean), "o-", color=colour, markersize=4, label=label)
            low, high = np.exp(mean - 2 * error), np.exp(mean + 2 * error)
            ax.fill_between(horizons, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(
            horizons, limit, "s-", color=style.COLOURS[0], linewidth=2, label="infinite width: RNN kernel"
        )
        ax.set(xscale="log", yscale="log", xlabel="horizon", ylabel="normalised RMSE of the forecast")
        ax.set_xticks(horizons, [str(h) for h in horizons])
        ax.minorticks_off()
        style.plain_axes(ax)
        ax.set_title("Mackey-Glass series, delay 17")
        ax.legend(frameon=False, fontsize=8)
        return "Geometric means of the forecast errors of random reservoirs, with two standard errors."

    drawn = style.picture(draw, (6.4, 4.0))
    for suffix in (".png", ".pdf"):
        print(f"wrote {drawn.save(folder / f'reservoir{suffix}').name}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[50, 200, 800])
    parser.add_argument("--seeds", type=int, default=8, help="finite reservoirs of each width")
    parser.add_argument("--window", type=int, default=40, help="values that the infinite reservoir reads")
    parser.add_argument("--sizes", type=int, nargs=3, default=[400, 100, 400], help="train, validate, test")
    parser.add_argument("--out", type=Path, default=None, help="folder for the picture")
    args = parser.parse_args(arguments)
    horizons = [1, 2, 5, 10, 20, 40, 84]
    task = Task(mackey_glass(300 + sum(args.sizes)), args.window, horizons, args.sizes)
    limit = errors(task, [infinite(task, w, u) for w in RECURRENT for u in INPUTS])
    rows = [["reservoir", *(f"h = {h}" for h in horizons)]]
    finites = {}
    for width in args.widths:
        runs = [
            errors(task, [finite(task, width, radius, u, seed) for radius in RADII for u in INPUTS])
            for seed in range(args.seeds)
        ]
        finites[width] = np.array(runs)
        spread = finites[width].std(0, ddof=1) / np.sqrt(args.seeds)
        cells = [f"{m:.2g} +- {s:.1g}" for m, s in zip(finites[width].mean(0), spread, strict=True)]
        rows.append([f"echo state, width {width}", *cells])
    rows.append(["infinite width", *(f"{value:.2g}" for value in limit)])
    train, valid, test = args.sizes
    print(f"Normalised RMSE; {train} + {valid} points to learn from, {test} to test, {args.seeds} seeds\n")
    print(table(rows))
    if args.out:
        picture(horizons, limit, finites, args.out)


if __name__ == "__main__":
    main()
