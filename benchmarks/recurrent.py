"""Measure stores of sampled kernels: time, error and positivity over inputs and tokens.

python benchmarks/recurrent.py --cell gru --inputs 50,100,200 --tokens 20 --points 256 --repeats 16
python benchmarks/recurrent.py --cell lstm --inputs 50 --tokens 5,10,20
python benchmarks/recurrent.py --cell gru --inputs 10 --tokens 10,20,40 --ntk

The last state of a recurrent network on random sequences. Exponents are fitted to processor times, which
other users of the machine change less than the time on the wall.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import netsor as ns
import netsor.gp


def last_state(cell: Any, start: Any) -> ns.Network:
    v = ns.Matrix(1.0, rows=1, name="v")

    @ns.network
    def recurrent(tokens: Any) -> Any:
        state = start
        for token in tokens:
            state = cell(state, token)
        return v @ (state[0] if isinstance(state, tuple) else state)

    return recurrent


CELLS = {"gru": lambda: last_state(ns.GRUCell(), 0), "lstm": lambda: last_state(ns.LSTMCell(), (0, 0))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cell", choices=list(CELLS), default="gru")
    parser.add_argument("--inputs", default="12,25,50")
    parser.add_argument("--tokens", default="10")
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--ntk", action="store_true", help="tangent kernels")
    given = parser.parse_args()
    sizes = [(b, t) for b in _numbers(given.inputs) for t in _numbers(given.tokens)]
    kernel = ns.ntk if given.ntk else ns.kernel
    spent = [row(given.cell, kernel, b, t, points=given.points, repeats=given.repeats) for b, t in sizes]
    for axis, name in enumerate(("inputs", "tokens")):
        grows = [size[axis] for size in sizes]
        if len(set(grows)) > 1:
            print(f"processor time grows like {name}^{np.polyfit(np.log(grows), np.log(spent), 1)[0]:.2f}")


def row(cell: str, kernel: Any, inputs: int, tokens: int, **options: int) -> float:
    x = np.random.default_rng(0).standard_normal((inputs, tokens, 8))
    K = kernel(CELLS[cell](), progress=False, **options)
    with tempfile.TemporaryDirectory() as folder:
        wall, start = time.perf_counter(), time.process_time()
        store = ns.gp.store(K, x, Path(folder) / "K.zarr", progress=False)
        spent, wall = time.process_time() - start, time.perf_counter() - wall
        matrix, error = store.read(), store.largest_error()
    least, scale = np.linalg.eigvalsh(matrix)[0], np.diagonal(matrix).max()
    print(
        f"{cell}, {inputs} sequences of {tokens} tokens: {spent:.0f} s of processor, {wall:.0f} s, "
        f"{1e3 * spent / (inputs * (inputs + 1) / 2):.1f} ms a pair, "
        f"largest error {error:.1e} ({error / scale:.1e} of the largest variance), "
        f"least eigenvalue {least / scale:.1e}, "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB",
        flush=True,
    )
    return spent


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
