"""No library of models is imported unless one of its functions is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def loaded_by(code: str) -> set[str]:
    return set(
        json.loads(run(f"import json, sys, netsor as ns; {code}; print(json.dumps(list(sys.modules)))"))
    )


def test_nothing_is_imported_before_it_is_needed():
    loaded = loaded_by("ns.check_import; ns.report_laws")
    assert not loaded & {"torch", "jax", "flax", "equinox", "keras"}
    assert "netsor.models.check" in loaded
    assert "netsor.models" not in loaded_by("ns.kernel")


@pytest.mark.parametrize(("name", "library"), [("from_torch", "torch"), ("from_jax", "jax")])
def test_a_missing_library_is_named(name, library):
    code = (
        f"import sys, netsor as ns; sys.modules['{library}'] = None\n"
        f"try: ns.{name}\nexcept ModuleNotFoundError as error: print(error)"
    )
    assert f"pip install 'netsor[{library}]'" in run(code)
