"""Run one side in its own process: read commands from standard input, answer in lines of JSON.

python worker.py SIDE SPEC INPUTS.npz; then `run` (one timed call) or `save FILE` (the last result).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import sides

PROC = Path("/proc")
SECONDS = 1.0  # short calls are repeated for so long, and the best one counts; after a wait the first is slow


def status(pid: int, field: str) -> float:
    """A memory field of /proc/PID/status in MB; 0 if the process has gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":")), 0.0)


def descendants() -> list[int]:
    """The living processes below this one."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= new
    return sorted(found - {os.getpid()})


def cpu_seconds() -> float:
    """Processor time of this process, of its dead children and of its living descendants."""
    total = process_time() + os.times().children_user + os.times().children_system
    for pid in descendants():
        try:
            fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def forget_peak() -> float:
    """Set the peak back to what is in use now; returns that in MB."""
    (PROC / "self" / "clear_refs").write_text("5")
    return status(os.getpid(), "VmRSS")


def peak() -> float:
    """Peak memory of this process and of its living descendants in MB."""
    return sum(status(pid, "VmHWM") for pid in (os.getpid(), *descendants()))


class Task:
    """The computation, made at the first call so that its construction counts there."""

    def __init__(self, side: str, spec: dict[str, Any], inputs: str) -> None:
        self.side, self.spec = side, spec
        sides.load(side)
        with np.load(inputs) as stored:
            self.inputs = dict(stored)
        self.call: Callable[[], np.ndarray] | None = None
        self.value = np.empty(0)
        self.base = forget_peak()

    def run(self) -> dict[str, float]:
        """The time of the first call, or the best of as many as fit into `SECONDS`, at least one."""
        cpu, start = cpu_seconds(), perf_counter()
        first = self.call is None
        if self.call is None:
            self.call = sides.make(self.side, self.spec, self.inputs)
        seconds = [self._timed(start)]
        while not first and perf_counter() - start < SECONDS:
            seconds.append(self._timed(perf_counter()))
        spent = (cpu_seconds() - cpu) / len(seconds)
        return {"seconds": min(seconds), "cpu": spent, "peak": peak() - self.base}

    def _timed(self, start: float) -> float:
        """The seconds from `start` to the end of a call; the last result is not part of its memory."""
        assert self.call is not None
        self.value = np.empty(0)
        self.value = self.call()
        return perf_counter() - start


def main() -> None:
    side, spec, inputs = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the error stream

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    task = Task(side, json.loads(spec), inputs)
    answer({"base": task.base})
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "run":
            answer(task.run())
        elif command == "save":
            np.save(argument, task.value)
            answer({"saved": argument})


if __name__ == "__main__":
    main()
