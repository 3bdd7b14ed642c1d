"""Batchnorm followed by a positively homogeneous phi: E[phi(bn(y)) phi(bn(y'))^T] for Gaussian y, y'.

For the preactivations z of one neuron over a batch of B members,

    bn(z) = sqrt(B) y / |y|,    y = G z,    G = I - 1 1^T / B,

where phi has slope a on x > 0 and b on x < 0: relu (1, 0), leaky relu (1, b), abs (1, -1), identity (1, 1).
Then phi(bn(z)) = sqrt(B) phi(y) / |y|. The division becomes an integral of exponentials, which a Gaussian law
absorbs (Tensor Programs I, "Batchnorm with Single Batch" and "with Multiple Batches"; Yang et al. 2019):

    within a batch     1/|y|^2 = int_0^oo exp(-s |y|^2) ds
    across batches     1/|y|   = pi^(-1/2) int_0^oo s^(-1/2) exp(-s |y|^2) ds    for y and for y'

So each node of a quadrature needs the V-transform of phi at a smaller covariance, which has a closed form.
The nodes, and across batches the bound D on their relative error delta, come from `batch_law`. By
Cauchy-Schwarz, with the largest value p_j of |bn_j'|,

    E|bn_i bn_j' ((1 + delta)(1 + delta') - 1)| <= D (E[bn_i^2]^(1/2) p_j + p_i E[bn_j'^2]^(1/2))

z must have mean zero after centring: a mean that is constant over the batch drops out of G z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, log2, pi, sqrt
from typing import Any

import numpy as np

from netsor.errors import DataError
from netsor.expect.batchnorm.batch_law import GaussianBatch, batch_of, relative, root_det, root_rule
from netsor.lang.array_api import array_namespace

Array = Any
Slopes = tuple[float, float]
Kernel = tuple[np.ndarray, np.ndarray]
EPS = float(np.finfo(float).eps)
ROUNDING = 64  # rounding of a kernel relative to its scales, in units of the precision of its numbers
CANCELLATION = 1e5  # factor by which a variance may lose precision, at nodes of small weight


def second_moments(left: np.ndarray, right: np.ndarray, cross: np.ndarray, slopes: Slopes) -> Kernel:
    """Return kernel and error `(..., members, members)` for pairs of batches over axes that broadcast.

    Pairs of equal batches, and of multiples, take the integral within a batch: E[sign sign'] of batches of
    two changes like the square root of their distance, so a copy must not differ by rounding.
    """

    def kernel(one: GaussianBatch, two: GaussianBatch, sigma12: np.ndarray) -> Kernel:
        alone = are_multiples(one, two, sigma12)
        return within(one, slopes) if alone else across(one, two, sigma12, slopes)

    return for_each_pair(kernel, left, right, cross)


def for_each_pair(
    kernel: Callable[..., Kernel],
    left: np.ndarray,
    right: np.ndarray,
    *between: np.ndarray,
    symmetric: bool = True,
) -> Kernel:
    """Apply `kernel` to two batches and the matrices between them, for pairs over axes that broadcast.

    Compute a pair that occurs again only once, and so its transpose if the kernel is `symmetric`.
    """
    shape = np.broadcast_shapes(*(m.shape[:-2] for m in (left, right, *between)))
    precisions = [float(array_namespace(m).finfo(m.dtype).eps) for m in (left, right)]
    plain = [np.broadcast_to(np.asarray(m, float), (*shape, *m.shape[-2:])) for m in (left, right, *between)]
    value, error = np.empty(plain[2].shape), np.empty(plain[2].shape)
    batches: dict[bytes, GaussianBatch] = {}
    done: dict[tuple[GaussianBatch, GaussianBatch], tuple[int, ...]] = {}
    for at in np.ndindex(shape):
        for sigma, eps in zip(plain[:2], precisions, strict=True):
            if sigma[at].tobytes() not in batches:
                batches[sigma[at].tobytes()] = batch_of(sigma[at], eps)
        one, two = (batches[sigma[at].tobytes()] for sigma in plain[:2])
        same, turned = done.get((one, two)), done.get((two, one)) if symmetric else None
        if same is not None and all(are_equal(m[same], m[at]) for m in plain[2:]):
            value[at], error[at] = value[same], error[same]
        elif turned is not None and all(are_equal(m[turned].T, m[at]) for m in plain[2:]):
            value[at], error[at] = value[turned].T, error[turned].T
        else:
            value[at], error[at] = kernel(one, two, *(m[at] for m in plain[2:]))
        done.setdefault((one, two), at)
    return value, error


def are_equal(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether matrices are equal up to the rounding of products of the data."""
    return x.shape == y.shape and bool(np.abs(x - y).max() <= 16 * EPS * np.abs(x).max())


def are_multiples(one: GaussianBatch, two: GaussianBatch, sigma12: np.ndarray) -> bool:
    """Return whether the second batch is a positive multiple of the first, up to the rounding of products."""
    scale = sqrt(two.total / one.total)
    return are_equal(scale * one.sigma, sigma12) and are_equal(two.sigma, scale * sigma12)


# The kernels.


def within(batch: GaussianBatch, slopes: Slopes) -> Kernel:
    """E[phi(bn(z)) phi(bn(z))^T] for z ~ N(0, sigma), and a bound on the error of each entry, both (B, B).

        B int_0^oo V_phi(S (I + 2 s S)^-1) det(I + 2 s S)^(-1/2) ds,    S = G sigma G.

    E[y y^T / |y|^2] is diagonal in the eigenbasis, so only E[|y| |y|^T / |y|^2] needs the nodes.

    >>> batch = batch_of(np.array([[2.0, 0.3], [0.3, 1.0]]), EPS)  # two members are normalised to +1 and -1
    >>> bool(np.allclose(within(batch, (1.0, 0.0))[0], [[0.5, 0.0], [0.0, 0.5]]))
    True
    """
    B, mean, half = batch.size, *parts_of(slopes)
    value = mean**2 * (batch.basis * batch.squares) @ batch.basis.T
    bound = ROUNDING * batch.eps
    if half:
        error = 1e-13  # of the nodes that are left out; that of the step is below it
        nodes, weights = (x[batch.beyond > error] for x in batch.rule)
        bound += 2 * error
        total = np.zeros((B, B))
        for piece in pieces(len(nodes), B * B):
            grown = 1 + 2 * nodes[piece, None] * batch.values
            shrunk = batch.values / grown
            root = np.sqrt(shrunk @ batch.basis.T**2)
            unit = batch.basis * inverse(root)[:, :, None]
            c = (unit * shrunk[:, None, :]) @ np.swapaxes(unit, 1, 2)
            _add_abs(total, c, weights[piece, None] * root_det(grown)[:, None] * root, root)
        value += half**2 * B * total
    return value, _bound(slopes, bound * np.outer(batch.scale, batch.scale), batch, batch)


def across(
    one: GaussianBatch, two: GaussianBatch, sigma12: np.ndarray, slopes: Slopes, tol: float = 1e-10
) -> Kernel:
    """E[phi(bn(z)) phi(bn(z'))^T] for two batches, and a bound on the error of each entry, both (B1, B2).

    (z, z') ~ N(0, [[sigma11, sigma12], [sigma12^T, sigma22]]); with S the same covariance, centred,

        (B1 B2)^(1/2) / pi int int (s t)^(-1/2) det(I + 2 D S)^(-1/2) V_phi(S (I + 2 D S)^-1)_12 ds dt

    where D = s I + t I on the two batches: a sum over nodes (s, t). With y = F e and y' = F' e' in the
    eigenbases and R = cov(e, e'), the factor exp(-s |y|^2) gives cov(e) = A = (I + 2 s values)^-1 and cov(e,
    e') = A R. In the eigenbasis of the resulting covariance of y', the factor exp(-t |y'|^2) is diagonal for
    all t at once. `tol` is the error of the rules for the member of largest value, relative to its scale.
    """
    mean, half = parts_of(slopes)
    R = correlation(one, two, sigma12)
    worst = max(float(np.max(b.peak / np.maximum(b.scale, 1e-3 * b.peak + 1e-300))) for b in (one, two))
    target = max(0.49 * tol / 2 ** ceil(log2(worst)), 4 * ROUNDING * max(one.eps, two.eps))
    (s, weights), (t, other_weights) = root_rule(one, target), root_rule(two, target)
    residual = conditional(two, R)
    F, RL = one.basis * np.sqrt(one.values), R * np.sqrt(two.values)
    variances = _variances(one, two, R, s, t)
    value, total = np.zeros(sigma12.shape), np.zeros(sigma12.shape)
    for piece in pieces(len(s), len(t) * value.size):
        grown = 1 + 2 * s[piece, None] * one.values
        mu, Q = tilted(residual, RL, grown)
        shrink = 1 / (1 + 2 * t[:, None] * mu[:, None, :])
        w = (weights[piece] * root_det(grown))[:, None] * other_weights * root_det(1 / shrink)
        left, right = (F / grown[:, None, :]) @ RL @ Q, np.swapaxes(two.basis @ Q, 1, 2)
        if mean:
            value += np.sum((left * (w[:, None, :] @ shrink)) @ right, axis=0)
        if half:
            root1 = np.sqrt(variances(piece, left, shrink))
            root2 = np.sqrt((mu[:, None, :] * shrink) @ right**2)
            rows = (left[:, None] * inverse(root1)[..., None]) * shrink[:, :, None, :]
            c = np.reshape(rows, (len(rows), -1, rows.shape[-1])) @ right
            c = np.reshape(c, (*root1.shape, -1))
            c *= inverse(root2)[:, :, None, :]
            flat = (np.reshape(x, (-1, *x.shape[2:])) for x in (c, w[..., None] * root1, root2))
            _add_abs(total, *flat)
    value = sqrt(one.size * two.size) * (mean**2 * value + half**2 * total)
    bound = target * (np.outer(one.scale, two.peak) + np.outer(one.peak, two.scale))
    bound += ROUNDING * max(one.eps, two.eps) * np.outer(one.scale, two.scale)
    return value, _bound(slopes, bound, one, two)


def correlation(one: GaussianBatch, two: GaussianBatch, sigma12: np.ndarray) -> np.ndarray:
    """R = cov(e, e') (r1, r2), with its singular values clipped to 1."""
    if sigma12.shape != (one.size, two.size) or not np.isfinite(sigma12).all():
        raise DataError(
            f"the covariance between batches of {one.size} and {two.size} has shape {sigma12.shape}",
            remedy="It must be a finite matrix (B1, B2).",
        )
    left = one.basis / np.sqrt(one.values * one.total)
    right = two.basis / np.sqrt(two.values * two.total)
    u, c, vh = np.linalg.svd(left.T @ relative(sigma12, one.origin, two.origin) @ right, full_matrices=False)
    return (u * np.minimum(c, 1.0)) @ vh


def conditional(two: GaussianBatch, R: np.ndarray) -> np.ndarray:
    """The covariance of L e' given e, L (I - R^T R) L with L^2 = values; zero if it is within rounding."""
    L = np.sqrt(two.values)
    values, vectors = np.linalg.eigh(_symmetric((np.eye(R.shape[1]) - R.T @ R) * L * L[:, None]))
    return (vectors * np.where(values > two.floor, values, 0.0)) @ vectors.T


def tilted(residual: np.ndarray, RL: np.ndarray, grown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (S, r) and vectors (S, r, r) of cov(L e') = rest + L R^T A R L for each A = 1/grown."""
    values, vectors = np.linalg.eigh(_symmetric(residual + RL.T @ (RL / grown[:, :, None])))
    return np.maximum(values, 0.0), vectors


def _variances(
    one: GaussianBatch, two: GaussianBatch, R: np.ndarray, s: np.ndarray, t: np.ndarray
) -> Callable[[slice, np.ndarray, np.ndarray], np.ndarray]:
    """Return a function that gives the variances (S, T, B1) of y at the nodes of a piece.

    They are the variances at t = 0 minus what y' explains. If that difference would cancel too many digits,
    they come from the batches in the other order, as sums of positive terms.
    """
    if 1 + 2 * t[-1] * two.values[-1] < CANCELLATION:
        squares = (one.basis**2 * one.values).T

        def difference(piece: slice, left: np.ndarray, shrink: np.ndarray) -> np.ndarray:
            alone = (1 / (1 + 2 * s[piece, None] * one.values)) @ squares
            told = (2 * t[:, None] * shrink) @ np.swapaxes(left, 1, 2) ** 2
            return np.maximum(alone[:, None, :] - told, 0.0)

        return difference
    mu, Q = tilted(conditional(one, R.T), R.T * np.sqrt(one.values), 1 + 2 * t[:, None] * two.values)
    shrunk = mu[:, None, :] / (1 + 2 * s[:, None] * mu[:, None, :])
    variances = np.swapaxes(shrunk @ np.swapaxes(one.basis @ Q, 1, 2) ** 2, 0, 1)
    return lambda piece, left, shrink: variances[piece]


def _add_abs(total: np.ndarray, c: np.ndarray, root1: np.ndarray, root2: np.ndarray) -> None:
    """Add sum_n v_ni v'_nj g(c_nij) for correlations c (n, B1, B2), which are overwritten.

    E|x x'| = v v' g(c) for deviations v, v',    g(c) = 2/pi ((1 - c^2)^(1/2) + c arcsin c).
    """
    np.clip(c, -1.0, 1.0, out=c)
    g, other = 1 - c, 1 + c
    g *= other
    np.sqrt(g, out=g)
    np.arcsin(c, out=other)
    other *= c
    g += other
    g *= root1[:, :, None]
    total += 2 / pi * np.einsum("nij,nj->ij", g, root2)


def inverse(x: np.ndarray) -> np.ndarray:
    """1/x, and 0 for 0: a member that always equals the mean of its batch."""
    return np.divide(1.0, x, out=np.zeros_like(x), where=x > 0)


def parts_of(slopes: Slopes) -> tuple[float, float]:
    """phi(x) = (a + b)/2 x + (a - b)/2 |x|; the cross terms x |x'| have expectation zero."""
    a, b = slopes
    return (a + b) / 2, (a - b) / 2


def _bound(slopes: Slopes, bound: np.ndarray, one: GaussianBatch, two: GaussianBatch) -> np.ndarray:
    """Return the error of each entry, from the rules and from small eigenvalues of a rounded sigma."""
    rounding = (one.rounding[:, None] + two.rounding) * np.outer(one.scale, two.scale)
    return max(abs(a) for a in slopes) ** 2 * (bound + rounding)


def pieces(count: int, entries: int) -> Iterator[slice]:
    """Yield slices of range(count) with at most 2^16 entries, which stay in the cache, or one node."""
    step = max(1, 2**16 // entries)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + np.swapaxes(matrix, -1, -2)) / 2
