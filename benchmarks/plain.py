"""The kernels of the paper in plain NumPy: RNN, GRU, transformer and batchnorm as its boxes state them.

Corrected where the printed formulas are wrong: see "Corrections" in docs/benchmarks.md. Nothing is shared
with netsor; the inputs are lists of arrays (T, m) or (B, m), the outputs kernel matrices over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from math import pi, sqrt

import numpy as np
from scipy.integrate import quad_vec
from scipy.stats import multivariate_normal

__all__ = [
    "batchnorm",
    "batchnorm_trapezoid",
    "gru",
    "mlp_quadrature",
    "rnn",
    "transformer",
    "v_erf",
    "v_relu",
]

Arrays = Sequence[np.ndarray]


def v_relu(sigma: np.ndarray) -> np.ndarray:
    """E[relu(x) relu(y)] for all pairs of a centred Gaussian vector of covariance sigma."""
    scale = np.sqrt(np.outer(np.diag(sigma), np.diag(sigma)))
    c = np.clip(sigma / np.maximum(scale, np.finfo(float).tiny), -1.0, 1.0)
    return scale * (np.sqrt(1 - c * c) + (pi - np.arccos(c)) * c) / (2 * pi)


def v_erf(sigma: np.ndarray) -> np.ndarray:
    """E[erf(x) erf(y)] for all pairs of a centred Gaussian vector of covariance sigma."""
    scale = 1 + 2 * np.diag(sigma)
    return 2 / pi * np.arcsin(2 * sigma / np.sqrt(np.outer(scale, scale)))


def gram(parts: Arrays) -> np.ndarray:
    """x.y / m for all rows of all parts."""
    rows = np.concatenate(list(parts))
    return rows @ rows.T / rows.shape[1]


def offsets(parts: Arrays) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])])


# Simple RNN


def rnn(
    sequences: Arrays, var_w: float = 1.0, var_u: float = 1.0, var_b: float = 1.0, var_v: float = 1.0
) -> np.ndarray:
    """The paper's algorithm for two sequences, on every pair of sequences in turn."""
    at = offsets(sequences)
    kernel = np.empty((at[-1], at[-1]))
    for a, b in combinations_with_replacement(range(len(sequences)), 2):
        if a == b and len(sequences) > 1:
            continue  # every block (a, a) comes with a pair
        pair = [sequences[a], sequences[b]] if a != b else [sequences[a]]
        rows = np.concatenate([np.arange(at[i], at[i + 1]) for i in sorted({a, b})])
        kernel[np.ix_(rows, rows)] = rnn_set(pair, var_w, var_u, var_b, var_v)
    return kernel


def rnn_set(sequences: Arrays, var_w: float, var_u: float, var_b: float, var_v: float) -> np.ndarray:
    """Sigma of the prefixes of lengths p, q, ..., grown by one token until nothing changes."""
    lengths = [len(s) for s in sequences]
    seen = var_u * gram(sequences) + var_b
    at = offsets(sequences)
    prefix = [0] * len(sequences)
    moment = np.zeros((0, 0))
    while True:
        longer = [min(p + 1, length) for p, length in zip(prefix, lengths, strict=True)]
        rows = np.concatenate([at[i] + np.arange(p) for i, p in enumerate(longer)])
        moment = v_erf(var_w * shifted(moment, prefix, longer) + seen[np.ix_(rows, rows)])
        if longer == prefix:
            return var_v * moment
        prefix = longer


def shifted(moment: np.ndarray, prefix: list[int], longer: list[int]) -> np.ndarray:
    """The moments of the previous states: row t is the old row t - 1, and 0 for the first token."""
    out = np.zeros((sum(longer), sum(longer)))
    source, target, start, begin = [], [], 0, 0
    for old, new in zip(prefix, longer, strict=True):
        source += range(start, start + new - 1)
        target += range(begin + 1, begin + new)
        start, begin = start + old, begin + new
    out[np.ix_(target, target)] = moment[np.ix_(source, source)]
    return out


# GRU


def gru(
    sequences: Arrays,
    var_w: float = 1.0,
    var_u: float = 1.0,
    var_b: float = 1.0,
    var_v: float = 1.0,
    error: float = 1e-5,
) -> np.ndarray:
    """erf-GRU by orthant probabilities of dimension up to 2T, one for every term of every entry."""
    at = offsets(sequences)
    seen = var_u * gram(sequences) + var_b
    z, r, h = seen.copy(), seen.copy(), seen.copy()
    moment = np.zeros_like(seen)
    for step in range(1, max(len(s) for s in sequences) + 1):
        for a, b, t, s in entries(sequences, step):
            row, col = at[a] + t - 1, at[b] + s - 1
            if t > 1 and s > 1:
                previous = var_w * moment[row - 1, col - 1]
                z[row, col] = z[col, row] = seen[row, col] + previous
                r[row, col] = r[col, row] = z[row, col]
        for a, b, t, s in entries(sequences, step):
            row, col = at[a] + t - 1, at[b] + s - 1
            if t > 1 and s > 1:
                gates = (1 + erf_moment(r, row, col)) / 4
                h[row, col] = h[col, row] = seen[row, col] + var_w * moment[row - 1, col - 1] * gates
        for a, b, t, s in entries(sequences, step):
            row, col = at[a] + t - 1, at[b] + s - 1
            moment[row, col] = moment[col, row] = state_moment(z, h, at[a], t, at[b], s, error)
    return var_v * moment


