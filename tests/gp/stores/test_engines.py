"""Who computes the tiles, and what is lost when it is killed: real processes, kill -9, and nothing but tiles
under way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import DataError, NetsorError

pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")
psutil = pytest.importorskip("psutil")

slow = pytest.mark.slow
SCRIPT = """
import sys, numpy as np, netsor as ns
path, engine = sys.argv[1:]
engine = None if engine == "here" else int(engine) if engine.isdecimal() else engine
x = np.random.default_rng(0).standard_normal((1500, 10))
ns.gp.store(ns.kernel(ns.zoo.mlp(3)), x, path, tile=250, engine=engine, progress=False)
"""
X = np.random.default_rng(0).standard_normal((1500, 10))
TILES = 21
SOURCES = str(Path(ns.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
PATIENCE = 120.0


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    return ns.kernel(zoo.mlp(3))(X)


@contextmanager
def process(*arguments: str, **options: Any) -> Iterator[subprocess.Popen]:
    """A process that does not outlive the test."""
    with subprocess.Popen([sys.executable, *arguments], env=ENVIRONMENT, text=True, **options) as started:
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                started.kill()


def storing(path: Path, engine: str) -> Any:
    return process("-c", SCRIPT, str(path), engine, stderr=subprocess.PIPE)


def files(path: Path) -> dict[Path, tuple[int, int]]:
    """The tiles that are there, and when and as what file they were written."""
    found = {}
    for file in path.glob("K/c/*/*"):
        with suppress(FileNotFoundError):
            if file.name.isdecimal():
                found[file] = (file.stat().st_ino, file.stat().st_mtime_ns)
    return found


def wait_for(condition: Any, running: subprocess.Popen) -> None:
    """Until something is so, or the process has ended."""
    start = time.monotonic()
    while not condition() and running.poll() is None:
        assert time.monotonic() - start < PATIENCE, "nothing happens"
        time.sleep(0.01)


def processes(run: subprocess.Popen) -> list[Any]:
    """Those that compute tiles for a run."""
    return [
        child for child in psutil.Process(run.pid).children() if "spawn_main" in " ".join(child.cmdline())
    ]


def kill_and_go_on(path: Path, engine: str, kills: int, wanted: np.ndarray) -> None:
    """Kill the run `kills` times, later and later; what was there is not touched by those that follow."""
    after: dict[Path, tuple[int, int]] = {}
    for k in range(1, kills + 1):
        before = files(path)
        with storing(path, engine) as run:
            wait_for(lambda k=k: len(files(path)) >= min(TILES - 1, k * TILES // (kills + 1)), run)
            run.send_signal(signal.SIGKILL)
            run.wait()
        time.sleep(0.5)  # workers of a killed run see that it is gone
        after = files(path)
        assert before.items() <= after.items()
    with storing(path, engine) as run:
        assert run.wait(PATIENCE) == 0, run.stderr and run.stderr.read()
    assert after.items() <= files(path).items()
    assert not list(path.glob("K/c/*/*.partial"))
    found = ns.gp.Store(path)
    assert found.damaged() == []
    np.testing.assert_array_equal(found.read(), wanted)


@pytest.mark.parametrize("engine", ["here", pytest.param("2", marks=slow)])
def test_a_killed_run_goes_on(engine: str, tmp_path: Path, wanted: np.ndarray) -> None:
    kill_and_go_on(tmp_path / "K.zarr", engine, 1, wanted)


@slow
@pytest.mark.parametrize("engine", ["here", "2"])
def test_a_run_that_is_killed_many_times_goes_on(engine: str, tmp_path: Path, wanted: np.ndarray) -> None:
    kill_and_go_on(tmp_path / "K.zarr", engine, 20, wanted)


@slow
def test_a_killed_worker_is_replaced(tmp_path: Path, wanted: np.ndarray) -> None:
    path = tmp_path / "K.zarr"
    with storing(path, "2") as run:
        wait_for(lambda: len(files(path)) >= 3, run)
        workers = processes(run)
        assert workers
        workers[0].kill()
        assert run.wait(PATIENCE) == 0, run.stderr and run.stderr.read()
    np.testing.assert_array_equal(ns.gp.Store(path).read(), wanted)


@pytest.mark.slow
def test_workers_end_with_the_run(tmp_path: Path) -> None:
    path = tmp_path / "K.zarr"
    with storing(path, "2") as run:
        wait_for(lambda: len(files(path)) >= 1, run)
        workers = processes(run)
        assert workers
        run.kill()
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
    assert not alive


PLANTED = (
    "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nraise SystemExit('planted')\n"
)
HIDDEN = ("cloudpickle", "json", "netsor", "numpy", "pickle", "zarr", "zlib")


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["-P", "-I"])
def test_workers_import_nothing_that_hides_a_package(flag: str, tmp_path: Path) -> None:
    """Flags go on to workers: the current folder is for the network alone, whose own modules are there."""
    (tmp_path / "own.py").write_text("import numpy as np\n\n\ndef act(x):\n    return np.minimum(x, 1.0)\n")
    script = (
        f"import sys\nsys.path.insert(0, {SOURCES!r})\n"
        "import numpy as np, netsor as ns, cloudpickle, zarr, json\n"
        "sys.path.append('')\nimport own\n"
        f"for name in {HIDDEN}:\n    open(name + '.py', 'w').write({PLANTED!r})\n"
        "net = ns.zoo.mlp(1, lambda h: ns.nonlin(own.act, h, name='own'))\n"
        "x = np.random.default_rng(0).standard_normal((5, 3))\n"
        "found = ns.gp.store(ns.kernel(net), x, 'K.zarr', engine=2, progress=False).read()\n"
        "assert np.array_equal(found, ns.kernel(net)(x))\n"
    )
    with process(flag, "-c", script, cwd=tmp_path, stderr=subprocess.PIPE) as run:
        _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said
    assert not list(tmp_path.glob("*.ran"))


@pytest.mark.slow
def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    """Its processes would run the script again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with process(str(script), str(tmp_path / "K.zarr"), "2", stderr=subprocess.PIPE) as run:
        _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    assert "under `if __name__" in said


