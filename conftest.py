"""Modules that need an extra are collected where it is installed; their tests say if they are skipped."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

NEED = {
    "torch": [
        "src/netsor/models/pytorch/*",
        "tests/models/library_models.py",
        "tests/models/mutating_models.py",
        "tests/models/refused_models.py",
        "tests/models/torch_models.py",
    ],
    "jax": ["src/netsor/models/jaxpr/*", "tests/models/jax_models.py"],
    "sklearn": ["src/netsor/sklearn/*"],
    "matplotlib": ["src/netsor/plots/*"],
    "jinja2": ["src/netsor/reports/*"],
    "zarr": ["src/netsor/gp/stores/checked.py"],
}
collect_ignore_glob = [path for library, paths in NEED.items() if not find_spec(library) for path in paths]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, a worker runs neighbouring tests, which share what is compiled, imported and kept."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None