def entries(sequences: Arrays, step: int) -> list[tuple[int, int, int, int]]:
    """The pairs (a, b, t, s) of tokens of which the later one is `step`, each unordered pair once."""
    found = []
    for a, b in combinations_with_replacement(range(len(sequences)), 2):
        times = [(t, step) for t in range(1, step)] + [(step, s) for s in range(1, step + 1)]
        fits = [(t, s) for t, s in times if t <= len(sequences[a]) and s <= len(sequences[b])]
        found += [(a, b, t, s) for t, s in fits if a != b or t <= s]
    return found


def erf_moment(sigma: np.ndarray, row: int, col: int) -> float:
    scale = sqrt((1 + 2 * sigma[row, row]) * (1 + 2 * sigma[col, col]))
    return 2 / pi * float(np.arcsin(2 * sigma[row, col] / scale))


def state_moment(z: np.ndarray, h: np.ndarray, start: int, t: int, begin: int, s: int, error: float) -> float:
    """E[h_t h'_s] = sum over i, j of P(orthant of the gates after i and j) E[erf(h_i) erf(h'_j)]."""
    total = 0.0
    for i in range(t):
        for j in range(s):
            rows = [*range(start + i, start + t), *range(begin + j, begin + s)]
            signs = np.array([1.0, *[-1.0] * (t - i - 1), 1.0, *[-1.0] * (s - j - 1)])
            covariance = np.outer(signs, signs) * z[np.ix_(rows, rows)] + 0.5 * np.eye(len(rows))
            total += orthant(covariance, error) * erf_moment(h, start + i, begin + j)
    return total


def orthant(covariance: np.ndarray, error: float) -> float:
    """P(X >= 0) of a centred Gaussian vector: its distribution function at 0, by symmetry."""
    zeros, law = np.zeros(len(covariance)), type(multivariate_normal)(seed=0)
    return float(law.cdf(zeros, zeros, covariance, abseps=error, releps=0.0))


# Transformer


def transformer(
    sequences: Arrays,
    depth: int = 1,
    var_u: float = 1.0,
    var_w: float = 1.0,
    var_b: float = 1.0,
    var_v: float = 1.0,
) -> np.ndarray:
    """One head, causal, keys = queries = values, skip connection W1 h."""
    at = offsets(sequences)
    sigma = var_u * gram(sequences)
    for _ in range(depth):
        mix = np.eye(len(sigma))
        for a in range(len(sequences)):
            block = slice(at[a], at[a + 1])
            mix[block, block] += masked_softmax(sigma[block, block])
        first = var_w * normalised(mix @ sigma @ mix.T)
        second = var_w * v_relu(first + var_b) + var_b
        sigma = var_u * normalised(first + second)
    return var_v / var_u * sigma


