"""Entries whose quadrature does not settle are sampled: against moments that are known."""

from __future__ import annotations

import numpy as np

from netsor.limits.methods.quadrature import _sampled_where_unsettled


def test_only_rough_entries_are_sampled_and_lie_within_their_errors() -> None:
    """E[x^2 y] = m_y (q + m_x^2) + 2 m_x c, also where the covariance is singular."""
    mean = np.array([[0.3, -0.5], [1.0, 2.0], [0.0, 0.4]])
    cov = np.array([[[1.0, 0.6], [0.6, 2.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.0], [0.0, 0.0]]])
    exact = mean[:, 1] * (cov[:, 0, 0] + mean[:, 0] ** 2) + 2 * mean[:, 0] * cov[:, 0, 1]
    rough = np.array([9.0, 9.0, exact[2]]), np.array([9.0, 9.0, 0.0])
    value, error = _sampled_where_unsettled(lambda z: z[0] ** 2 * z[1], mean, cov, *rough)
    assert value[2] == exact[2]
    assert error[2] == 0.0
    assert np.all(np.abs(value - exact) <= error)
    assert np.all(error[:2] < 1e-2)
