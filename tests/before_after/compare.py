"""Compare the kernels of two files of `collect`: equal to rounding where exact, equal in law where sampled.

python tests/before_after/compare.py BEFORE.npz AFTER.npz [--all]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from before_after.collect import OUT_OF_TIME, Found, read
from before_after.items import WRONG_BEFORE

__all__ = ["Row", "Summary", "compare", "compare_all", "summary"]

# Standard errors come from sixteen repeats, so a difference in units of them has Student's distribution with
# fifteen degrees of freedom: one in a million is beyond 7.9, and the mean square is 15/13.
SIGMAS = 8.0
ROUNDING = 64  # units of the last place of the scale, beside the errors that both sides report
WORST_RMS = 1.4  # of all sampled kernels together; 1.07 is expected of independent points


@dataclass(frozen=True)
class Row:
    """The comparison of one kernel.

    kind    "exact", "sampled", "method changed", "failed" or "wrong before"
    excess  the largest difference in units of what is allowed
    rms     root mean square of the differences in units of that of the combined standard errors, if sampled
    """

    name: str
    kind: str
    ok: bool
    excess: float = 0.0
    rms: float = 0.0
    note: str = ""


def compare(before: Found, after: Found) -> Row:
    name = before.name
    if before.failure or after.failure:
        return _failures(before, after)
    if before.value.shape != after.value.shape:
        return Row(name, "failed", False, note=f"shapes {before.value.shape} and {after.value.shape}")
    exact = before.exact and after.exact
    kind = "exact" if exact else "sampled" if before.exact == after.exact else "method changed"
    scale = _scale(before.value)
    gap = np.abs(after.value - before.value)
    rounding = ROUNDING * max(before.eps, after.eps) * scale
    if exact:
        allowed, rms = before.error + after.error + rounding, 0.0
    else:
        combined = np.hypot(_pooled(before.error, scale), _pooled(after.error, scale))
        allowed = SIGMAS * combined + rounding
        unit = np.hypot(before.error, after.error) + rounding
        rms = float(np.sqrt(np.mean((gap / scale) ** 2) / np.mean((unit / scale) ** 2))) if gap.size else 0.0
    excess = float(np.max(gap / allowed, initial=0.0))
    note = ""
    if before.exact and not after.exact:
        note = "exact before, sampled now"
    elif after.exact and not before.exact:
        note = "sampled before, exact now"
    if name in WRONG_BEFORE:
        return Row(name, "wrong before", True, excess, rms, note)
    return Row(name, kind, bool(excess <= 1), excess, rms, note)


def _failures(before: Found, after: Found) -> Row:
    """A refusal stays one; what failed otherwise may have any outcome but another such failure.

    What took too long may do so again.
    """
    both = f"before: {before.failure or 'a kernel'}; now: {after.failure or 'a kernel'}"
    if before.failure.startswith(OUT_OF_TIME):
        return Row(
            before.name, "failed", not after.failure or after.failure.startswith(OUT_OF_TIME), note=both
        )
    if after.failure and not after.refused:
        return Row(before.name, "failed", False, note=both)
    ok = bool(before.failure) and (not before.refused or after.refused)
    return Row(before.name, "failed", ok, note=both)


def _scale(kernel: np.ndarray) -> np.ndarray:
    """sqrt(K_ii K_jj) of a kernel of one set of inputs, else the largest entry; never 0."""
    largest = np.abs(kernel).max(initial=0.0) or 1.0
    if kernel.shape[0] != kernel.shape[1] or not np.array_equal(kernel, kernel.T):
        return np.full(kernel.shape, largest)
    deviations = np.sqrt(np.clip(np.diagonal(kernel), 0.0, None))
    return np.maximum(np.outer(deviations, deviations), np.finfo(float).eps * largest)


def _pooled(error: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """No entry is believed to be better than the root mean square of all, in units of its scale."""
    return np.maximum(error, np.sqrt(np.mean((error / scale) ** 2)) * scale) if error.size else error


@dataclass(frozen=True)
class Summary:
    """The counts of each kind and what the sampled kernels say together."""

    counts: dict[str, int]
    bad: tuple[Row, ...]
    missing: tuple[str, ...]
    rms: float

    @property
    def ok(self) -> bool:
        return not self.bad and not self.missing and self.rms <= WORST_RMS


def compare_all(before: Mapping[str, Found], after: Mapping[str, Found]) -> list[Row]:
    return [compare(found, after[name]) for name, found in before.items() if name in after]


def summary(rows: Sequence[Row], missing: Sequence[str] = ()) -> Summary:
    """All rows together; the overall rms is over kernels, as the entries of one depend on each other."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.kind] = counts.get(row.kind, 0) + 1
    sampled = [row.rms**2 for row in rows if row.kind == "sampled"]
    rms = float(np.sqrt(np.mean(sampled))) if sampled else 0.0
    return Summary(counts, tuple(row for row in rows if not row.ok), tuple(missing), rms)


def shown(row: Row) -> str:
    verdict = "" if row.ok else "  DIFFERS"
    return (
        f"{row.name:50} {row.kind:15} {row.excess:9.3g} of allowed  rms {row.rms:5.2f}{verdict}  {row.note}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--all", action="store_true", help="a line for every kernel, not only the remarkable")
    options = parser.parse_args(arguments)
    before, after = read(options.before), read(options.after)
    rows = compare_all(before, after)
    for row in rows:
        if options.all or not row.ok or row.note or row.kind == "wrong before":
            print(shown(row))
    found = summary(rows, [name for name in before if name not in after])
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.counts.items()))
    exact = max((row.excess for row in rows if row.kind == "exact"), default=0.0)
    seconds = [sum(side[row.name].seconds for row in rows) for side in (before, after)]
    print(f"\n{len(rows)} kernels: {kinds}")
    print(f"exact: largest difference {exact:.3g} of both errors together")
    print(f"sampled: rms of difference / combined standard error {found.rms:.2f} (1.07 expected)")
    print(f"seconds: {seconds[0]:.0f} before, {seconds[1]:.0f} now")
    print(f"different: {', '.join(row.name for row in found.bad) or 'none'}")
    if found.missing:
        print(f"only before: {', '.join(found.missing)}")
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
