"""Run the two sides of a row in turn, each in its own process on the same input file."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["Measured", "Worker", "WorkerError", "measure", "saved", "startup"]

HERE = Path(__file__).parent
STARTUP_END = """
import json, os
hwm = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
used = os.times()
print(json.dumps({"peak": int(hwm.split()[1]) / 1024, "cpu": used.user + used.system}))
"""


class WorkerError(RuntimeError):
    """A side failed; the message is the end of what it wrote."""


@dataclass(frozen=True)
class Measured:
    """Seconds of the first call and of the best later one, its CPU seconds, peak MB beyond the import."""

    first: float
    steady: float
    cpu: float
    peak: float
    value: np.ndarray | None = None


class Worker:
    """A process that computes one side on request; `variables` are added to its environment."""

    def __init__(
        self,
        python: Path,
        side: str,
        spec: Mapping[str, Any],
        inputs: Path,
        log: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [str(python), str(HERE / "worker.py"), side, json.dumps(spec), str(inputs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(variables or {})},
            )
        self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise WorkerError(f"exit code {code}: {self.log.read_text().strip()[-600:]}")
        return json.loads(line)

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` says why it ended
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(
    pythons: Mapping[str, Path],
    specs: Mapping[str, Mapping[str, Any]],
    arrays: Mapping[str, np.ndarray],
    rounds: int = 5,
    seconds: float = 60.0,
) -> dict[str, Measured]:
    """All sides of `specs` on the same inputs, in turn; the best of `rounds` calls after the first one.

    After `seconds` no further round is begun, but there is always one.
    """
    with TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        workers: dict[str, Worker] = {}
        try:
            for side, spec in specs.items():
                log = Path(folder) / f"{side}.log"
                workers[side] = Worker(pythons[side], side, spec, inputs, log)
            runs = rounds_of(workers, rounds, seconds)
            return {side: summary(runs[side], saved(w, Path(folder), side)) for side, w in workers.items()}
        finally:
            for worker in workers.values():
                worker.close()


def rounds_of(
    workers: Mapping[str, Worker], rounds: int, seconds: float
) -> dict[str, list[dict[str, float]]]:
    """The first call of each side, then rounds of one call each."""
    runs = {side: [worker.ask("run")] for side, worker in workers.items()}
    start, done = perf_counter(), 0
    while done < 1 or (done < rounds and perf_counter() - start < seconds):
        for side, worker in workers.items():
            runs[side].append(worker.ask("run"))
        done += 1
    return runs


def saved(worker: Worker, folder: Path, side: str) -> np.ndarray:
    path = folder / f"{side}.npy"
    worker.ask(f"save {path}")
    return np.load(path)


def summary(runs: list[dict[str, float]], value: np.ndarray | None) -> Measured:
    best = min(runs[1:], key=lambda run: run["seconds"])
    return Measured(runs[0]["seconds"], best["seconds"], best["cpu"], max(run["peak"] for run in runs), value)


def startup(
    pythons: Mapping[str, Path],
    code: Mapping[str, str],
    rounds: int = 5,
    variables: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Measured]:
    """Time from the start of a process to its end, for a short program of each side; memory is the total.

    `variables` are added to the environment of a side.
    """
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in code}
    for _ in range(rounds + 1):
        for side, text in code.items():
            start = perf_counter()
            done = subprocess.run(
                [str(pythons[side]), "-c", text + STARTUP_END],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONWARNINGS": "ignore", **(variables or {}).get(side, {})},
            )
            elapsed = perf_counter() - start
            if done.returncode:
                raise WorkerError(done.stderr.strip()[-600:])
            runs[side].append({"seconds": elapsed, **json.loads(done.stdout.splitlines()[-1])})
    return {side: summary(found, None) for side, found in runs.items()}
