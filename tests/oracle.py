"""The paper's recursion for mu, Sigma and the scalar limits, read literally: slow, and obviously right.

It walks an expanded program (one plain variable per line) in order and applies the definition to one
number at a time. Every expectation is a brute-force integral. There are no closed forms here, no
independence arguments and no batching, and nothing of the engine is used: only the program, its
expansion and the value of an expression.

Errors are found without any theory: the whole recursion is run again with fewer quadrature nodes, and,
where some expectation had to be sampled, several times with other random points. How much a number moves
is its error, whatever the steps that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np

from netsor.lang import Block, Program, evaluate
from netsor.lang.expr import Expr, Ref, refs
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    MatrixLaw,
    Moment,
    Nonlin,
    Normal,
    Output,
    Scalar,
)

__all__ = ["Limits", "OracleResult", "gaussian_expectation", "oracle"]

NODES = {0: 1, 1: 2000, 2: 400, 3: 80}  # quadrature nodes per direction; more directions are sampled
FEWER = ({0: 1, 1: 1000, 2: 200, 3: 40}, {0: 1, 1: 1500, 2: 300, 3: 60})
ORDER = 10  # nodes in each Gauss-Legendre panel
BOUND = 9.5  # a standard Gaussian is further out than this with probability 2e-21
REPEATS = 8  # independent runs of a recursion that samples
CHUNK = 2**15  # points that are held at a time
NO_SPREAD = 1e-14  # eigenvalues below this part of the largest one are zero


@dataclass(frozen=True)
class Limits:
    """One number for everything that has a limit, by the names of the expanded program.

    mu       of each G-var
    sigma    of each pair of G-vars of one width, in both orders
    scalars  the limit of each C-var
    kernel   the covariance of all output scalars, in order
    """

    mu: dict[str, float]
    sigma: dict[tuple[str, str], float]
    scalars: dict[str, float]
    kernel: np.ndarray


@dataclass(frozen=True)
class OracleResult(Limits):
    """The limits, and in `error` an error estimate for each of them (0 for exact steps)."""

    error: Limits


def oracle(program: Program, *, samples: int = 2**20, seed: int = 0) -> OracleResult:
    """mu, Sigma, scalar limits and kernel of a program; `samples` points for each sampled expectation.

    The error of a number is its change from half and from three quarters to all quadrature nodes (one
    change alone is sometimes small by accident), plus the standard error over independent repetitions
    that share the `samples` points between them. All runs go through the whole recursion, so the error
    includes what comes from everything that the number depends on.
    """
    plain = program.expand()
    memo: dict[Any, float] = {}

    def run(nodes: dict[int, int], repeat: int) -> _Recursion:
        return _Recursion(plain, nodes, samples // REPEATS, (seed, repeat), memo)

    first = run(NODES, 0)
    repeats = range(1, REPEATS if first.sampled else 1)
    runs = [first.limits, *(run(NODES, k).limits for k in repeats)]
    coarse = [run(nodes, 0).limits for nodes in FEWER]
    value = _each(_mean, *runs)
    error = _each(_sum, _each(_change, first.limits, *coarse), _each(_standard_error, *runs))
    return OracleResult(value.mu, value.sigma, value.scalars, value.kernel, error)


# The recursion


@dataclass
class _Recursion:
    """One pass over a program; `limits` holds all that has been computed so far."""

    program: Program
    nodes: dict[int, int]
    samples: int
    seed: tuple[int, int]
    memo: dict[Any, float]
    sampled: bool = False
    limits: Limits = field(init=False)

    def __post_init__(self) -> None:
        self.types = self.program.types
        outputs = self.program.outputs
        self.limits = Limits({}, {}, {}, np.zeros((len(outputs), len(outputs))))
        for s in self.program.statements:
            match s:
                case Input(law=MatrixLaw()) | Nonlin() | Output():
                    pass
                case Input() | LinComb() | MatMul():
                    self.limits.mu[s.name] = self.mean(s)
                    self.extend_sigma(s.name)
                case Moment():
                    self.limits.scalars[s.name] = self.expectation(s.name, (s.expr,))
                case Scalar():
                    self.limits.scalars[s.name] = float(evaluate(s.expr, self.scalars(s.expr)).array)
        for i, s in enumerate(outputs):
            for j, t in enumerate(outputs[: i + 1]):
                self.limits.kernel[i, j] = self.limits.kernel[j, i] = self.output_covariance(s, t)

    def mean(self, s: Input | LinComb | MatMul) -> float:
        """mu(g): mu_in(g) of an input, sum_i a_i mu(y_i) of a LinComb, 0 otherwise."""
        match s:
            case Input(law=Normal(mean=mean)):
                return float(np.asarray(mean))
            case LinComb():
                return sum(a * self.limits.mu[y] for y, a in coefficients(s).items())
        return 0.0

    def extend_sigma(self, new: str) -> None:
        """Sigma of the G-var that has just appeared with all G-vars of its width so far, in order."""
        for old in list(self.limits.mu):
            if width_of(self.types[old]) == width_of(self.types[new]):
                value = self.covariance(new, old)
                self.limits.sigma[new, old] = self.limits.sigma[old, new] = value

    def covariance(self, new: str, old: str) -> float:
        """Sigma(g, g'): the cases of the definition, in its order."""
        g, h = self.program.definitions[new], self.program.definitions[old]
        sigma = self.limits.sigma
        match g, h:
            case Input(), Input():
                return input_covariance(self.program, g, h)
            case LinComb(), _ if new == old:
                return sum(a * sigma[new, y] for y, a in coefficients(g).items())
            case LinComb(), _:
                return sum(a * sigma[y, old] for y, a in coefficients(g).items())
            case _, LinComb():
                return sum(a * sigma[new, y] for y, a in coefficients(h).items())
            case MatMul(), MatMul() if g.matrix == h.matrix:
                return matrix_variance(self.program, g.matrix) * self.product(g.operand, h.operand)
        return 0.0

    def output_covariance(self, s: Output, t: Output) -> float:
        """Sum over terms v.y / sqrt(n) and v'.y' / sqrt(n) of one width of Cov(v, v') E[y y']."""
        total = 0.0
        for a in s.terms:
            for b in t.terms:
                cov = self.limits.sigma.get((a.readout, b.readout), 0.0)
                if cov != 0:
                    total += cov * self.product(a.operand, b.operand)
        return total

    def product(self, a: str, b: str) -> float:
        """E[phi^a(Z) phi^b(Z)] for two H-vars."""
        a, b = sorted((a, b))
        return self.expectation(f"{a} {b}", (Ref(a), Ref(b)))

    def expectation(self, label: str, factors: tuple[Expr, ...]) -> float:
        """E of a product of expressions in Z, where every C-var has its limit."""
        unwound = self.unwind(factors)
        names = [name for name in self.limits.mu if name in unwound]
        mean = np.array([self.limits.mu[g] for g in names])
        cov = np.array([[self.limits.sigma[g, h] for h in names] for g in names])
        limits = {name: c for name, c in self.limits.scalars.items() if name in unwound}
        body = [s for s in self.program.of(Nonlin) if s.name in unwound]

        def integrand(z: np.ndarray) -> np.ndarray:
            values = {g: Block(row, 0, True) for g, row in zip(names, z, strict=True)}
            values |= {c: Block(np.asarray(x), 0) for c, x in limits.items()}
            for s in body:
                values[s.name] = evaluate(s.expr, values)
            total = np.ones(z.shape[1])
            for factor in factors:
                total = total * evaluate(factor, values).array
            return total

        directions = principal_axes(cov).shape[1]
        self.sampled |= directions not in self.nodes
        rule = self.nodes.get(directions, (self.samples, self.seed))
        key = (label, mean.tobytes(), cov.tobytes(), tuple(limits.values()), rule)
        if key not in self.memo:
            stream = (*self.seed, crc32(label.encode()))
            self.memo[key] = gaussian_expectation(integrand, mean, cov, self.nodes, self.samples, stream)
        return self.memo[key]

    def unwind(self, factors: tuple[Expr, ...]) -> set[str]:
        """All variables that the expressions depend on, down to G-vars and C-vars."""
        found: set[str] = set()
        todo = [name for factor in factors for name in refs(factor)]
        while todo:
            name = todo.pop()
            source = self.program.definitions[name]
            if name not in found and isinstance(source, Nonlin):
                todo += refs(source.expr)
            found.add(name)
        return found

    def scalars(self, expr: Expr) -> dict[str, Block]:
        return {c: Block(np.asarray(self.limits.scalars[c]), 0) for c in refs(expr)}


@cache
def coefficients(s: LinComb) -> dict[str, float]:
    """The a_i of sum_i a_i y_i: coordinate i of the value where y_i is the i-th unit vector."""
    names = refs(s.expr)
    units = np.eye(len(names))
    value = evaluate(s.expr, {y: Block(e, 0, True) for y, e in zip(names, units, strict=True)}).array
    return dict(zip(names, map(float, value), strict=True))


def width_of(type_: Any) -> str:
    """The width of a G-var."""
    return type_.width


def matrix_variance(program: Program, matrix: str) -> float:
    source = program.definitions[matrix]
    assert isinstance(source, Input)
    assert isinstance(source.law, MatrixLaw)
    return source.law.var


def input_covariance(program: Program, s: Input, t: Input) -> float:
    """Sigma_in of two plain inputs: as declared, var * x.x' / m for one matrix, and 0 otherwise."""
    match s.law, t.law:
        case Normal(cov=cov), Normal() if s.name == t.name:
            return float(np.asarray(cov))
        case Normal(cross=cross), Normal() if t.name in dict(cross):
            return float(np.asarray(dict(cross)[t.name]))
        case Normal(), Normal(cross=cross) if s.name in dict(cross):
            return float(np.asarray(dict(cross)[s.name]))
        case Embedding(matrix=U), Embedding(matrix=V) if U == V:
            data = {name: Block(array, array.ndim) for name, array in program.data.items()}
            x, y = (evaluate(law.data, data).array for law in (s.law, t.law))
            return matrix_variance(program, U) * float(sum(x * y)) / len(x)
    return 0.0


# Integrals


def gaussian_expectation(
    f: Callable[[np.ndarray], np.ndarray],
    mean: np.ndarray,
    cov: np.ndarray,
    nodes: dict[int, int] = NODES,
    samples: int = 2**20,
    seed: tuple[int, ...] = (0,),
) -> float:
    """E f(Z) for Z ~ N(mean, cov), where f takes points as columns: by quadrature, or else by sampling."""
    factor = principal_axes(cov)
    if factor.shape[1] in nodes:
        points = _grid(factor.shape[1], nodes[factor.shape[1]])
    else:
        factor = symmetric_root(cov)
        points = _draws(len(cov), samples, np.random.default_rng(seed))
    total = 0.0
    for z, weights in points:
        # Products this small are faster as plain loops than as threaded matrix products.
        values = f(mean[:, None] + np.einsum("gd,dk->gk", factor, z))
        total += float(np.sum(weights * values))
    assert np.isfinite(total), "the integrand is not finite"
    return total


def principal_axes(cov: np.ndarray) -> np.ndarray:
    """A matrix L with L L^T = cov that has as many columns as cov has rank."""
    eigenvalues, vectors = np.linalg.eigh(cov)
    largest = max(eigenvalues[-1], 0.0)
    # Errors of single entries may push a zero eigenvalue below zero, but not far.
    assert eigenvalues[0] >= -0.01 * largest - 1e-12, "the covariance is not positive semi-definite"
    kept = eigenvalues > NO_SPREAD * largest
    return vectors[:, kept] * np.sqrt(eigenvalues[kept])


def symmetric_root(cov: np.ndarray) -> np.ndarray:
    """The square root S = S^T of cov: it moves little when cov does, and the sampled points with it."""
    eigenvalues, vectors = np.linalg.eigh(cov)
    return (vectors * np.sqrt(np.clip(eigenvalues, 0, None))) @ vectors.T


def _grid(directions: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All points of a tensor product rule for the standard Gaussian, with their weights."""
    z, w = _line(count) if directions else (np.zeros(1), np.ones(1))
    shape = (len(z),) * directions
    size = len(z) ** directions
    for start in range(0, size, CHUNK):
        flat = np.arange(start, min(start + CHUNK, size))
        index = np.array(np.unravel_index(flat, shape)) if directions else np.zeros((0, 1), int)
        yield z[index], np.prod(w[index], axis=0)


def _line(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre panels on [-BOUND, BOUND], weighted with the Gaussian density."""
    x, w = np.polynomial.legendre.leggauss(ORDER)
    edges = np.linspace(-BOUND, BOUND, count // ORDER + 1)
    half = (edges[1] - edges[0]) / 2
    z = ((edges[:-1] + half)[:, None] + half * x).ravel()
    return z, np.tile(half * w, len(edges) - 1) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


def _draws(directions: int, count: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Independent standard Gaussian points."""
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        yield rng.standard_normal((directions, size)), np.full(size, 1 / count)


# Several runs


def _each(f: Callable[[list[Any]], Any], *runs: Limits) -> Limits:
    """f of the values that a number has in the runs, for every number."""
    parts: list[Any] = []
    for name in (part.name for part in fields(Limits)):
        values = [getattr(run, name) for run in runs]
        if isinstance(values[0], dict):
            parts.append({key: float(f([v[key] for v in values])) for key in values[0]})
        else:
            parts.append(f(values))
    return Limits(*parts)


def _mean(values: list[Any]) -> Any:
    """The average; exactly the common value where all are equal."""
    return values[0] + sum(v - values[0] for v in values) / len(values)


def _standard_error(values: list[Any]) -> Any:
    """Of the average of independent values (0 for a single one, which is not random)."""
    centre, count = _mean(values), len(values)
    return np.sqrt(sum((v - centre) ** 2 for v in values) / (count * max(count - 1, 1)))


def _change(values: list[Any]) -> Any:
    """How far the other values are from the first, together."""
    return sum(abs(v - values[0]) for v in values[1:])


def _sum(values: list[Any]) -> Any:
    return values[0] + values[1]
