"""Derivatives of batchnorm: E[phi'(bn(y))_i bn(y)'[t]_i  psi'(bn(y'))_j bn(y')'[t']_j] for Gaussian y and t.

The directions t and t' are independent of the batches y and y', with covariance T = E[t t'^T] (all centred
over the batch). bn(y)'[t] = sqrt(B) (t / |y| - y (y.t) / |y|^3) is the derivative of bn along t. By Price's
theorem, the expectation is the derivative of E[phi(bn(y)) psi(bn(y'))^T] as cov(y, y') moves along T, also
under the integrals of `second_moments.py`. With M the covariance of (y, y') shrunk by
exp(-s |y|^2 - t |y'|^2),

    dM12 = X T Y + 4 s t M12 T^T M12,    X = I - 2 s M11,    Y = I - 2 t M22,
    dM11 = -2 t (X T M12^T + its transpose),    dM22 = -2 s (M12^T T Y + its transpose),
    d log det(I + 2 D S)^(-1/2) = 4 s t tr(M12 T^T),

and for entries with variances q, q' and covariance c = rho (q q')^(1/2),

    d E|x x'| = 2/pi (arcsin(rho) dc + (q q' - c^2)^(1/2) (dq/q + dq'/q') / 2).

Within a batch y' = y, and M depends only on u = s + t. Averaged over s and t with s + t = u, whose density is
(s t)^(-1/2) / pi, the factors s, t and s t are u/2, u/2 and u^2/8. So a single integral remains.

All terms are of the size of T / (|y| |y'|), and 1/|y|^2 has an expectation for batches of rank 3 and more,
but not for rank 2 (a batch of 3, or inputs of 2 numbers). For rank 1, bn is a sign: the derivative is 0.
"""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.batchnorm.batch_law import GaussianBatch, exponential_nodes, relative, root_det, slope_rule
from netsor.expect.batchnorm.second_moments import (
    EPS,
    ROUNDING,
    Kernel,
    Slopes,
    are_multiples,
    conditional,
    correlation,
    for_each_pair,
    inverse,
    parts_of,
    pieces,
    tilted,
)

BothSlopes = tuple[Slopes, Slopes]  # of phi and of psi, above and below 0


def slope_moments(
    left: np.ndarray, right: np.ndarray, cross: np.ndarray, theta: np.ndarray, slopes: BothSlopes
) -> Kernel:
    """Return the moments and bounds on their errors, for pairs of batches over axes that broadcast.

    left, right, cross  covariances `(..., members, members)` of the batches, as for `second_moments`
    theta               covariance of their directions, of the shape of `cross`
    """

    def kernel(one: GaussianBatch, two: GaussianBatch, sigma12: np.ndarray, T: np.ndarray) -> Kernel:
        alone = are_multiples(one, two, sigma12)
        if alone:
            two, T = one, T / sqrt(two.total / one.total)
        T, lost = _directions(one, two, T)
        if not (_moves(one, T, lost) and _moves(two, T, lost)):
            return np.zeros(sigma12.shape), np.zeros(sigma12.shape)
        tol = 0.0 if alone else 1e-10
        value, rounding = within(one, T, slopes) if alone else across(one, two, sigma12, T, slopes, tol)
        return value, rounding + _bound(one, two, T, lost, slopes, 3 * tol)

    return for_each_pair(kernel, left, right, cross, theta, symmetric=slopes[0] == slopes[1])


def within(batch: GaussianBatch, T: np.ndarray, slopes: BothSlopes) -> Kernel:
    """Return the moments of a batch with itself, (B, B), and their rounding."""
    total, rounding = (np.zeros((batch.size, batch.size)) for _ in range(2))
    # The part beyond the end is exp(-37).
    nodes, weights = exponential_nodes(37.0 / (len(batch.values) / 2 - 1) - log(batch.values[0]))
    for piece in pieces(len(nodes), total.size):
        u = nodes[piece, None]
        grown = 1 + 2 * u * batch.values
        P, u = batch.values / grown, u[..., None]
        PTP = u**2 / 2 * P[:, :, None] * (T + T.T) * P[:, None, :]
        dM11, dM22 = (PTP - u * (P[:, :, None] * A + A.T * P[:, None, :]) for A in (T.T, T))
        dM12 = T - u * (P[:, :, None] * T + T * P[:, None, :]) + PTP
        unit = batch.basis * np.sqrt(P)[:, None, :]
        q = np.sum(unit**2, axis=-1)
        unit *= inverse(np.sqrt(q))[..., None]
        dq, dr = (_variances(batch, m) for m in (dM11, dM22))
        tau = u**2 / 2 * np.sum(P * np.diagonal(T), axis=-1)[:, None, None]
        angle = _angles(unit)
        law = angle, np.cos(angle), np.sin(angle)
        value, size = _derivative((q, q), (dq, dr), law, _members(batch, dM12, batch), tau, slopes)
        w = (weights[piece] * root_det(grown))[:, None, None]
        total += np.sum(w * value, axis=0)
        rounding += ROUNDING * EPS * np.sum(w * size, axis=0)
    return batch.size * total, batch.size * rounding


