"""Every argument of every public call, given something that it is not: this value, or a NetsorError.

The folder `arguments` has a file for each call that says which; `--update-snapshots` writes them anew.
"""

from __future__ import annotations

import inspect
import re
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

FOLDER = Path(__file__).parent / "arguments"

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

        def run(made: Any = made, X: Any = None, y: Any = None, **given: Any) -> Any:
            model = made(**given)
            if not hasattr(model, "fit"):
                return model(X)
            fitted = model.fit(X, y)
            return fitted.predict(X) if hasattr(fitted, "predict") else fitted.transform(X)

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


CALLS = {name: (call, good) for name, call, good in calls()}


def described(value: Any) -> str:
    """A value by its type and the norms of its numbers, to four digits."""
    if value is None or isinstance(value, bool | str):
        return repr(value)
    if isinstance(value, np.ndarray | np.generic | int | float):
        array = np.asarray(value)
        shape = f"{array.dtype}{list(array.shape)}" if array.ndim else str(array.dtype)
        if array.dtype.kind not in "biuf":
            return shape
        norm = np.linalg.norm(array.astype(float))
        return f"{shape} {norm:.4g}" if norm > 1e-5 else f"{shape} about 0"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(described, value))})"
    if isinstance(value, ns.gp.Store):
        return f"Store of {described(value.read())}"
    if isinstance(value, ns.Program):
        return f"Program of {len(value.statements)} statements"
    if hasattr(value, "predict"):
        return f"{type(value).__name__} that predicts {described(value.predict(X))}"
    if isinstance(value, ns.gp.Tuned):
        return f"Tuned to {described(list(value.params.values()))}"
    arrays = {k: x for k, x in sorted(getattr(value, "__dict__", {}).items()) if isinstance(x, np.ndarray)}
    return " ".join([type(value).__name__, *(f"{name}={described(x)}" for name, x in arrays.items())])


def outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """What a call gives: a value, or a NetsorError; whatever else it raises must not happen."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return described(call(**arguments))
    except NetsorError as error:
        return type(error).__name__
    except Exception as error:
        return f"MUST NOT HAPPEN {type(error).__name__}: {error}"


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_that_is_something_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Callable[[Path, str], None]
) -> None:
    call, good = CALLS[name]
    lines = []
    for argument in good:
        (tmp_path / argument).mkdir()
        monkeypatch.chdir(tmp_path / argument)
        outcomes: dict[str, list[str]] = {}
        for junk, value in JUNK.items():
            what = outcome(call, {**good, argument: value})
            if argument == "seed" and value is None:  # random numbers: what they are like
                what = re.sub(r" \d[\d.e-]*", "", what)
            outcomes.setdefault(what, []).append(junk)
        most = max(outcomes, key=lambda what: len(outcomes[what]))
        lines.append(argument)
        lines += [f"    {', '.join(names)}: {what}" for what, names in outcomes.items() if what != most]
        lines.append(f"    {'the others' if len(outcomes) > 1 else 'all'}: {most}")
    text = "\n".join(lines)
    assert "MUST NOT HAPPEN" not in text
    snapshot(FOLDER / f"{name}.txt", text)
