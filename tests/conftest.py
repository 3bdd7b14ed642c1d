"""Settings of the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Small products everywhere: the threads of BLAS cost more than they save, the more so beside other workers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Most time under JAX goes into compiling programs that run once, on small arrays.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--oracle",
        choices=("stored", "check", "write"),
        default="stored",
        help="take the oracle's answers from their file, compare it with them, or add what the file lacks",
    )
    parser.addoption(
        "--update-snapshots", action="store_true", help="write the snapshots of the tests that run anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (mode := config.getoption("oracle", default="stored")) != "stored":
        from oracle_answers import ANSWERS

        ANSWERS.mode = str(mode)


def pytest_sessionfinish() -> None:
    if "oracle_answers" in sys.modules:
        sys.modules["oracle_answers"].ANSWERS.write()


@pytest.fixture(autouse=True, scope="module")
def _reset_jax() -> Iterator[None]:
    """Compiled functions of all tests together would take gigabytes; double precision is for one module."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        sys.modules["jax"].config.update("jax_enable_x64", False)


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`snapshot(file, text)`: the text equals the file, or becomes it with --update-snapshots."""

    def compare(file: Path, text: str) -> None:
        if request.config.getoption("--update-snapshots", default=False):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n", encoding="utf-8")
        assert file.exists(), f"no snapshot {file.name}; run pytest {file.parent.parent} --update-snapshots"
        assert text + "\n" == file.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own tiles have at most 8 x 8 pairs, so that small kernels have many."""
    from netsor.limits.on_numpy import recording

    monkeypatch.setattr(recording, "TILE", 64)
    monkeypatch.setattr(recording, "LITTLE_WORK", 0)
    monkeypatch.setattr(recording, "FEWEST_FOR_THREADS", 0)
