"""The Gaussian-process kernel of a network: `ns.kernel(net)` is a function of inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from netsor.build.network import Group, Joint, Network, as_inputs, joint
from netsor.errors import LimitError
from netsor.lang.expr import Ref
from netsor.lang.program import Input, MatrixLaw, Normal, Output, Program, Term
from netsor.lang.sampling import input_covariance
from netsor.limits.engine import Engine
from netsor.limits.expectation import Expectations, NeedsSamplingError, Record
from netsor.limits.forms import Forms
from netsor.limits.pairs import Pair
from netsor.limits.plan import Plan
from netsor.limits.sampled import Sampler

__all__ = ["KernelFn", "KernelRun", "Options", "Result", "deep_recursion", "evaluate_kernel", "kernel"]

METHODS = ("auto", "exact", "sample")
TILE_ELEMENTS = 2**25


@dataclass(frozen=True)
class Options:
    """How a limit is computed.

    method   "exact" raises where there is no exact method, "sample" samples every family
    tol      sampling grows until the error is below tol * sqrt(K_ii K_jj), or raises LimitError
    points   sample points per repeat (a power of two)
    repeats  independent randomisations, whose spread is the error
    """

    method: str = "auto"
    tol: float | None = None
    seed: int = 0
    dtype: Any = np.float64
    points: int = 2**12
    repeats: int = 16
    max_points: int = 2**18

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise LimitError(f"method={self.method!r}", remedy=f"Choose one of {', '.join(METHODS)}.")
        for name, least in (("points", 1), ("repeats", 2)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise LimitError(f"{name}={value!r}", remedy=f"Give an integer >= {least}.")
        if self.tol is not None and not self.tol > 0:
            raise LimitError(f"tol={self.tol!r}", remedy="A tolerance is a positive number.")


@dataclass(frozen=True)
class Result:
    """A kernel matrix, an error estimate for each entry, and how it was computed."""

    value: np.ndarray
    error: np.ndarray
    plan: Plan

    def explain(self) -> str:
        """Which expectation was computed by which method, with which error."""
        return str(self.plan)


class KernelFn:
    """The kernel of a network: `K(x)`, `K(x, y)`, `K.diag(x)`, `K.evaluate(x, y)`."""

    def __init__(self, net: Network, options: Options) -> None:
        self.net, self.options = net, options

    def __repr__(self) -> str:
        return f"<kernel of {self.net.name}>"

    def __call__(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """The kernel matrix of a set of inputs, or between two sets."""
        return self.evaluate(x, y, params=params).value

    def evaluate(self, x: Any, y: Any = None, *, params: Mapping[str, Any] | None = None) -> Result:
        """The kernel matrix with its error estimate and plan."""
        first = as_inputs(x)
        second = None if y is None else as_inputs(y)
        made = joint(self.net, first + (second or []))
        used = self.check_params(params or {}, program_params(made.program))
        return evaluate_kernel(made, self.options, used, None if second is None else len(first))

    def diag(self, x: Any, *, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """The variances of all outputs."""
        values = [np.diagonal(self([xi], params=params)) for xi in as_inputs(x)]
        return np.concatenate(values)

    @property
    def params(self) -> dict[str, float]:
        """The variances of the network's matrices and vectors by name."""
        named = {name: parameter.var for parameter, name in self.net.parameters().items()}
        return {name: var for name, var in named.items() if isinstance(var, float)}

    def check_params(self, given: Mapping[str, Any], program: Mapping[str, Any]) -> dict[str, Any]:
        """The given variances that the program has; a short sequence may do without some matrices."""
        known = {**self.params, **program}
        for name, value in given.items():
            if name not in known:
                raise LimitError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(known)}.")
            if isinstance(value, int | float) and not (np.isfinite(value) and value >= 0):
                raise LimitError(f"the variance `{name}` is {value}", remedy="A variance is finite and >= 0.")
        return {name: value for name, value in given.items() if name in program}


def kernel(net: Network, **options: Any) -> KernelFn:
    """The infinite-width kernel of a network as a function of inputs; options as in `Options`.

    >>> import numpy as np, netsor as ns
    >>> K = ns.kernel(ns.zoo.mlp(depth=1, var_b=0.0))
    >>> K(np.array([[1.0, 0.0], [0.0, 2.0]])).round(4)
    array([[0.25  , 0.1592],
           [0.1592, 1.    ]])
    """
    if not isinstance(net, Network):
        raise LimitError(
            f"{net!r} is not a network",
            remedy="Decorate the function with @ns.network, or take one from ns.zoo.",
        )
    return KernelFn(net, Options(**options))


