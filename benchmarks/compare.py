"""Compare the time of two checkouts on the same inputs, in turn, on one machine.

python benchmarks/compare.py --base REVISION_OR_FOLDER [--rows NAME] [--rounds 3] [--quick] [--out FILE.md]

Each process is new and computes one row: its first call, then calls for a second, of which the best is the
steady one. The first process of each side begins with an empty cache of compiled loops; the later ones, old
and new in turn, find what it left on disk, and the best of them counts. Writes a Markdown table with ratios
new / old.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from cases import Case, Startup, cases, startup_case
from machine import describe
from measure import Worker, WorkerError, saved, startup
from report import number, pair, table
from run import gap

ROOT = Path(__file__).parents[1]
OLD, NEW = "old", "new"
SLACK, FACTOR = 1.0, 2.0  # a first call should take at most SLACK seconds + FACTOR * the steady one


@dataclass(frozen=True)
class Times:
    """Seconds of one side: the first call with an empty cache, the first call, the steady one."""

    empty: float
    first: float
    steady: float


@dataclass(frozen=True)
class Row:
    """A row of the table; the difference of both values in units of the largest entry."""

    work: str
    old: Times
    new: Times
    difference: float | None
    load: float


@contextmanager
def checkout(base: str) -> Iterator[Path]:
    """The folder of the base: as given, or a worktree of that revision for as long as it is needed."""
    if (Path(base) / "src" / "netsor").is_dir():
        yield Path(base).resolve()
        return
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        done = subprocess.run(
            [*git, "add", "--quiet", "--detach", str(tree), base], capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{base!r} is neither a checkout nor a revision: {done.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


class Comparison:
    """Two checkouts, each with a cache of its own for one row."""

    def __init__(self, base: Path, rounds: int) -> None:
        self.rounds = rounds
        self.sources = {OLD: base / "src", NEW: ROOT / "src"}
        for source in self.sources.values():  # else the first process would compile the modules
            compileall.compile_dir(str(source), quiet=2)

    def variables(self, version: str, caches: Path) -> dict[str, str]:
        return {"PYTHONPATH": str(self.sources[version]), "XDG_CACHE_HOME": str(caches / version)}

    def row(self, case: Case) -> Row:
        side = "netsor-jax" if case.peer == "netsor-jax" else "netsor"
        spec = case.specs()[side]
        runs: dict[str, list[tuple[float, float]]] = {OLD: [], NEW: []}
        values: dict[str, np.ndarray] = {}
        with TemporaryDirectory(dir=Path.home()) as text:  # loops are kept in private folders only
            folder = Path(text)
            np.savez(folder / "inputs.npz", **case.inputs)  # type: ignore[arg-type]
            for turn in range(self.rounds + 1):
                for version in (OLD, NEW) if turn % 2 == 0 else (NEW, OLD):
                    found, values[version] = self.process(side, spec, folder, version)
                    runs[version].append(found)
        times = {version: summary(found) for version, found in runs.items()}
        work = case.title + ("" if case.dtype == "float64" else f", {case.dtype}")
        work += " (JAX)" if side == "netsor-jax" else ""
        return Row(work, times[OLD], times[NEW], gap(values[NEW], values[OLD]), os.getloadavg()[0])

    def process(
        self, side: str, spec: Mapping[str, Any], folder: Path, version: str
    ) -> tuple[tuple[float, float], np.ndarray]:
        """The first and the steady call of a new process, and its value."""
        variables = self.variables(version, folder / "caches")
        inputs, log = folder / "inputs.npz", folder / f"{version}.log"
        worker = Worker(Path(sys.executable), side, spec, inputs, log, variables)
        try:
            first, steady = worker.ask("run")["seconds"], worker.ask("run")["seconds"]
            return (first, steady), saved(worker, folder, version)
        finally:
            worker.close()

    def startup_row(self, case: Startup) -> Row:
        """The whole process in place of a call, so that its first and its steady time are one."""
        pythons = dict.fromkeys((OLD, NEW), Path(sys.executable))
        code = dict.fromkeys((OLD, NEW), case.code["netsor"])
        with TemporaryDirectory(dir=Path.home()) as folder:
            variables = {version: self.variables(version, Path(folder)) for version in code}
            found = startup(pythons, code, self.rounds, variables)
        times = {version: Times(m.first, m.steady, m.steady) for version, m in found.items()}
        title = case.title.partition(";")[0] + (")" if ";" in case.title else "")
        return Row(title, times[OLD], times[NEW], None, os.getloadavg()[0])


def summary(runs: list[tuple[float, float]]) -> Times:
    """The first process, and the best of the later ones."""
    later = runs[1:]
    return Times(runs[0][0], min(first for first, _ in later), min(steady for _, steady in runs))


def markdown(rows: list[Row], about: Mapping[str, str], command: str) -> str:
    header = ["work", "empty cache, s", "ratio", "first call, s", "ratio", "steady, s", "ratio"]
    header += [f"first <= {SLACK:g} s + {FACTOR:g} x steady", "largest difference", "load"]
    lines = []
    for row in rows:
        cells = [row.work]
        for name in ("empty", "first", "steady"):
            old, new = getattr(row.old, name), getattr(row.new, name)
            cells += [pair(old, new), f"{new / old:.2f}"]
        soon = row.new.first <= SLACK + FACTOR * row.new.steady
        lines.append([*cells, "yes" if soon else "no", number(row.difference, ".1e"), f"{row.load:.1f}"])
    parts = [f"Command: `{command}`", table(["", ""], about.items())]
    parts += [
        "Two numbers in a cell: the old code's, then the new code's; ratios are new / old.",
        table(header, lines),
    ]
    return "\n\n".join(parts) + "\n"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", required=True, help="the old code: a checkout's folder, or a revision")
    parser.add_argument("--rows", default="", help="rows whose name begins with one of these (a,b)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side after the first one")
    parser.add_argument("--quick", action="store_true", help="small inputs: a check of the harness")
    parser.add_argument("--out", type=Path, help="a file for the table; else it is printed")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    every: list[Case | Startup] = [*cases(options.quick), startup_case()]
    rows = tuple(options.rows.split(","))
    # old code may have no tangent kernels
    chosen = [case for case in every if case.name.startswith(rows) and not case.name.startswith("ntk")]
    found, failed = [], []
    about = describe()
    with checkout(options.base) as base:
        comparison = Comparison(base, options.rounds)
        for case in chosen:
            try:
                row = comparison.row(case) if isinstance(case, Case) else comparison.startup_row(case)
            except WorkerError as error:
                failed.append(case.name)
                print(f"{case.name}: failed: {error}", file=sys.stderr, flush=True)
                continue
            found.append(row)
            ratios = (
                f"{getattr(row.new, k) / getattr(row.old, k):.2f}" for k in ("empty", "first", "steady")
            )
            print(f"{case.name:18} new / old: " + ", ".join(ratios), file=sys.stderr, flush=True)
    words = [f"--rows {options.rows}"] * bool(options.rows) + ["--quick"] * options.quick
    command = " ".join(["python benchmarks/compare.py --base REVISION", f"--rounds {options.rounds}", *words])
    report = markdown(found, about, command)
    if options.out:
        options.out.write_text(report, encoding="utf-8")
    else:
        print(report)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
