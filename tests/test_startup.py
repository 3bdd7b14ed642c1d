"""What a small kernel loads: the time to it is mostly imports, so the heavy ones wait until needed."""

from __future__ import annotations

import json
import subprocess
import sys

import netsor as ns

SMALL = """
import json, sys
import netsor as ns
from netsor.data import sentences
ns.kernel(ns.zoo.simple_rnn())([s.vectors for s in sentences()])
print(json.dumps(sorted(sys.modules)))
"""
HEAVY = (
    "array_api_compat.numpy",
    "jax",
    "lark",
    "matplotlib",
    "netsor.cli",
    "netsor.display",
    "netsor.gp",
    "netsor.lang.syntax",
    "netsor.limits.sampling.kernel",
    "netsor.plots",
    "netsor.reports",
    "netsor.reproduce",
    "netsor.sklearn",
    "numba",
    "numpy.f2py",
    "pandas",
    "rich",
    "scipy",
    "sklearn",
    "torch",
    "typer",
)


def loaded_by(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_a_small_kernel_loads_nothing_heavy() -> None:
    assert loaded_by(SMALL) & set(HEAVY) == set()


def test_what_is_loaded_later_is_there() -> None:
    loaded = loaded_by("import json, sys, netsor\nnetsor.gp.fit\nprint(json.dumps(sorted(sys.modules)))")
    assert {"netsor.gp", "scipy"} <= loaded
    assert loaded_by("import json\nfrom netsor import *\nprint(json.dumps([gp.__name__]))") == {"netsor.gp"}
    assert not hasattr(ns, "no_such_name")
