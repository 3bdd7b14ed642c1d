"""Every argument of every public call, given something that it is not: a number, or a NetsorError."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.errors import NetsorError

X = np.random.default_rng(0).standard_normal((4, 3))
Y, LABELS = np.sin(X[:, 0]), np.array([0, 1, 0, 1])
NET = ns.zoo.mlp(1)
K = ns.kernel(NET, progress=False)
FITTED, CLASSIFIER = ns.gp.fit(K, X, Y, noise=0.1), ns.gp.classify(K, X, LABELS)

JUNK: dict[str, Any] = {
    "None": None,
    "-1": -1,
    "0": 0,
    "word": "a",
    "nothing": "",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "empty list": [],
    "object": object(),
    "seven numbers": np.ones(7),
    "many axes": np.ones((2, 2, 2)),
    "1.5": 1.5,
    "True": True,
    "empty dictionary": {},
    "complex": 1j,
    "enormous": 10**400,
    "dictionary": {"a": 1},
    "list of None": [None],
    "array of words": np.array(["a"]),
    "NaNs": np.full(4, np.nan),
    "no rows": X[:0],
    "range": range(3),
    "bytes": b"x",
    "tuple": (1,),
    "tuple of words": ("a", "b"),
    "type": int,
}


def estimators() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """scikit-learn's classes: their parameters, and X and y of fit."""
    own = pytest.importorskip("netsor.sklearn")
    for name in own.__all__:
        made = getattr(own, name)
        if not inspect.isclass(made) or name == "Architecture":
            continue

        def run(made: Any = made, X: Any = None, y: Any = None, **given: Any) -> None:
            model = made(**given)
            model.fit(X, y) if hasattr(model, "fit") else model(X)

        defaults = {name: p.default for name, p in inspect.signature(made).parameters.items()}
        defaults.pop("tune", None)  # True is no junk, and takes seconds
        yield name, run, {**defaults, "X": X, "y": LABELS if "Classifier" in name else Y}


def calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """The name of a call, the call, and its arguments as they should be."""
    data = {"x": X, "params": None}
    yield "fit", ns.gp.fit, {"kernel": K, **data, "y": Y, "noise": 0.1, "jitter": None}
    yield "classify", ns.gp.classify, {"kernel": K, **data, "labels": LABELS, "noise": 0.1, "jitter": None}
    yield "sample", ns.gp.sample, {"kernel": K, **data, "samples": 2, "seed": 0}
    yield (
        "kernel_gradient",
        ns.gp.kernel_gradient,
        {"kernel": K, **data, "names": None, "method": "differences"},
    )
    search = {"fixed": (), "tied": (), "bounds": (1e-5, 1e5), "restarts": 0, "seed": 0, "steps": 2}
    yield "tune", ns.gp.tune, {"kernel": K, **data, "y": Y, "noise": 0.1, **search, "method": "nelder-mead"}
    flow = {"rate": 1.0, "time": 1.0, "noise": 0.1, "rates": None, "layers": "all"}
    yield "train", ns.gp.train, {"net": NET, "x": X, "y": Y, **flow}
    yield "predict", FITTED.predict, {"x": X}
    yield "posterior", FITTED.sample, {"x": X, "samples": 1, "seed": 0}
    yield "decide", CLASSIFIER.predict, {"x": X}
    trained = ns.gp.train(NET, X, Y)
    yield "ensemble", trained.predict, {"x": X, "time": 1.0}
    yield "loss", trained.loss, {"times": [1.0, 2.0]}
    yield "save", ns.gp.save, {"model": FITTED, "path": "model.npz"}
    yield "load", ns.gp.load, {"path": "model.npz", "net": NET}
    yield (
        "store",
        ns.gp.store,
        {"kernel": K, **data, "path": "K.zarr", "tile": None, "part": None, "engine": None},
    )
    yield "Store", ns.gp.Store, {"path": "there.zarr", "kernel": None}
    yield "simulate", ns.simulate, {"net": NET, "x": X, "width": 16, "samples": 2, "seed": 0}
    yield "empirical_ntk", ns.empirical_ntk, {"net": NET, "x": X, "width": 16, "samples": 2, "seed": 0}
    yield "kernel", ns.kernel, {"net": NET}
    yield "tangent", ns.tangent, {"net": NET, "rates": None}
    yield "K", K, {"x": X, "y": None, "params": None}
    yield "diag", K.diag, data
    yield "evaluate", K.evaluate, {"x": X, "y": None, "params": None}
    yield "plan", K.plan, {"x": X, "y": None, "params": None}
    yield "program", lambda net, x: ns.program(net, x), {"net": NET, "x": X[0]}
    yield "parse", ns.parse, {"text": "Input g :: G(n) ~ N(0, 1)", "functions": None}
    yield from estimators()


CALLS = list(calls())


@pytest.mark.parametrize(
    ("call", "good", "argument"),
    [(call, good, argument) for _, call, good in CALLS for argument in good],
    ids=[f"{name}-{argument}" for name, _, good in CALLS for argument in good],
)
def test_an_argument_that_is_something_else(
    call: Callable[..., Any],
    good: dict[str, Any],
    argument: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    failures = []
    for name, junk in JUNK.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                call(**{**good, argument: junk})
        except NetsorError:
            continue
        except Exception as error:  # what must not happen, whatever it is
            failures.append(f"{name}: {type(error).__name__}: {error}")
    assert not failures
