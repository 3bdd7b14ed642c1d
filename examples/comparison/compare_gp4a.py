"""The kernel of the simple RNN beside the paper's own code (its file RNNtheory.py).

git clone https://github.com/thegregyang/GP4A
python examples/comparison/compare_gp4a.py GP4A
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

import netsor as ns
from netsor.data import sentences


def main(folder: str) -> None:
    sys.path.insert(0, folder)
    theory, utils = importlib.import_module("RNNtheory"), importlib.import_module("utils")
    tokens = [s.vectors for s in sentences()]
    lengths = [len(x) for x in tokens]
    joined = np.concatenate(tokens)
    gram, starts = joined @ joined.T / joined.shape[1], [0, lengths[0]]
    print(f"{'variances':32} {'difference':>12}  distance to 200 networks of width 1000")
    for var_w, var_b in ((1.0, 1.0), (1.0, 0.0), (2.0, 1.0)):
        net = ns.zoo.simple_rnn(var_w=var_w, var_b=var_b)
        ours = ns.kernel(net)(tokens)
        theirs = theory.thrnn(gram, starts, utils.VErf, varw=var_w, varb=var_b, maxlength=max(lengths))
        mean = ns.empirical_kernel(net, tokens, width=1000, samples=200, seed=0).mean(0)
        gap = np.abs(ours - theirs).max() / np.abs(ours).max()
        far = [np.linalg.norm(mean - k) / np.linalg.norm(mean) for k in (ours, theirs)]
        name = f"var_w = {var_w:g}, var_b = {var_b:g}"
        print(f"{name:32} {gap:12.1e}  netsor {far[0]:.4f}, RNNtheory.py {far[1]:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