def masked_softmax(logits: np.ndarray) -> np.ndarray:
    masked = np.where(np.tri(len(logits), dtype=bool), logits, -np.inf)
    weights = np.exp(masked - masked.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def normalised(sigma: np.ndarray) -> np.ndarray:
    scale = 1 / np.sqrt(np.diag(sigma))
    return sigma * np.outer(scale, scale)


# Batchnorm


def batchnorm(batches: Arrays, depth: int = 1, var_v: float = 1.0, error: float = 1e-4) -> np.ndarray:
    """batchnorm + relu: the 1-D and 2-D integrals as printed, each to the given error.

    The paper leaves the quadrature open. Here it is SciPy's adaptive one for arrays, nested for the 2-D
    integral, with dense linear algebra at every node; s = a^2 and t = b^2 take out (s t)^(-1/2), at which
    it would stay for minutes. Its own error estimate decides where it stops.
    """

    def within(unit: np.ndarray) -> np.ndarray:
        return quadrature(lambda s: within_integrand(unit, s), error / len(unit))

    def across(unit: np.ndarray, size: int) -> np.ndarray:
        part = error * pi / 4 / sqrt(size * (len(unit) - size))
        return 4 * quadrature(
            lambda a: quadrature(lambda b: across_integrand(unit, size, a * a, b * b), part), part
        )

    return batchnorm_layers(batches, depth, var_v, within, across)


def batchnorm_trapezoid(batches: Arrays, depth: int = 1, var_v: float = 1.0, step: float = 1.0) -> np.ndarray:
    """The same integrals by the trapezoid rule in log s and log t, a rule chosen for them.

    Its error is about exp(-pi^2 / step); both ends are cut at the same level.
    """

    def within(unit: np.ndarray) -> np.ndarray:
        return step * sum(s * within_integrand(unit, s) for s in nodes(len(unit), 1.0, step))

    def across(unit: np.ndarray, size: int) -> np.ndarray:
        total = np.zeros((size, len(unit) - size))
        for s in nodes(size, 2.0, step):
            for t in nodes(len(unit) - size, 2.0, step):
                total += sqrt(s * t) * across_integrand(unit, size, s, t)
        return step**2 * total

    return batchnorm_layers(batches, depth, var_v, within, across)


def batchnorm_layers(
    batches: Arrays,
    depth: int,
    var_v: float,
    within: Callable[[np.ndarray], np.ndarray],
    across: Callable[[np.ndarray, int], np.ndarray],
) -> np.ndarray:
    """The paper's box; batchnorm does not see the scale, so each centred batch is given trace 1."""
    at = offsets(batches)
    blocks = [slice(at[a], at[a + 1]) for a in range(len(batches))]
    sigma = gram(batches)
    for _ in range(depth):
        for block in blocks:
            centre = np.eye(block.stop - block.start) - 1 / (block.stop - block.start)
            sigma[block] = centre @ sigma[block]
            sigma[:, block] = sigma[:, block] @ centre
        traces = [np.trace(sigma[block, block]) for block in blocks]
        scale = np.sqrt(np.repeat(traces, np.diff(at)))
        unit, new = sigma / np.outer(scale, scale), np.empty_like(sigma)
        for a, first in enumerate(blocks):
            new[first, first] = len(batches[a]) * within(unit[first, first])
            for b, second in enumerate(blocks[:a]):
                rows = np.r_[first, second]
                found = across(unit[np.ix_(rows, rows)], len(batches[a]))
                new[first, second] = sqrt(len(batches[a]) * len(batches[b])) / pi * found
                new[second, first] = new[first, second].T
        sigma = new
    return var_v * sigma


def within_integrand(unit: np.ndarray, s: float) -> np.ndarray:
    """V(S (I + 2 s S)^-1) det(I + 2 s S)^(-1/2)."""
    matrix = np.eye(len(unit)) + 2 * s * unit
    inner = np.linalg.solve(matrix, unit)
    return v_relu((inner + inner.T) / 2) * half_determinant(matrix)


def across_integrand(unit: np.ndarray, size: int, s: float, t: float) -> np.ndarray:
    """V(S (I + 2 D S)^-1)_12 det(I + 2 D S)^(-1/2), D = s and t on the two batches, the first of `size`."""
    matrix = np.eye(len(unit)) + 2 * unit * np.repeat([s, t], [size, len(unit) - size])
    inner = np.linalg.solve(matrix, unit)
    return v_relu((inner + inner.T) / 2)[:size, size:] * half_determinant(matrix)


def quadrature(integrand: Callable[[float], np.ndarray], error: float) -> np.ndarray:
    """The integral over (0, oo), every entry to the given error."""
    return quad_vec(integrand, 0, np.inf, epsabs=error, epsrel=0.0, norm="max")[0]


def nodes(size: int, lowest: float, step: float) -> np.ndarray:
    """Nodes for s: below they are cut at `lowest` powers of the error, above where s^(-rank/2) is small."""
    level = pi**2 / step
    top = 4.0 + 2 * level / max(size - 1, 1)
    return np.exp(np.arange(-lowest * level, top, step))


def half_determinant(matrix: np.ndarray) -> float:
    return float(np.exp(-np.linalg.slogdet(matrix)[1] / 2))


# Reference for nonlinearities without a closed form


def mlp_quadrature(
    x: np.ndarray, phi: Callable[[np.ndarray], np.ndarray], depth: int, step: float = 0.2
) -> np.ndarray:
    """MLP kernel with unit variances: a 2-D trapezoid rule of exponential accuracy for every pair."""
    axis = np.arange(-9.5, 9.5 + step / 2, step)
    weights = np.exp(-(axis**2) / 2) * step / sqrt(2 * pi)
    sigma = gram([x]) + 1
    for layer in range(depth):
        new = np.empty_like(sigma)
        for i, j in combinations_with_replacement(range(len(x)), 2):
            first = sqrt(sigma[i, i])
            slope = sigma[i, j] / first
            rest = sqrt(max(sigma[j, j] - slope**2, 0.0))
            inner = phi(slope * axis[:, None] + rest * axis) @ weights
            new[i, j] = new[j, i] = np.sum(weights * phi(first * axis) * inner)
        sigma = new + (layer < depth - 1)
    return sigma
