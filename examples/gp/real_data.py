"""Network kernels and the usual baselines on data that ships with scikit-learn: a table and a picture.

    python examples/gp/real_data.py --out docs/gp

Every kernel is a family over one shape parameter and is tuned by the same rule (see matrices.py), on the
training part of each split. Numbers are means over splits with their standard errors. The splits share their
rows, so the errors do not say how other data from the same source would differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matrices import choose, matern, radial, rbf, splits, summary, table
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

import netsor as ns

LOOKED_AT = 360  # digits on which the architectures and their readouts were chosen; they are left out
SCALES = (0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
VARIANCES = (0.01, 0.1, 1.0)
Make = Callable[[np.ndarray], dict[str, list[np.ndarray]]]  # training rows -> families of matrices
Cuts = Sequence[tuple[np.ndarray, np.ndarray]]
NAMES = {"diabetes": load_diabetes, "breast cancer": load_breast_cancer, "wine": load_wine}


def mean_state(cell: Any) -> ns.Network:
    """A recurrent network that reads out the mean of its states."""
    v = ns.Matrix(1.0, rows=1, name="v")

    @ns.network
    def recurrent(tokens: Any) -> Any:
        state, total = 0, 0
        for token in tokens:
            state = cell(state, token)
            total = total + state / len(tokens)
        return v @ total

    return recurrent


def family(network: Any, x: np.ndarray, **options: Any) -> list[np.ndarray]:
    """The kernel matrices of a network for several variances of its biases (its shape parameter)."""
    return [ns.kernel(network(var), **options)(x) for var in VARIANCES]


def tabular(x: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Kernels on vectors."""
    return {
        "RBF": radial(x, rbf, SCALES),
        "Matern 3/2": radial(x, matern, SCALES),
        "MLP, relu, depth 1": family(lambda b: ns.zoo.mlp(1, var_w=2.0, var_b=b), x),
        "MLP, relu, depth 3": family(lambda b: ns.zoo.mlp(3, var_w=2.0, var_b=b), x),
        "MLP, erf, depth 3": family(lambda b: ns.zoo.mlp(3, ns.erf, var_w=2.0, var_b=b), x),
    }


def standardised(x: np.ndarray) -> Make:
    """Kernels after features are brought to mean 0 and variance 1, as measured on the training rows."""
    return lambda train: tabular(StandardScaler().fit(x[train]).transform(x))


