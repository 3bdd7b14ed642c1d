"""The modules that need PyTorch are collected where it is installed; their tests say if they are skipped."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["src/netsor/models/pytorch/*"]
