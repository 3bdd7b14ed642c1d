"""Measure how the first call grows with the length of a sentence and with the depth of a network.

python benchmarks/depth.py

Each row is a process of its own, without imports. The last state of a simple RNN on two sentences, and an MLP
on two inputs; a GRU of 200 tokens, which is sampled, for once.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

import netsor as ns

LENGTHS = (100, 1000, 10_000)
U, W, b, v = ns.Matrix(), ns.Matrix(), ns.Vector(0.1), ns.Matrix(rows=1)
GRU = ns.GRUCell()


@ns.network
def rnn(tokens: Any) -> Any:
    state = None
    for token in tokens:
        state = ns.erf(U @ token + b if state is None else W @ state + U @ token + b)
    return v @ state


@ns.network
def gru(tokens: Any) -> Any:
    state: Any = 0
    for token in tokens:
        state = GRU(state, token)
    return v @ state


def row(kind: str, length: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    net = {"RNN": rnn, "GRU": gru}.get(kind) or ns.zoo.mlp(depth=length)
    x = rng.standard_normal((2, 3) if kind == "MLP" else (2, length, 3))
    before, start = _peak(), time.process_time()
    ns.kernel(net, progress=False)(x)
    return {"seconds": time.process_time() - start, "MB": _peak() - before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(row(sys.argv[1], int(sys.argv[2]))))
        return
    for kind, lengths in (("RNN", LENGTHS), ("MLP", LENGTHS), ("GRU", (200,))):
        found = []
        for length in lengths:
            run = subprocess.run(
                [sys.executable, __file__, kind, str(length)], check=True, capture_output=True
            )
            found.append(json.loads(run.stdout))
            print(f"{kind} {length}: {found[-1]['seconds']:.2f} s of processor, {found[-1]['MB']:.0f} MB")
        if len(found) > 1:
            for what in ("seconds", "MB"):
                print(f"  {what} grow like length^{np.log10(found[-1][what] / found[-2][what]):.2f}")


if __name__ == "__main__":
    main()
