"""Modules that need PyTorch are collected where it is installed; their tests say if they are skipped."""

from importlib.util import find_spec

NEED_TORCH = [
    "src/netsor/models/pytorch/*",
    "tests/models/library_models.py",
    "tests/models/refused_models.py",
    "tests/models/torch_models.py",
]
collect_ignore_glob = [] if find_spec("torch") else NEED_TORCH
