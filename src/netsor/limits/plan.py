"""What a limit takes before it is computed, and its errors afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from netsor.errors import LimitError
from netsor.limits.notes import Expectation
from netsor.progress import spoken


@dataclass(frozen=True)
class Sampling:
    """Which families are sampled, why, and with how many points."""

    families: tuple[str, ...]
    reasons: tuple[str, ...]
    points: int
    repeats: int
    rows: int  # number of sampled Gaussian variables, over all inputs
    dimensions: int = 0  # of the points; 0 before they are drawn, because only a run determines them

    def __str__(self) -> str:
        many = f" in {self.dimensions} dimensions" if self.dimensions else ""
        what = f"  sampled: the families of {', '.join(self.families)}, {self.rows} variables{many}, "
        how = f"{self.repeats} x {self.points} scrambled Sobol points"
        return "\n".join([what + how, *(f"    because {reason}" for reason in self.reasons)])


@dataclass(frozen=True, repr=False)
class Plan:
    """The expectations of a limit, each with its method; after a run also with their errors."""

    expectations: tuple[Expectation, ...]
    statements: int
    shape: tuple[int, int]  # of the kernel matrix
    tiles: int = 1  # number of tiles of pairs of inputs
    work: int = 0  # approximate multiply-adds; if something is sampled, those of one chunk of repeats
    bytes: int = 0  # of workspace beyond inputs and kernel
    compiled: bool = False  # whether Numba compiles loops
    sampling: Sampling | None = None
    remarks: tuple[str, ...] = ()
    largest_error: float | None = None
    scale: float = 0.0
    seconds: float = 0.0  # approximate time of a run

    @property
    def exact(self) -> bool:
        """Whether nothing is sampled."""
        return self.sampling is None

    @property
    def methods(self) -> dict[str, set[str]]:
        """By expectation, the methods that compute it."""
        methods: dict[str, set[str]] = {}
        for e in self.expectations:
            methods.setdefault(e.what, set()).add(e.method)
        return methods

    def __repr__(self) -> str:
        how = "exact" if self.exact else "sampled in part"
        return f"<plan of a kernel of {self.shape[0]} x {self.shape[1]}, {how}: print it>"

    def _repr_html_(self) -> str:
        from netsor.display import error_bar, panel, table

        first, *lines = str(self).splitlines()
        in_table = {f"  {e.what}: {e.method}, " for e in self.expectations}
        below = [line.strip() for line in lines if not any(line.startswith(start) for start in in_table)]
        ran, rows = self.largest_error is not None, []
        for e in self.expectations:
            method = e.method + (f"; else {e.otherwise}" if e.otherwise else "")
            error = error_bar(e.error) if ran else ""
            rows.append((f"<code>{escape(e.what)}</code>", escape(method), str(e.count), error))
        notes = "".join(f'<div class="soft">{escape(line)}</div>' for line in below)
        return panel(first, table(("expectation", "method", "blocks", "error" if ran else ""), rows), notes)

    def __str__(self) -> str:
        rows, columns = self.shape
        lines = [f"A program of {self.statements} statements, a kernel of {rows} x {columns}."]
        for e in self.expectations:
            fallback = f"; else {e.otherwise}" if e.otherwise else ""
            tail = f", error at most {e.error:.1e}" if e.error else fallback
            lines.append(f"  {e.what}: {e.method}, {e.count} block{'s' if e.count > 1 else ''}{tail}")
        if self.sampling:
            lines.append(str(self.sampling))
        lines += [f"  {remark}" for remark in self.remarks]
        if self.work:
            loops = ", in loops compiled by Numba" if self.compiled else ""
            work = _in_units(self.work, {10**9: " billion", 10**6: " million", 10**3: " thousand", 0: ""})
            size = _in_units(self.bytes, {2**30: " GB", 2**20: " MB", 2**10: " KB", 0: " bytes"})
            tiles = f"{self.tiles} tile{'s' if self.tiles > 1 else ''}"
            lines.append(f"  {work} multiply-adds in {tiles}, {size} of workspace{loops}")
        if self.seconds >= 60:
            lines.append(f"  about {spoken(self.seconds)}")
        if self.largest_error is not None:
            largest, scale = f"{self.largest_error:.1e}", f"{self.scale:.3g}"
            lines.append(f"Largest error of an entry: {largest} (largest entry {scale}).")
        return "\n".join(lines)


def require_patience(plan: Plan, confirmed: bool) -> None:
    """Refuse a run that takes more than an hour unless the user has confirmed it."""
    if plan.seconds > 3600 and not confirmed:
        s = plan.sampling
        how = f"{s.repeats:,} repeats of {s.points:,} points, " if s else ""
        raise LimitError(
            f"this kernel takes about {spoken(plan.seconds)}",
            remedy=f"The plan: {how}a kernel of {plan.shape[0]:,} x {plan.shape[1]:,}. If that is what you "
            "want, say confirm=True (--confirm). Else take fewer inputs at a time, fewer repeats or points, "
            "or a larger tol; a store keeps what is computed: ns.gp.store(K, x, path).",
        )


def largest_entry(value: np.ndarray) -> float:
    """Return the largest absolute value, without a copy of a large matrix."""
    return float(max(value.max(initial=0.0), -value.min(initial=0.0)))


def _in_units(number: int, units: dict[int, str]) -> str:
    """Return a number in the largest unit that it reaches; units are from large to small."""
    size = next(size for size in units if number >= size)
    return f"{number / size:.3g}{units[size]}" if size > 1 else f"{number}{units[size]}"
