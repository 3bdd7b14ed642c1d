"""Random networks written as a user would: exact, sampled and simulated kernels agree within their errors.

python tests/hostile/networks.py [COUNT] [FIRST] [ntk]

Each network is drawn from a seed: a few steps, each of which takes vectors that are there and makes a new
one, by layers, functions, sums, products, norms and averages over tokens. Nothing here is shared with the
programs of the property tests.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np

import netsor as ns

__all__ = ["check", "check_tangent", "draw"]

FUNCTIONS = (
    ns.relu, ns.erf, ns.tanh, ns.gelu, ns.sin, ns.sign, ns.sigmoid, ns.softplus, ns.abs,
    lambda h: ns.leaky_relu(h, slope=0.3), lambda h: 0.3 * h * h, lambda h: ns.relu(h) * ns.tanh(h),
    lambda h: ns.nonlin(np.arctan, h, name="arctan"),
)  # fmt: skip
OFTEN = (0.3, 0.25, 0.15, 0.1, 0.05, 0.1, 0.05)  # each kind of step is drawn
WIDTH, SAMPLES, TANGENTS = 192, 240, 30
SIGMAS = 6.0
SLOWEST = 5  # networks that are named
SMALL_WIDTH = 0.35  # of the scale: what a width of 192 may change, beside the spread of samples


def draw(seed: int) -> tuple[ns.Network, np.ndarray]:
    """A network of tokens (T, 3) and two or three inputs, of which one may be repeated or 0."""
    rng = np.random.default_rng([seed, 77])
    tokens, steps = int(rng.integers(1, 4)), int(rng.integers(2, 6))
    U, matrices = ns.Matrix(_variance(rng)), [ns.Matrix(_variance(rng)) for _ in range(2)]
    biases, out = [ns.Vector(0.3), ns.Vector(0.2, 0.4)], ns.Matrix(1.0, rows=1)
    plan = [
        (rng.choice(7, p=[0.3, 0.25, 0.15, 0.1, 0.05, 0.1, 0.05]), rng.integers(1000, size=4))
        for _ in range(steps)
    ]

    @ns.network
    def random_network(x):
        gaussian, vectors = [U @ x], [U @ x]
        for kind, picks in plan:
            h, g = vectors[picks[0] % len(vectors)], vectors[picks[1] % len(vectors)]
            phi = FUNCTIONS[picks[2] % len(FUNCTIONS)]
            if kind == 0:
                made = matrices[picks[3] % 2] @ phi(h) + biases[picks[2] % 2]
                gaussian.append(made)
            elif kind == 1:
                made = phi(h)
            elif kind == 2:
                made = h + g
            elif kind == 3:
                made = ns.tanh(h) * ns.erf(g)
            elif kind == 4:
                made = ns.layernorm(gaussian[-1] + biases[0])
            elif kind == 5:
                made = h / ns.sqrt(1 + ns.mean(h * h)) if tokens == 1 else h - ns.mean(h, axis=0)
            else:
                made = ns.maximum(h, g)
            vectors.append(made)
        last = ns.tanh(vectors[-1])
        return out @ (last if tokens == 1 else ns.mean(last, axis=0))

    shape = (3,) if tokens == 1 else (tokens, 3)
    inputs = rng.standard_normal((3, *shape)) + 0.2
    if rng.random() < 0.2:
        inputs[2] = inputs[0]
    return random_network, inputs


def _variance(rng: np.random.Generator) -> float:
    return float(rng.choice([0.3, 1.0, 2.0]))


def check(seed: int) -> str:
    """Which way the network was computed; an error if two of them disagree."""
    net, x = draw(seed)
    try:
        exact = ns.kernel(net, seed=1).evaluate(x)
        sampled = ns.kernel(net, method="sample", seed=2, points=1024).evaluate(x)
    except ns.NetsorError as refused:
        return f"refused: {str(refused).splitlines()[0][:80]}"
    outputs = np.asarray(ns.simulate(net, x, WIDTH, SAMPLES, seed)).reshape(SAMPLES, len(x))
    _compare(seed, exact, sampled, outputs[:, :, None] * outputs[:, None])
    return "exact" if exact.plan.exact else "sampled"


def check_tangent(seed: int) -> str:
    """The same of the tangent kernel, which is PSD and the sum of the parts of the parameters."""
    net, x = draw(seed)
    K = ns.ntk(net, seed=1, points=1024)
    try:
        exact = K.evaluate(x)
        sampled = ns.ntk(net, method="sample", seed=2, points=1024).evaluate(x)
    except ns.NetsorError as refused:
        return f"refused: {str(refused).splitlines()[0][:80]}"
    _compare(seed, exact, sampled, ns.empirical_ntk(net, x, WIDTH, TANGENTS, seed, progress=False))
    scale = float(np.trace(exact.value))
    lowest = np.linalg.eigvalsh(exact.value)[0]
    assert lowest >= -(1e-12 * scale + len(x) * exact.error.max()), f"seed {seed}: an eigenvalue {lowest:.2g}"
    parts = sum(K.parts(x).values())
    assert np.all(np.abs(parts - exact.value) <= 1e-10 * scale + 4 * exact.error), f"seed {seed}: parts"
    return "exact" if exact.plan.exact else "sampled"


def _compare(seed: int, exact: ns.Result, sampled: ns.Result, simulated: np.ndarray) -> None:
    """Two ways to the limit, and kernels of finite networks."""
    scale = float(np.abs(exact.value).max())
    apart = np.abs(exact.value - sampled.value)
    assert np.all(apart <= SIGMAS * (exact.error + sampled.error) + 1e-10 * scale + 1e-14), (
        f"seed {seed}: exact and sampled differ by {apart.max():.2g}, errors {exact.error.max():.1g} and "
        f"{sampled.error.max():.1g}"
    )
    spread = simulated.std(axis=0, ddof=1) / np.sqrt(len(simulated))
    apart = np.abs(simulated.mean(axis=0) - exact.value)
    allowed = SIGMAS * (spread + exact.error) + SMALL_WIDTH * scale + 1e-12
    assert np.all(apart <= allowed), (
        f"seed {seed}: the limit and {len(simulated)} networks differ by {apart.max():.2g} of {scale:.2g}"
    )


def main(count: int, first: int, check: Callable[[int], str]) -> int:
    """Check them all, say which failed and which took longest; how many failed."""
    found: Counter[str] = Counter()
    spent: list[tuple[float, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(first, first + count):
            began = time.process_time()
            try:
                found[check(seed).split(":")[0]] += 1
            except AssertionError as failure:
                found["failed"] += 1
                print(failure, flush=True)
            spent.append((time.process_time() - began, seed))
    slowest = ", ".join(f"{s:.0f} s (seed {seed})" for s, seed in sorted(spent, reverse=True)[:SLOWEST])
    print(f"{count} networks: {dict(found)}, {sum(s for s, _ in spent):.0f} s; slowest {slowest}")
    return found["failed"]


if __name__ == "__main__":
    given = [int(a) for a in sys.argv[1:3]]
    count, first = given + [2000, 0][len(given) :]
    sys.exit(main(count, first, check_tangent if "ntk" in sys.argv else check) > 0)
