"""Classification on centred one-hot labels, and the calibration of its probabilities."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import DataError

K = ns.kernel(zoo.mlp(2))


def clouds(count: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping clouds of points around the corners of a triangle."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    corners = np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    return corners[labels] + spread * rng.standard_normal((count, 2)), labels


def test_is_regression_on_centred_one_hot_labels() -> None:
    x, labels = clouds(40, 0.4, 0)
    names = np.array(["north", "east", "west"])
    model = ns.gp.classify(K, x[:30], names[labels[:30]], noise=0.1)
    assert list(model.classes) == ["east", "north", "west"]
    table = (names[labels[:30], None] == model.classes) - 1 / 3
    matrix = K(x)
    means = matrix[30:, :30] @ np.linalg.solve(matrix[:30, :30] + 0.1 * np.eye(30), table)
    np.testing.assert_allclose(model.decision(x[30:]), means, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(x[30:]), model.classes[means.argmax(1)])


def test_probabilities_are_calibrated() -> None:
    """On new points the mean probability of the chosen class is the share of right ones."""
    x, labels = clouds(1200, 0.7, 1)
    model = ns.gp.classify(K, x[:300], labels[:300], noise=0.3)
    found = model.probabilities(x[300:])
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
    right = found.argmax(1) == labels[300:]
    confidence = found.max(1)
    error = np.sqrt(np.mean(confidence * (1 - confidence)) / len(right))
    # three standard errors of the share, and as many of a slope learnt from 300 labels
    assert abs(right.mean() - confidence.mean()) < 3 * error * (1 + np.sqrt(900 / 300))
    truth = found[np.arange(900), labels[300:]]
    raw = np.clip(model.decision(x[300:]) + 1 / 3, 1e-6, None)
    raw = (raw / raw.sum(1, keepdims=True))[np.arange(900), labels[300:]]
    assert np.log(truth).mean() > np.log(raw).mean()


def test_slope_is_the_best_one() -> None:
    x, labels = clouds(60, 0.5, 2)
    model = ns.gp.classify(K, x, labels, noise=0.1)
    means = model.gp.leave_one_out().mean
    soft = (np.eye(3)[labels] * 60 + 1) / 63

    def score(slope: float) -> float:
        logits = slope * means
        return float(np.mean(np.sum(soft * (logits - np.log(np.exp(logits).sum(1, keepdims=True))), axis=1)))

    assert score(model.slope) >= max(score(0.99 * model.slope), score(1.01 * model.slope))


def test_separable_labels_keep_a_finite_slope() -> None:
    x = np.array([[1.0, 0.0], [1.1, 0.0], [0.0, 1.0], [0.0, 1.1]])
    model = ns.gp.classify(K, x, [0, 0, 1, 1])
    assert 0 < model.slope < 100
    assert 0.5 < model.probabilities(x)[0, 0] < 1


def test_labels_of_sequences() -> None:
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((t, 2)) for t in (3, 2, 4)]
    labels = [(s[:, 0] > 0).astype(int) for s in x]
    model = ns.gp.classify(ns.kernel(zoo.simple_rnn()), x, labels, noise=0.01)
    np.testing.assert_array_equal(model.predict(x), np.concatenate(labels))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(4), "all labels are"),
        (np.zeros((4, 2)), "shape"),
        (np.array([0, 1, np.nan, 1]), "NaN"),
        (np.array([0, 1, 1]), "shape"),
        (np.array([None, 1, 2, 3], object), "type object"),
    ],
)
def test_bad_labels(labels: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ns.gp.classify(K, np.eye(4), labels)
