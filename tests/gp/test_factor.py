"""Cholesky factors: whole, by blocks, and of what is not positive definite."""

import numpy as np
import pytest

from netsor.gp import factor
from netsor.gp.factor import InferenceError, cholesky


@pytest.mark.parametrize("most", [4, 8, 40, 100])
@pytest.mark.parametrize("rows", [1, 2, 7, 40, 41, 100])
def test_blocks_make_the_same_factor(monkeypatch: pytest.MonkeyPatch, rows: int, most: int) -> None:
    """LAPACK's factor of the whole matrix."""
    monkeypatch.setattr(factor._factorise, "__defaults__", (most,))
    wide = np.random.default_rng(rows).standard_normal((rows, rows + 3))
    matrix = wide @ wide.T
    found, wanted = cholesky(matrix, 1.0), np.linalg.cholesky(matrix + np.eye(rows))
    scale = np.sqrt(np.diagonal(matrix) + 1)[:, None]
    assert np.abs(found - wanted).max(initial=0.0) <= 64 * rows * np.finfo(float).eps * scale.max()
    assert not np.triu(found, 1).any()


def test_a_matrix_that_is_not_positive_is_refused_by_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the smallest eigenvalue of the matrix that was given."""
    monkeypatch.setattr(factor._factorise, "__defaults__", (8,))
    wide = np.random.default_rng(0).standard_normal((30, 30))
    matrix = wide @ wide.T - 3 * np.eye(30)
    lowest = f"{np.linalg.eigvalsh(matrix)[0]:.2g}"
    with pytest.raises(InferenceError, match=f"smallest eigenvalue is {lowest} "):
        cholesky(matrix, 0.0, overwrite=True)