def pictures(images: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Kernels on images: as vectors, as rows of pixels in time, as planes."""
    flat, pairs = images.reshape(len(images), -1), images.reshape(len(images), 4, 16)
    return tabular(flat) | {
        "RNN over rows, erf": family(lambda b: mean_state(ns.RNNCell(ns.erf, 2.0, 2.0, b)), images),
        "GRU over pairs of rows": family(
            lambda b: mean_state(ns.GRUCell(var_u=4.0, var_b=b)), pairs, points=2**9, repeats=4
        ),
        "CNN, relu, depth 2, global pooling": family(
            lambda b: ns.zoo.cnn(2, var_w=2.0, var_b=b, padding="valid"), images[..., None]
        ),
    }


def accuracy(make: Make, labels: np.ndarray, cuts: Cuts) -> dict[str, np.ndarray]:
    """Share of right labels in each split, by regression on centred one-hot labels."""
    classes = np.unique(labels)
    y = (labels[:, None] == classes) - 1 / len(classes)
    found: dict[str, list[float]] = {}
    for train, test in cuts:
        for name, members in make(train).items():
            guess = classes[choose(members, y, train, test).mean.argmax(1)]
            found.setdefault(name, []).append(float(np.mean(guess == labels[test])))
    return {name: np.array(values) for name, values in found.items()}


def regression(make: Make, target: np.ndarray, cuts: Cuts) -> tuple[dict[str, np.ndarray], ...]:
    """Root mean squared error in units of the target's deviation, and log predictive density per point."""
    errors: dict[str, list[float]] = {}
    densities: dict[str, list[float]] = {}
    for train, test in cuts:
        y = ((target - target[train].mean()) / target[train].std())[:, None]
        for name, members in make(train).items():
            found = choose(members, y, train, test)
            gap = y[test, 0] - found.mean[:, 0]
            density = -0.5 * np.mean(gap**2 / found.variance + np.log(2 * np.pi * found.variance))
            errors.setdefault(name, []).append(float(np.sqrt(np.mean(gap**2))))
            densities.setdefault(name, []).append(float(density))
    return tuple({name: np.array(values) for name, values in part.items()} for part in (errors, densities))


def unseen(labels: np.ndarray, count: int) -> np.ndarray:
    """Random rows, the same number of each class, none of those that the networks were chosen on."""
    order, classes = np.random.default_rng(0).permutation(len(labels))[LOOKED_AT:], np.unique(labels)
    return np.concatenate([order[labels[order] == c][: count // len(classes)] for c in classes])


def show(title: str, results: dict[str, dict[str, np.ndarray]]) -> None:
    """Print a table with one column per measure; the last is the difference to RBF, split by split."""
    measure, first = next(iter(results.items()))
    rows = [["kernel", *results, f"{measure} minus that of RBF"]]
    for name, values in first.items():
        cells = [summary(found[name]) for found in results.values()]
        mean, error = summary(values - first["RBF"])
        gap = "" if name == "RBF" else f"{mean:+.4f} +- {error:.4f}"
        rows.append([name, *(f"{mean:.4f} +- {error:.4f}" for mean, error in cells), gap])
    print(f"\n{title}\n\n{table(rows)}", flush=True)


def picture(results: dict[str, dict[str, np.ndarray]], folder: Path) -> None:
    """Means and standard errors, one panel per data set."""
    from netsor.plots import style

    def draw(*axes: Any) -> str:
        for ax, (title, kernels) in zip(axes, results.items(), strict=True):
            for k, (name, values) in enumerate(kernels.items()):
                mean, error = summary(values)
                colour = style.COLOURS[6 if name.startswith(("RBF", "Matern")) else 0]
                ax.errorbar(mean, -k, xerr=2 * error, fmt="o", color=colour, markersize=5, capsize=2.5)
            ax.set_yticks([-k for k in range(len(kernels))], list(kernels))
            ax.set_ylim(-len(kernels) + 0.4, 0.6)
            style.plain_axes(ax)
            ax.set_title(title)
        return "Means over the splits, with two standard errors."

    heights = [len(kernels) for kernels in results.values()]
    size = (7.2, 0.32 * sum(heights) + 1.0 * len(results))
    drawn = style.picture(draw, size, "\n".join("ABCDEF"[: len(results)]), height_ratios=heights)
    for suffix in (".png", ".pdf"):
        print(f"wrote {drawn.save(folder / f'real_data{suffix}').name}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--splits", type=int, default=20, help="random splits of each data set")
    parser.add_argument("--images", type=int, default=480, help="digits, ten classes of one size")
    parser.add_argument("--rows", type=int, default=None, help="use only the first rows of the tables")
    parser.add_argument("--out", type=Path, default=None, help="folder for the picture")
    args = parser.parse_args(arguments)
    results: dict[str, dict[str, np.ndarray]] = {}
    for name, load in NAMES.items():
        x, y = load(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(x))[: args.rows]
        x, y = x[order], y[order]
        cuts = splits(y, len(x) // 2, args.splits, stratified=load is not load_diabetes)
        size = f"{len(x) // 2} for training, {len(x) - len(x) // 2} for testing, {args.splits} splits"
        if load is load_diabetes:
            errors, densities = regression(standardised(x), y, cuts)
            show(f"{name}: {size}", {"RMSE": errors, "log density": densities})
            results[f"{name}: root mean squared error (less is better)"] = errors
        else:
            found = accuracy(standardised(x), y, cuts)
            show(f"{name}: {size}", {"accuracy": found})
            results[f"{name}: accuracy"] = found
    x, y = load_digits(return_X_y=True)
    order = unseen(y, args.images)
    y, train = y[order], len(order) * 5 // 12
    made = pictures(x[order].reshape(-1, 8, 8) / 8 - 1)  # pixels are 0 to 16
    found = accuracy(lambda _: made, y, splits(y, train, args.splits, stratified=True))
    size = f"{train} for training, {len(order) - train} for testing, {args.splits} splits"
    show(f"digits: {size}", {"accuracy": found})
    results["digits: accuracy"] = found
    if args.out:
        picture(results, args.out)


if __name__ == "__main__":
    main()