def program_params(program: Program) -> dict[str, float]:
    """The variances of a program by the name of their input."""
    found: dict[str, float] = {}
    for s in program.inputs:
        if isinstance(s.law, MatrixLaw):
            found[s.name] = s.law.var
        elif isinstance(s.law, Normal) and isinstance(s.law.cov, float):
            found[s.name] = s.law.cov
    return found


def evaluate_kernel(
    made: Joint, options: Options, params: Mapping[str, Any] | None = None, split: int | None = None
) -> Result:
    """Kernel of a joint program; with `split`, between the inputs before it and those from it on."""
    run = KernelRun(made, options, params, split)
    with deep_recursion():
        return run.result()


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Long sequences recurse once per token and rule."""
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(max(old, 1_000_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(old)


@dataclass
class KernelRun:
    """One kernel: first exactly, then with the families sampled that turn out to need it."""

    made: Joint
    options: Options
    params: Mapping[str, Any] | None
    split: int | None
    forms: Forms = field(init=False)

    def __post_init__(self) -> None:
        self.program = self.made.program
        self.forms = Forms(self.program)
        self.rows = _Rows(self.made, self.split)
        self.batched = frozenset(
            name for name, array in self.made.data.items() if array.ndim > self.program.data[name].ndim
        )
        self.data = {k: np.asarray(v, self.options.dtype) for k, v in self.made.data.items()}

    def result(self) -> Result:
        families = frozenset(self.forms.families.values()) if self.options.method == "sample" else frozenset()
        reasons: list[str] = []
        while True:
            try:
                return self.sampled(families, reasons) if families else self.exact()
            except NeedsSamplingError as needed:
                if self.options.method == "exact":
                    raise self.no_exact_method(needed) from None
                families |= needed.families
                reasons.append(needed.reason)

    def engine(self, record: Record, sampler: Sampler | None = None, nudge: float = 0.0) -> Engine:
        return Engine(
            self.program,
            self.data,
            self.batched,
            lambda engine: Expectations(engine, record, sampler, nudge),
            self.params,
            self.forms,
        )

    def measure(self, quantity: Callable[[Engine], Any]) -> Any:
        """Any quantity of the engine, averaged over repeats where something must be sampled."""
        families = frozenset(self.forms.families.values()) if self.options.method == "sample" else frozenset()
        while True:
            try:
                sampler = None
                if families:
                    sampler = Sampler(families, self.options.points, self.options.repeats, self.options.seed)
                value = quantity(self.engine(Record(), sampler))
                return None if value is None else np.mean(value, axis=0)
            except NeedsSamplingError as needed:
                if self.options.method == "exact":
                    raise self.no_exact_method(needed) from None
                families |= needed.families

    def no_exact_method(self, needed: NeedsSamplingError) -> LimitError:
        return LimitError(
            "this limit has no exact method",
            remedy=f'{needed.reason}. Use method="auto", which samples only what it must.',
        )

    def exact(self) -> Result:
        record = Record()
        value = self.matrix(self.engine(record))[0]
        error = self.rounding(value)
        if record.inexact:
            moved = self.matrix(self.engine(Record(), nudge=1.0))[0]
            error = error + 2 * np.abs(moved - value)
        reached, tol = _relative(error, self.scale(value)), self.options.tol
        if tol is not None and reached > tol:
            raise LimitError(
                f"the tolerance {tol:g} is not reached",
                remedy=f"The exact methods have an error of {reached:.2g} here. Use a larger tol.",
            )
        return Result(value, error, Plan.of(record, self.program, error, value))

    def sampled(self, families: frozenset[str], reasons: list[str]) -> Result:
        if self.split is not None:  # samples are joint over all inputs, so the block is cut out at the end
            whole = KernelRun(self.made, self.options, self.params, None).sampled(families, reasons)
            block = np.s_[: self.rows.left_size, self.rows.left_size :]
            return Result(whole.value[block], whole.error[block], whole.plan)
        options, points = self.options, self.options.points
        while True:
            record, sampler = Record(), Sampler(families, points, options.repeats, options.seed)
            stack = self.matrix(self.engine(record, sampler))
            value = stack.mean(0)
            error = stack.std(0, ddof=1) / np.sqrt(len(stack)) + self.rounding(value)
            plan = Plan.of(record, self.program, error, value)
            plan = replace(
                plan, sampled=tuple(sorted(families)), dimensions=sampler.dimensions, points=points
            )
            result = Result(value, error, replace(plan, repeats=options.repeats, reasons=tuple(reasons)))
            if options.tol is None or _relative(error, self.scale(value)) <= options.tol:
                return result
            points *= 4
            if points > options.max_points:
                reached = _relative(error, self.scale(value))
                raise LimitError(
                    f"the tolerance {options.tol:g} is not reached",
                    remedy=f"With {points // 4} points the error is {reached:.2g}. "
                    "Allow more with max_points=..., or a larger tol.",
                )

    def scale(self, value: np.ndarray) -> np.ndarray:
        if self.split is None:
            deviations = np.sqrt(np.clip(np.diagonal(value), 0, None))
            return deviations[:, None] * deviations
        return np.full(value.shape, np.abs(value).max(initial=0.0))

    def rounding(self, value: np.ndarray) -> np.ndarray:
        """An allowance for floating-point rounding: a few units per statement."""
        eps = float(np.finfo(self.options.dtype).eps)
        return 8 * eps * len(self.program.statements) * self.scale(value)

    # Assembly

    def matrix(self, engine: Engine) -> np.ndarray:
        rows, cols = self.rows.left, self.rows.right
        sampler = engine.expectations.sampler
        repeats, sampling = (sampler.repeats if sampler else 1), sampler is not None
        out = np.zeros((repeats, self.rows.left_size, self.rows.right_size), self.options.dtype)
        for r, s, pair in self.tiles(sampling):
            for o in self.made.groups[r].outputs:
                for p in self.made.groups[s].outputs:
                    block = self.block(engine, o, p, pair)
                    left, right = rows[o][slice(*pair.rows)], cols[p][slice(*pair.cols)]  # type: ignore[misc]
                    target = (repeats, len(left), len(right), *left.shape[1:], *right.shape[1:])
                    full = np.moveaxis(np.broadcast_to(block, target), 2, 1 + left.ndim)
                    full = full.reshape(repeats, left.size, right.size)
                    out[:, left.reshape(-1, 1), right.reshape(1, -1)] = full
                    if self.split is None:
                        out[:, right.reshape(-1, 1), left.reshape(1, -1)] = full.swapaxes(1, 2)
            if not sampling:
                engine.forget_tile()
        return (out + out.swapaxes(1, 2)) / 2 if self.split is None else out

    def tiles(self, sampling: bool) -> Iterator[tuple[int, int, Pair]]:
        """Pairs of groups in tiles that keep the workspace small; with one set, the upper half only."""
        groups = self.made.groups
        for r in range(len(groups)):
            for s in range(len(groups)):
                if self.split is None and s < r:
                    continue
                left, right = self.rows.spans(r)[0], self.rows.spans(s)[1]
                step = max(right[1], left[1], 1) if sampling else self.tile_size(r, s)
                for a in range(left[0], left[1], step):
                    for b in range(right[0], right[1], step):
                        if self.split is None and r == s and b < a:
                            continue
                        stops = (min(a + step, left[1]), min(b + step, right[1]))
                        yield r, s, Pair(False, (a, stops[0]), (b, stops[1]))

    def tile_size(self, r: int, s: int) -> int:
        groups = self.made.groups
        largest = max((prod(t.index) for t in self.program.types.values()), default=1)
        outputs = len(groups[r].outputs) * len(groups[s].outputs)
        blocks = 3 * outputs + 3 * len(self.program.statements)
        return max(1, int(np.sqrt(TILE_ELEMENTS / (largest**2 * blocks))))

    def block(self, engine: Engine, o: int, p: int, pair: Pair) -> Any:
        """E of the product of two outputs: axes (left inputs, right inputs, left index, right index)."""
        outputs = self.program.outputs
        total: Any = 0.0
        for t in outputs[o].terms:
            for u in outputs[p].terms:
                part = _term_pair(engine, t, u, pair)
                total = total if part is None else total + part
        left, right = (_output_index(self.program, outputs[k]) for k in (o, p))
        if isinstance(total, float):
            return np.zeros((1,) * (3 + len(left) + len(right)))
        return total


def _output_index(program: Program, s: Output) -> tuple[int, ...]:
    t = s.terms[0]
    return program.types[t.readout].index[t.aligned :] + program.types[t.operand].index[t.aligned :]


def _term_pair(engine: Engine, t: Term, u: Term, pair: Pair) -> Any:
    """sum over aligned members of Cov(v, v') E[y y'], or None if the readouts are independent."""
    program = engine.program
    v, w = program.definitions[t.readout], program.definitions[u.readout]
    assert isinstance(v, Input)
    assert isinstance(w, Input)
    if t.width != u.width:
        return None
    left, right = program.types[t.operand].index, program.types[u.operand].index
    single = v.name == w.name and isinstance(v.law, Normal) and isinstance(v.law.cov, float)
    if single and t.aligned == u.aligned == len(left) == len(right) == len(program.types[v.name].index):
        if not left:
            return engine.variance(v.name) * engine.second(Ref(t.operand), Ref(u.operand), pair, False)
        tied = engine.second(Ref(t.operand), Ref(u.operand), pair, True)
        tied = engine.xp.broadcast_to(tied, (*tied.shape[:3], *left))
        return engine.variance(v.name) * engine.xp.sum(tied, axis=tuple(range(3, 3 + len(left))))
    cov = input_covariance(program, v, w)
    if cov is None:
        return None
    if single:
        cov = np.eye(len(cov)) * engine.variance(v.name)
    return _general_term_pair(engine, t, u, pair, cov)


def _general_term_pair(engine: Engine, t: Term, u: Term, pair: Pair, cov: Any) -> Any:
    """The same for any covariance of the readouts, through a matrix product over aligned members."""
    xp, program = engine.xp, engine.program
    (p1, q1, i1), (p2, q2, i2) = (_split_index(program, x) for x in (t, u))
    full = engine.second(Ref(t.operand), Ref(u.operand), pair, False)
    full = xp.broadcast_to(full, (*full.shape[:3], *p1, *i1, *p2, *i2))
    full = xp.reshape(full, (*full.shape[:3], prod(p1), prod(i1), prod(p2), prod(i2)))
    total: Any = 0.0
    table = cov.reshape(prod(p1), prod(q1), prod(p2), prod(q2))
    for a in range(prod(p1)):
        for b in range(prod(p2)):
            weights = table[a, :, b, :]
            if np.any(weights):
                weights = xp.asarray(weights)[None, None, None, :, None, :, None]
                total = total + weights * full[:, :, :, None, a, :, None, b, :]
    if isinstance(total, float):
        return None
    return xp.reshape(total, (*total.shape[:3], *q1, *i1, *q2, *i2))


def _split_index(program: Program, t: Term) -> tuple[tuple[int, ...], ...]:
    v, y = program.types[t.readout].index, program.types[t.operand].index
    return v[: t.aligned], v[t.aligned :], y[t.aligned :]


def _relative(error: np.ndarray, scale: np.ndarray) -> float:
    return float(np.max(error / np.where(scale > 0, scale, 1.0), initial=0.0))


class _Rows:
    """Where the scalars of each Output statement stand among the rows and columns of the kernel."""

    def __init__(self, made: Joint, split: int | None) -> None:
        self.made, self.split = made, split
        shapes = [_output_index(made.program, s) for s in made.program.outputs]
        total = sum(len(g.members) for g in made.groups)
        first = total if split is None else split
        self.left, self.left_size = _number(made.groups, shapes, 0, first)
        start = 0 if split is None else split
        self.right, self.right_size = _number(made.groups, shapes, start, total)

    def spans(self, r: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Positions within group r of the inputs that are rows, and of those that are columns."""
        members = self.made.groups[r].members
        if self.split is None:
            return (0, len(members)), (0, len(members))
        cut = sum(m < self.split for m in members)
        return (0, cut), (cut, len(members))


def _number(
    groups: tuple[Group, ...], shapes: list[tuple[int, ...]], start: int, stop: int
) -> tuple[list[np.ndarray], int]:
    """Row numbers (members of the group, index...) for each Output; inputs outside [start, stop) get -1."""
    tables: list[np.ndarray] = [np.zeros(0, int)] * len(shapes)
    owner: dict[int, tuple[Group, int]] = {}
    for group in groups:
        for k, member in enumerate(group.members):
            owner[member] = (group, k)
        for o in group.outputs:
            tables[o] = np.full((len(group.members), *shapes[o]), -1)
    row = 0
    for member in range(start, stop):
        group, k = owner[member]
        for o in group.outputs:
            size = prod(shapes[o])
            tables[o][k] = np.arange(row, row + size).reshape(shapes[o])
            row += size
    return tables, row
