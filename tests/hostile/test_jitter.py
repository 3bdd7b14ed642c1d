"""A jitter that takes the place of the noise is never silent, whatever route leads to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.cli import app
from netsor.errors import NetsorWarning
from netsor.gp.factor import warn_of_jitter

X = np.random.default_rng(0).standard_normal((6, 3, 2))
Y = np.sin(np.arange(18.0))
ROUGH = ns.kernel(ns.zoo.gru(), points=2**6)
EXACT = ns.kernel(ns.zoo.simple_rnn())
OVERRIDDEN = "is raised by .* not by the noise of"


def _routes(tmp_path: Path) -> dict[str, Callable[[Any, float], Any]]:
    """Every way to condition on data, with a kernel and a noise."""

    def stored(solver: str) -> Callable[[Any, float], Any]:
        def run(K: Any, noise: float) -> Any:
            pytest.importorskip("zarr")
            store = ns.gp.store(K, X, tmp_path / f"{solver}.zarr")
            return ns.gp.fit(store, Y, noise=noise, solver=solver, progress=False)

        return run

    def tuned(K: Any, noise: float) -> Any:
        return ns.gp.tune(K, X, Y, noise=noise, fixed=[*K.params, "noise"], progress=False)

    return {
        "fit": lambda K, noise: ns.gp.fit(K, X, Y, noise=noise),
        "classify": lambda K, noise: ns.gp.classify(K, X, Y > 0, noise=noise),
        "train": lambda K, noise: ns.gp.train(
            K.net, X, Y, noise=noise, layers="last", points=K.options.points
        ),
        "tune": tuned,
        "store, cholesky": stored("cholesky"),
        "store, pcg": stored("pcg"),
    }


ROUTES = ("fit", "classify", "train", "tune", "store, cholesky", "store, pcg")


@pytest.mark.parametrize("route", ROUTES)
def test_a_jitter_above_the_noise_is_reported(route: str, tmp_path: Path) -> None:
    with pytest.warns(NetsorWarning, match=OVERRIDDEN) as seen:
        _routes(tmp_path)[route](ROUGH, 1e-5)
    assert seen[0].filename == __file__  # at the line of the user
    assert "points=" in str(seen[0].message)
    assert ("landmarks=" if "store" in route else "tol=") in str(seen[0].message)


@pytest.mark.parametrize("route", ROUTES)
def test_enough_noise_or_an_exact_kernel_is_silent(route: str, tmp_path: Path) -> None:
    """Warnings are errors in this suite."""
    _routes(tmp_path)[route](EXACT, 1e-12)
    _routes(tmp_path / "rough")[route](ROUGH, 0.1)


def test_scikit_learn_reports_it() -> None:
    pytest.importorskip("sklearn")
    from netsor.sklearn import NNGPRegressor

    parts, v = [ns.Matrix() for _ in range(4)], ns.Matrix(rows=1)

    @ns.network
    def maxout(x):
        return v @ ns.max(ns.stack([part @ x for part in parts]), axis=0)

    model = NNGPRegressor(maxout, noise=1e-5, kernel_options={"points": 2**6})
    with pytest.warns(NetsorWarning, match=OVERRIDDEN):
        model.fit(X.reshape(6, 6), Y[:6])


def test_the_command_line_reports_it_as_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zarr")
    np.save(tmp_path / "y.npy", Y)
    ns.gp.store(ROUGH, X, tmp_path / "K.zarr")
    words = [
        "fit",
        f"{tmp_path}/K.zarr",
        f"{tmp_path}/y.npy",
        "--noise",
        "1e-5",
        "-o",
        f"{tmp_path}/m.npz",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        app(words, standalone_mode=False)  # the runner of old versions of click has one stream for both
    shown = capsys.readouterr().err
    assert "Warning: the diagonal of the kernel matrix is raised by" in shown
    assert ".py:" not in shown


@pytest.mark.parametrize(
    ("jitter", "noise", "warned"),
    [
        (417.0, 1e-3, True),  # of variances of 445
        (1e-10, 0.0, False),  # rounding, in double
        (1e-5 * 445, 0.0, False),
        (2e-4 * 445, 0.0, True),
        (1e-10, 1e-14, False),
        (0.09, 0.01, False),  # nine times the noise, and far below a percent
        (0.11, 0.01, True),
        (4.0, 4.1, False),  # the noise decides
        (4.6, 4.1, True),  # more than a percent
    ],
)
def test_the_rule(jitter: float, noise: float, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of_jitter(jitter, noise, np.full(4, 445.0))
    assert bool(seen) == warned


def test_single_precision_is_not_silent() -> None:
    """Its rounding asks for 8e-4 of the variances: a noise that nobody gave."""
    x = np.random.default_rng(1).standard_normal((200, 4))
    with pytest.warns(NetsorWarning, match=OVERRIDDEN):
        ns.gp.fit(ns.kernel(ns.zoo.mlp(3, ns.erf), dtype=np.float32), x, np.sin(x[:, 0]))
    ns.gp.fit(ns.kernel(ns.zoo.mlp(3, ns.erf)), x, np.sin(x[:, 0]))


def test_a_jitter_that_was_asked_for_is_silent() -> None:
    ns.gp.fit(ROUGH, X, Y, jitter=0.5)
