"""Modules that need an extra are collected where it is installed; their tests say if they are skipped."""

from importlib.util import find_spec

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
    "vl_convert": ["src/netsor/reports/*"],
    "zarr": ["src/netsor/gp/stores/checked.py"],
}
collect_ignore_glob = [path for library, paths in NEED.items() if not find_spec(library) for path in paths]
