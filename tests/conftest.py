"""Settings of the whole suite."""

from __future__ import annotations

import os

# Small products everywhere: the threads of BLAS cost more than they save, the more so beside other workers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
