"""Count the calls, files and recordings of three small computations.

python benchmarks/flow.py [--base FOLDER] [--out FILE.md]

They say how far a reader has to jump through the code. Each computation runs in a new process under Python's
profiler, which sees every call of a Python function.

calls       of functions of netsor
files       of netsor that a call enters
switches    calls from one file of netsor into another, directly or through a library
recordings  how often the program is recorded as a tape; one is enough

With --base, another checkout runs the same, and each cell shows `base -> this checkout`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from report import table

ROOT = Path(__file__).parents[1]
TASKS = {
    "mlp": "MLP, first `K(x)`",
    "mlp-evaluate": "MLP, `K.evaluate(x)` after it",
    "gru-evaluate": "GRU, first `K.evaluate(x)`",
}


class Flow:
    """Counts calls of the functions below a folder."""

    # The functions that record a program: on NumPy, and for libraries that compile a whole graph.
    records = (("recording.py", "_recorded"), ("blocks.py", "recorded_blocks"))

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}{os.sep}"
        self.calls = self.switches = self.recordings = 0
        self.files: set[str] = set()

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.folder):
            return
        self.calls += 1
        self.files.add(code.co_filename)
        self.recordings += (Path(code.co_filename).name, code.co_name) in self.records
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self.folder):
            caller = caller.f_back
        self.switches += caller is not None and caller.f_code.co_filename != code.co_filename

    def of(self, call: Callable[[], Any]) -> dict[str, int]:
        sys.setprofile(self.see)
        try:
            call()
        finally:
            sys.setprofile(None)
        return {
            "calls": self.calls,
            "files": len(self.files),
            "switches": self.switches,
            "recordings": self.recordings,
        }


def run(task: str) -> dict[str, int]:
    """The counts of one computation, in this process."""
    import numpy as np

    import netsor as ns
    from netsor.data import sentences

    flow = Flow(Path(ns.__file__).parent)
    if task == "gru-evaluate":
        K = ns.kernel(ns.zoo.gru())
        return flow.of(lambda: K.evaluate([s.vectors for s in sentences()]))
    K, x = ns.kernel(ns.zoo.mlp(depth=3)), np.random.default_rng(0).standard_normal((5, 3))
    if task == "mlp":
        return flow.of(lambda: K(x))
    K(x)
    return flow.of(lambda: K.evaluate(x))


def counted(folder: Path, task: str) -> dict[str, int]:
    """The counts of one computation of a checkout, in a new process."""
    process = subprocess.run(
        [sys.executable, __file__, "--task", task],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONHASHSEED": "0"},
    )
    if process.returncode:
        raise SystemExit(f"{task} failed: {process.stderr.strip()[-600:]}")
    return json.loads(process.stdout)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, help="the folder of another checkout")
    parser.add_argument("--out", type=Path, help="a file for the table; else it is printed")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.task:
        print(json.dumps(run(options.task)))
        return 0
    folders = [ROOT] if options.base is None else [options.base.resolve(), ROOT]
    lines = []
    for task, title in TASKS.items():
        counts = [counted(folder, task) for folder in folders]
        lines.append([title, *(" -> ".join(f"{c[key]:,}" for c in counts) for key in counts[0])])
    report = table(["", *counts[0]], lines) + "\n"
    if options.out:
        options.out.write_text(report, encoding="utf-8")
    else:
        print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