def across(
    one: GaussianBatch, two: GaussianBatch, sigma12: np.ndarray, T: np.ndarray, slopes: BothSlopes, tol: float
) -> Kernel:
    """The moments of two batches, (B1, B2), by rules for |y|^-1 and |y|^-3 on either side; their rounding."""
    total, rounding = (np.zeros(sigma12.shape) for _ in range(2))
    R = correlation(one, two, sigma12)
    (nodes, weights), (t, other_weights) = (slope_rule(b, tol) for b in (one, two))
    t = t[:, None]
    doubt = 4e-10  # relative error of sigma12 from the integrals of the layer before
    F, L = np.sqrt(one.values), np.sqrt(two.values)
    grown = 1 + 2 * nodes[:, None] * one.values
    mu, Q = tilted(conditional(two, R), R * L, grown)
    nu, U = tilted(conditional(one, R.T), R.T * F, 1 + 2 * t * two.values)
    left = ((F / grown)[:, :, None] * R * L) @ Q
    for piece in pieces(len(nodes), len(t) * max(total.size, one.size**2, two.size**2)):
        s, basis = nodes[piece, None, None], Q[piece, None]
        fall1, fall2 = 1 / (1 + 2 * s * nu), 1 / (1 + 2 * t * mu[piece, None, :])
        turned = np.swapaxes(basis, -1, -2)
        X, Y = (U * fall1[..., None, :]) @ np.swapaxes(U, 1, 2), (basis * fall2[..., None, :]) @ turned
        M12 = (left[piece, None] * fall2[..., None, :]) @ turned
        XT, TY, st = X @ T, T @ Y, (s * t)[..., None]
        dM12 = XT @ Y + 4 * st * M12 @ (T.T @ M12)
        tau = 4 * st * np.sum(M12 * T, axis=(-2, -1), keepdims=True)
        q1 = ((one.basis @ U) ** 2 @ (nu * fall1)[..., None])[..., 0]
        q2 = ((two.basis @ basis) ** 2 @ (mu[piece, None, :] * fall2)[..., None])[..., 0]
        d1 = -4 * t * np.sum((one.basis @ XT) * (one.basis @ M12), axis=-1)
        d2 = -4 * s * np.sum((M12 @ two.basis.T) * (TY @ two.basis.T), axis=-2)
        rho = _members(one, M12, two) * inverse(np.sqrt(q1))[..., None] * inverse(np.sqrt(q2))[..., None, :]
        rho = np.clip(rho, -1.0, 1.0)
        law = np.arccos(rho), rho, np.sqrt((1 - rho) * (1 + rho))
        value, size = _derivative((q1, q2), (d1, d2), law, _members(one, dM12, two), tau, slopes)
        w = (weights[piece] * root_det(grown[piece]))[:, None] * other_weights * root_det(1 / fall2)
        total += np.einsum("st,stij->ij", w, value)
        # Angles near 0 have half the digits of sigma12; eigenvalues have the absolute error of the
        # largest one.
        near = doubt / np.sqrt(np.maximum(law[2] ** 2, doubt))
        small = np.minimum(1.0, ROUNDING * EPS * np.maximum(t * mu[piece, None, -1:], s * nu[:, -1:]))
        rounding += np.einsum("st,stij->ij", w, size * (near + small[..., None]))
    scale = sqrt(one.size * two.size)
    return scale * total, scale * rounding


