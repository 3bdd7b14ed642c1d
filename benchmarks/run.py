"""Compare time and memory of netsor with its peers, on the same inputs, in one run, on the same cores.

python benchmarks/run.py [--only NAME] [--quick] [--alone] [--out FOLDER]

Makes the peers' environments at the first run, then runs both sides of every piece of work in turn in
processes of their own, checks that their values agree, and writes table.csv, report.md, scaling.csv,
exponents.csv and scaling.png. The exit code is 1 if values do not agree or a side fails.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cases import Case, Startup, cases, startup_case
from environments import PACKAGES, interpreters
from machine import Limits, describe, limits
from measure import Measured, WorkerError, measure, startup
from report import Row, markdown, plot, slopes, write_csv
from scaling import Curve, Point, curves


@dataclass(frozen=True)
class Runner:
    """The settings of a run."""

    alone: bool
    quick: bool
    rounds: int
    seconds: float
    machine: Limits

    def row(self, case: Case) -> Row:
        specs = case.specs(self.alone)
        found = measure(interpreters(set(specs)), specs, case.inputs, self.rounds, self.seconds)
        ours = found["netsor"]
        peer = found.get(case.peer or "")
        difference = None if peer is None else gap(value(ours), value(peer))
        error = None
        if case.reference is not None:
            rows, want = case.reference()
            error = gap(value(ours)[np.ix_(rows, rows)], want)
        limit = (
            None
            if case.work is None
            else self.machine.seconds(*case.work) * np.dtype(case.dtype).itemsize / 8
        )
        ratio = None if peer is None else peer.steady / ours.steady
        return Row(
            name=case.name,
            work=case.title + (f", {case.dtype}" if case.dtype != "float64" else ""),
            peer=case.peer,
            **peer_columns(peer),
            first=ours.first,
            steady=ours.steady,
            cpu=ours.cpu,
            memory=ours.peak,
            ratio=ratio,
            cpu_ratio=cpu_ratio(peer, ours),
            target=target_text(case),
            met=None if self.quick else met(case, ratio, ours.peak),
            difference=difference,
            allowed=None if peer is None else case.difference,
            error=error,
            allowed_error=case.error,
            agrees=agrees([(difference, case.difference), (error, case.error)]),
            limit=limit,
            reached=None if limit is None else limit / ours.steady,
            load=os.getloadavg()[0],
        )

    def startup_row(self, case: Startup) -> Row:
        code = {side: text for side, text in case.code.items() if side == "netsor" or not self.alone}
        found = startup(interpreters(set(code)), code, self.rounds)
        ours, peer = found["netsor"], found.get(case.peer)
        return Row(
            name=case.name,
            work=case.title,
            peer=case.peer,
            **peer_columns(peer),
            first=ours.first,
            steady=ours.steady,
            cpu=ours.cpu,
            memory=ours.peak,
            ratio=None if peer is None else peer.steady / ours.steady,
            cpu_ratio=cpu_ratio(peer, ours),
            target=f"<= {case.seconds:g} s, <= {case.memory:g} MB in all",
            met=ours.steady <= case.seconds and ours.peak <= case.memory,
            difference=None,
            allowed=None,
            error=None,
            allowed_error=None,
            agrees=None,
            limit=None,
            reached=None,
            load=os.getloadavg()[0],
        )

    def points(self, curve: Curve) -> list[Point]:
        found = []
        for number, case in curve.cases():
            specs = case.specs(self.alone or number in curve.beyond)
            sides = measure(interpreters(set(specs)), specs, case.inputs, self.rounds, self.seconds)
            for side, measured in sides.items():
                found.append(Point(curve.name, curve.variable, side, number, measured.steady, measured.peak))
        return found


def value(measured: Measured) -> np.ndarray:
    assert measured.value is not None
    return measured.value


def gap(ours: np.ndarray, want: np.ndarray) -> float:
    """The largest difference in units of the largest entry; infinite if values or shapes make no sense."""
    if ours.shape != want.shape or not np.isfinite(ours).all():
        return float("inf")
    return float(np.abs(ours.astype(float) - want.astype(float)).max() / np.abs(want).max())


def agrees(pairs: list[tuple[float | None, float | None]]) -> bool | None:
    """Whether every difference that was measured is within what is allowed; None if none was."""
    checked = [found <= allowed for found, allowed in pairs if found is not None and allowed is not None]
    return all(checked) if checked else None


def peer_columns(peer: Measured | None) -> dict[str, float | None]:
    if peer is None:
        return dict.fromkeys(("peer_first", "peer_steady", "peer_cpu", "peer_memory"))
    return {
        "peer_first": peer.first,
        "peer_steady": peer.steady,
        "peer_cpu": peer.cpu,
        "peer_memory": peer.peak,
    }


def cpu_ratio(peer: Measured | None, ours: Measured) -> float | None:
    """The ratio of processor seconds, which other users of the machine disturb less than the time."""
    return None if peer is None or ours.cpu <= 0 else peer.cpu / ours.cpu


def target_text(case: Case) -> str:
    parts = [] if case.target is None else [f">= {case.target:g}"]
    return ", ".join(parts + ([] if case.memory is None else [f"<= {case.memory:.0f} MB"]))


def met(case: Case, ratio: float | None, peak: float) -> bool | None:
    checks = []
    if case.target is not None and ratio is not None:
        checks.append(ratio >= case.target)
    if case.memory is not None:
        checks.append(peak <= case.memory)
    return all(checks) if checks else None


def shown(row: Row) -> str:
    theirs = "       -" if row.peer_steady is None else f"{row.peer_steady:8.4g}"
    ratio = "      -" if row.ratio is None else f"{row.ratio:7.3g}"
    gaps = [f"{x:.1e}" for x in (row.difference, row.error) if x is not None]
    return (
        f"{row.name:18}{theirs} s {row.steady:8.4g} s  ratio {ratio}  {row.memory:6.0f} MB  {', '.join(gaps)}"
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="rows and curves whose name begins with one of these (a,b)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small inputs: a check of the harness, not of speed"
    )
    parser.add_argument("--alone", action="store_true", help="netsor without its peers")
    parser.add_argument("--no-scaling", action="store_true", help="the table only")
    parser.add_argument(
        "--rounds", type=int, default=5, help="calls after the first one, of which the best counts"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="no new round of a row after this time")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    return parser.parse_args(arguments)


def command(arguments: list[str]) -> str:
    """The command of this run without the place of its results."""
    at = arguments.index("--out") if "--out" in arguments else len(arguments)
    return " ".join(["python benchmarks/run.py", *arguments[:at], *arguments[at + 2 :]])


def run_table(runner: Runner, chosen: list[Case | Startup], failed: list[str], out: Path) -> list[Row]:
    rows = []
    for case in chosen:
        try:
            row = runner.row(case) if isinstance(case, Case) else runner.startup_row(case)
        except WorkerError as error:
            failed.append(case.name)
            print(f"{case.name:18}failed: {error}", flush=True)
            continue
        rows.append(row)
        write_csv(out / "table.csv", rows)
        print(shown(row), flush=True)
        if row.agrees is False:
            failed.append(case.name)
    return rows


def run_curves(runner: Runner, chosen: list[Curve], failed: list[str]) -> list[Point]:
    points: list[Point] = []
    for curve in chosen:
        try:
            points += runner.points(curve)
        except WorkerError as error:
            failed.append(curve.name)
            print(f"{curve.name}: failed: {error}", flush=True)
            continue
        for slope in slopes([curve], points):
            fit = f"seconds ~ {slope.variable}^{slope.fitted:.2f}"
            print(f"{curve.name:26}{slope.side:16}{fit}  (theory {slope.theory:g})", flush=True)
    return points


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    names = tuple(options.only.split(","))
    about = describe()
    machine = limits(options.quick)
    about |= {
        "peers": ", ".join(p for packages in PACKAGES.values() for p in packages),
        "multiply-add limit (matrix product)": f"{machine.flops / 2e9:.1f} G per second",
        "memory limit (copy)": f"{machine.bandwidth / 1e9:.1f} GB per second",
    }
    print("\n".join(f"{key}: {text}" for key, text in about.items()), end="\n\n", flush=True)
    runner = Runner(options.alone, options.quick, options.rounds, options.seconds, machine)
    failed: list[str] = []
    options.out.mkdir(parents=True, exist_ok=True)
    every: list[Case | Startup] = [*cases(options.quick), startup_case()]
    rows = run_table(runner, [case for case in every if case.name.startswith(names)], failed, options.out)
    wanted = [] if options.no_scaling else [c for c in curves(options.quick) if c.name.startswith(names)]
    points = run_curves(runner, wanted, failed)
    about["load at the end"] = f"{os.getloadavg()[0]:.2f}"
    found = slopes(wanted, points)
    write_csv(options.out / "scaling.csv", points)
    write_csv(options.out / "exponents.csv", found)
    if found:
        plot(options.out / "scaling.png", wanted, points)
    (options.out / "report.md").write_text(markdown(rows, found, about, command(arguments)))
    print(f"\nwritten to {options.out}; values that do not agree, or failures: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