def test_errors_of_workers_come_back(tmp_path: Path) -> None:
    """A pole at 0, which only the values of the inputs reach."""
    x = X.copy()
    x[700] = 0.0
    with pytest.raises(NetsorError, match="on these inputs"):
        ns.gp.store(ns.kernel(zoo.layernorm_mlp(1, var_b=0.0)), x, tmp_path / "K.zarr", tile=250, engine=2)
    assert files(tmp_path / "K.zarr")


# Dask


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[tuple[str, subprocess.Popen, list[subprocess.Popen]]]:
    """A scheduler and its workers, each a process of its own on this machine."""
    pytest.importorskip("distributed")
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    where = ("--scheduler-file", str(file))
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    single = ("--nthreads", "1", "--no-nanny")
    local = ("--host", "127.0.0.1", "--no-dashboard")
    with process("-m", "distributed.cli.dask_scheduler", *local, "--port", "0", *where, **quiet) as scheduler:
        wait_for(file.exists, scheduler)
        time.sleep(0.5)
        started = [
            process("-m", "distributed.cli.dask_worker", *local, *where, *single, **quiet)
            for _ in range(workers)
        ]
        with ExitStack() as stack:
            running = [stack.enter_context(one) for one in started]
            yield json.loads(file.read_text())["address"], scheduler, running


@pytest.mark.slow
def test_dask(tmp_path: Path, wanted: np.ndarray) -> None:
    """On a cluster; a worker is killed, the others go on."""
    path = tmp_path / "K.zarr"
    with cluster(tmp_path) as (address, _, workers), storing(path, address) as run:
        wait_for(lambda: len(files(path)) >= 4, run)
        workers[0].kill()
        before = files(path)
        assert run.wait(PATIENCE) == 0, run.stderr and run.stderr.read()
        assert before.items() <= files(path).items()
    np.testing.assert_array_equal(ns.gp.Store(path).read(), wanted)


@slow
def test_a_killed_scheduler(tmp_path: Path, wanted: np.ndarray) -> None:
    path = tmp_path / "K.zarr"
    with cluster(tmp_path) as (address, scheduler, _), storing(path, address) as run:
        wait_for(lambda: len(files(path)) >= 4, run)
        scheduler.kill()
        said = run.communicate(timeout=PATIENCE)[1]
        assert run.returncode == 1
        assert "there is no connection to the Dask scheduler" in said
    before = files(path)
    with cluster(tmp_path) as (address, _, _), storing(path, address) as run:
        wait_for(lambda: len(files(path)) >= len(before) + 2, run)
        run.kill()  # the client
        run.wait()
    with storing(path, "here") as run:
        assert run.wait(PATIENCE) == 0, run.stderr and run.stderr.read()
    assert before.items() <= files(path).items()
    np.testing.assert_array_equal(ns.gp.Store(path).read(), wanted)


@pytest.mark.slow
def test_no_scheduler(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(DataError, match="Dask scheduler"):
        ns.gp.store(ns.kernel(zoo.mlp(1)), X[:20], tmp_path / "K.zarr", engine="tcp://127.0.0.1:9")
