"""Classify MNIST from your idx files: rows of Lee et al. 2018, and all 60,000 images with the kernel on disk.

python benchmarks/mnist.py FOLDER --train 1000 --draw paper          # the training images of the paper
python benchmarks/mnist.py FOLDER --train 60000 --store K.zarr       # never in memory; killed, it goes on

FOLDER holds the four idx files, plain or compressed. Images have mean 0 and variance 1 each, targets are
one-hot labels minus 0.1, and the network is that of examples/gp/lee2018.py. With --store the kernel is a
store of float32 numbers (7 GB for 60,000 images) and the solve conjugate gradients.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np

import netsor as ns
from netsor.data.labelled import mnist

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gp"))
from lee2018 import balanced, deep_network, standardised

HELD_OUT = 10_000  # the first images, which the paper validates on


def first(labels: np.ndarray, count: int) -> np.ndarray:
    """The first images of each class that the paper trains on."""
    chosen = [HELD_OUT + np.flatnonzero(labels[HELD_OUT:] == c)[: count // 10] for c in range(10)]
    return np.concatenate(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--draw", choices=["balanced", "paper"], default="balanced")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--var-w", type=float, default=1.45)
    parser.add_argument("--var-b", type=float, default=0.28)
    parser.add_argument("--noise", type=float, default=1e-10)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--rank", type=int, default=2000, help="of the preconditioner")
    parser.add_argument("--tol", type=float, default=1e-3, help="relative residual of conjugate gradients")
    parser.add_argument("--memory", type=float, default=2.0, help="GB for the solve")
    given = parser.parse_args()
    train, test = mnist(given.folder, "train"), mnist(given.folder, "test")
    if given.train == len(train.labels):
        chosen = np.arange(given.train)
    elif given.draw == "paper":
        chosen = first(train.labels, given.train)
    else:
        chosen = balanced(train.labels, given.train, given.seed)
    x, labels, new = standardised(train.images[chosen]), train.labels[chosen], standardised(test.images)
    targets, net = np.eye(10)[labels] - 0.1, deep_network(given.depth, ns.relu, given.var_w, given.var_b)
    del train
    start = time.perf_counter()
    if given.store is None:
        model = ns.gp.fit(ns.kernel(net), x, targets, noise=given.noise)
        say("fitted", start)
    else:
        store = ns.gp.store(ns.kernel(net, dtype=np.float32), x, given.store)
        say(f"kernel of {given.train}", start)
        options = {"tol": given.tol, "rank": given.rank, "memory": int(given.memory * 2**30)}
        model = ns.gp.fit(store, targets, noise=given.noise, solver="pcg", **options)
        say(f"solved, relative residual {model.residual:.1e}", start)
    means = np.concatenate([model.mean(new[i : i + 500]) for i in range(0, len(new), 500)])
    accuracy = float(np.mean(means.argmax(1) == test.labels))
    say(f"{given.train} training images, {len(new)} test images: accuracy {accuracy:.4f}", start)


def say(what: str, start: float) -> None:
    spent, peak = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{what}; {time.perf_counter() - start:.0f} s, {spent.ru_utime + spent.ru_stime:.0f} s of processor, "
        f"peak {peak / 2**20:.2f} GB",
        flush=True,
    )


if __name__ == "__main__":
    main()
