"""Rows of Table 1 of Lee et al. 2018, "Deep Neural Networks as Gaussian Processes", on files of your own.

    python examples/gp/lee2018.py --mnist FOLDER
    python examples/gp/lee2018.py --mnist FOLDER --train 1000 --depth 20 --var-w 1.45 --var-b 0.28

The default is the table's row for MNIST with 1,000 training points: relu, depth 20, var_w 1.45, var_b 0.28,
test accuracy 0.9279. FOLDER holds the four idx files of MNIST, or the batches of CIFAR-10 with --cifar10.
As there, every image is brought to mean 0 and variance 1, training points are the same number of each
class, targets are one-hot labels minus 0.1, and the output has a bias. Other draws of the training images
give other accuracies: the standard error over draws is printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import netsor as ns
from netsor.data.labelled import Labelled, labelled_cifar10, mnist


def deep_network(depth: int, phi: Any, var_w: float, var_b: float) -> ns.Network:
    """`depth` hidden layers; the output has weights of variance var_w / n and a bias of variance var_b."""
    W = [ns.Matrix(var_w, name=f"W{k}") for k in range(1, depth + 1)]
    b = [ns.Vector(var_b, name=f"b{k}") for k in range(1, depth + 1)]
    v, c = ns.Matrix(var_w, rows=1, name="v"), ns.Matrix(var_b, rows=1, name="c")
    one = ns.Vector(0.0, mean=1.0, name="one")

    @ns.network
    def network(x: Any) -> Any:
        for W_l, b_l in zip(W, b, strict=True):
            x = phi(W_l @ x + b_l)
        return v @ x + c @ one

    return network


def standardised(images: np.ndarray) -> np.ndarray:
    """Flat images, each with mean 0 and variance 1."""
    flat = images.reshape(len(images), -1)
    return (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-15)


def balanced(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The same number of training points of each class, in random order."""
    rng = np.random.default_rng(seed)
    classes = np.unique(labels)
    parts = [rng.permutation(np.flatnonzero(labels == c))[: count // len(classes)] for c in classes]
    return rng.permutation(np.concatenate(parts))


def run(train: Labelled, test: Labelled, args: argparse.Namespace, seed: int) -> float:
    """Test accuracy; the test set goes through the kernel in pieces."""
    kernel = ns.kernel(deep_network(args.depth, getattr(ns, args.phi), args.var_w, args.var_b))
    chosen = balanced(train.labels, args.train, seed)
    model = ns.gp.classify(kernel, standardised(train.images[chosen]), train.labels[chosen], noise=args.noise)
    x = standardised(test.images)
    guesses = [model.predict(x[i : i + 1000]) for i in range(0, len(x), 1000)]
    return float(np.mean(np.concatenate(guesses) == test.labels))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    files = parser.add_mutually_exclusive_group(required=True)
    files.add_argument("--mnist", type=Path, help="folder with the idx files")
    files.add_argument("--cifar10", type=Path, help="folder with the batches")
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--phi", default="relu", choices=["relu", "tanh", "erf", "gelu"])
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--var-w", type=float, default=1.45)
    parser.add_argument("--var-b", type=float, default=0.28)
    parser.add_argument("--noise", type=float, default=1e-10)
    parser.add_argument("--test", type=int, default=None, help="use only the first test images")
    parser.add_argument("--seeds", type=int, default=3, help="draws of the training set")
    args = parser.parse_args(arguments)
    load, folder = (mnist, args.mnist) if args.mnist else (labelled_cifar10, args.cifar10)
    train, test = load(folder, "train"), load(folder, "test")
    test = Labelled(test.images[: args.test], test.labels[: args.test])
    start = time.perf_counter()
    found = np.array([run(train, test, args, seed) for seed in range(args.seeds)])
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else float("nan")
    print(
        f"{args.phi}, depth {args.depth}, var_w {args.var_w}, var_b {args.var_b}: {args.train} training "
        f"points, {len(test.labels)} test points, accuracy {found.mean():.4f} +- {error:.4f} over "
        f"{len(found)} draws, {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