def _derivative(
    q: tuple[Any, Any], dq: tuple[Any, Any], law: Any, dc: Any, tau: Any, slopes: BothSlopes
) -> tuple[Any, Any]:
    """d (det^(-1/2) E[phi(x) psi(x')]) / det^(-1/2), and the sum of the sizes of its terms.

    q, dq  variances (..., B) of the two sides, and their changes;  tau  change of log det^(-1/2)
    law    arccos of the correlations (..., B1, B2), the correlations, their sine;  dc  change of covariances
    """
    (mean, half), (other_mean, other_half) = map(parts_of, slopes)
    root = np.sqrt(q[0])[..., None] * np.sqrt(q[1])[..., None, :]
    ratio = ((dq[0] * inverse(q[0]))[..., None] + (dq[1] * inverse(q[1]))[..., None, :]) / 2
    angle, cosine, sine = law[0], root * law[1], root * law[2]
    straight = dc + tau * cosine
    bent = 2 / pi * ((pi / 2 - angle) * straight + sine * (tau + ratio))
    size = np.abs(dc) + np.abs(tau) * root + sine * np.abs(ratio)
    return mean * other_mean * straight + half * other_half * bent, size


def _angles(unit: np.ndarray) -> np.ndarray:
    """Return the angles of unit vectors (..., B, r); for nearly parallel ones from their distance.

    arccos loses half of the digits near 1 and -1.
    """
    c = np.clip(unit @ np.swapaxes(unit, -1, -2), -1.0, 1.0)
    angle = np.arccos(c)
    at, i, j = np.nonzero(np.abs(c) > 0.9)
    sign = np.sign(c[at, i, j])
    gap = np.linalg.norm(unit[at, i] - sign[:, None] * unit[at, j], axis=-1)
    small = 2 * np.arcsin(np.minimum(gap / 2, 1.0))
    angle[at, i, j] = np.where(sign > 0, small, pi - small)
    return angle


def _directions(one: GaussianBatch, two: GaussianBatch, theta: np.ndarray) -> tuple[np.ndarray, float]:
    """Return T in the eigenbases of batches of total variance 1, and the largest entry outside of these."""
    centred = relative(theta, one.origin, two.origin) / sqrt(one.total * two.total)
    centred = centred - centred.mean(0)
    centred = centred - centred.mean(1)[:, None]
    T = one.basis.T @ centred @ two.basis
    return T, float(np.max(np.abs(centred - one.basis @ T @ two.basis.T)))


def _moves(batch: GaussianBatch, T: np.ndarray, lost: float) -> bool:
    """Return whether batchnorm depends on its members; refuse a derivative without a second moment."""
    rank, size = len(batch.values), float(np.max(np.abs(T), initial=0.0))
    if size + lost == 0 or (rank == 1 and lost <= 1e-6 * size):
        return False
    if rank < 3:
        raise LimitError(
            f"batchnorm of members that span {rank} dimension{'s' * (rank > 1)} has no tangent kernel",
            remedy="Its derivative is as large as 1/|x - mean|, whose square has no expectation if the "
            "preactivations of a batch, less their mean, span fewer than 3 dimensions. Take inputs of more "
            "numbers, or an eps > 0.",
        )
    return True


def _members(one: GaussianBatch, m: np.ndarray, two: GaussianBatch) -> np.ndarray:
    """Transform a matrix from the eigenbases to the members: (..., B1, B2)."""
    return one.basis @ m @ two.basis.T


def _variances(batch: GaussianBatch, m: np.ndarray) -> np.ndarray:
    """Return the diagonal of a matrix of the members, (..., B)."""
    return np.sum((batch.basis @ m) * batch.basis, axis=-1)


def _bound(
    one: GaussianBatch, two: GaussianBatch, T: Any, lost: float, slopes: BothSlopes, rules: float
) -> np.ndarray:
    """Bound the error of the rules, of small eigenvalues of a rounded sigma, and of the dropped part of T.

    By Cauchy and Schwarz E[1/(|y| |y'|)] <= (E[1/|y|^2] E[1/|y'|^2])^(1/2), and |y_i| <= p_i |y|.
    """
    p, r = (np.sqrt(np.sum(b.basis**2, axis=1)) for b in (one, two))
    rows, columns = np.linalg.norm(one.basis @ T, axis=1), np.linalg.norm(T @ two.basis.T, axis=0)
    size = np.abs(_members(one, T, two)) + np.outer(p, columns) + np.outer(rows, r)
    size += np.linalg.norm(T, 2) * np.outer(p, r)
    scale = sqrt(one.size * two.size * one.slope_law.mass * two.slope_law.mass)
    top = max(map(abs, slopes[0])) * max(map(abs, slopes[1]))
    rounding = one.slope_law.rounding + two.slope_law.rounding
    return scale * top * (size * (rules + rounding) + 4 * lost)
