"""The whole idea in one file: a network is a program, and a program has an infinite-width limit.

A program is a list of instructions on vectors of length n. Read one way it is a random network of width n;
read another way each vector becomes one Gaussian number, and a theorem gives their covariances. This file has
both readings for MLPs and simple RNNs, with nothing but NumPy, and compares them. docs/whole_idea.md walks
through it. Run it as `python examples/whole_idea.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import erf, pi

import numpy as np

# 1. The language. Vectors are of kind G (Gaussian in the limit) or H (a nonlinear function of a G).


@dataclass(frozen=True)
class Embed:
    """U x: a matrix of variance `var` on data, a G-vector."""

    matrix: str
    data: tuple[float, ...]
    var: float


@dataclass(frozen=True)
class Bias:
    """A vector of iid N(0, var), a G-vector; one name is one vector."""

    name: str
    var: float


@dataclass(frozen=True)
class MatMul:
    """W h: entries of W are iid N(0, var / n); the same name is the same matrix. A G-vector."""

    matrix: str
    h: Nonlin
    var: float


@dataclass(frozen=True)
class Sum:
    """g1 + g2 + ..., a G-vector."""

    parts: tuple[Embed | Bias | MatMul, ...]


@dataclass(frozen=True)
class Nonlin:
    """phi(g), coordinate by coordinate, an H-vector."""

    phi: str
    g: Sum


def mlp(x: np.ndarray, depth: int, phi: str) -> list[Nonlin]:
    """h_1 = W_1 x + b_1, h_{l+1} = W_{l+1} phi(h_l) + b_{l+1}; what the readout reads."""
    h = Nonlin(phi, Sum((Embed("W1", tuple(x), 1.0), Bias("b1", 1.0))))
    for layer in range(2, depth + 1):
        h = Nonlin(phi, Sum((MatMul(f"W{layer}", h, 1.0), Bias(f"b{layer}", 1.0))))
    return [h]


def rnn(tokens: np.ndarray, phi: str) -> list[Nonlin]:
    """s_t = phi(W s_{t-1} + U x_t + b): one W for all steps; one output for each."""
    states: list[Nonlin] = []
    for token in tokens:
        now = (Embed("U", tuple(token), 1.0), Bias("b", 1.0))
        before = (MatMul("W", states[-1], 1.0),) if states else ()
        states.append(Nonlin(phi, Sum(before + now)))
    return states


# 2. The first reading: a random network of width n.


@dataclass
class Network:
    """Weights drawn when they are first asked for, and vectors computed once."""

    n: int
    rng: np.random.Generator
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    vectors: dict[object, np.ndarray] = field(default_factory=dict)

    def draw(self, name: str, shape: tuple[int, ...], var: float) -> np.ndarray:
        if name not in self.weights:
            self.weights[name] = np.sqrt(var) * self.rng.standard_normal(shape)
        return self.weights[name]

    def vector(self, v: Embed | Bias | MatMul | Sum | Nonlin) -> np.ndarray:
        if v not in self.vectors:
            self.vectors[v] = self.compute(v)
        return self.vectors[v]

    def compute(self, v: Embed | Bias | MatMul | Sum | Nonlin) -> np.ndarray:
        n = self.n
        match v:
            case Embed(matrix, data, var):
                return self.draw(matrix, (n, len(data)), var / len(data)) @ np.array(data)
            case Bias(name, var):
                return self.draw(name, (n,), var)
            case MatMul(matrix, h, var):
                return self.draw(matrix, (n, n), var / n) @ self.vector(h)
            case Sum(parts):
                return np.sum([self.vector(part) for part in parts], axis=0)
            case Nonlin("relu", g):
                return np.maximum(self.vector(g), 0)
            case Nonlin("erf", g):
                return np.vectorize(erf)(self.vector(g))
        raise TypeError(v)


def simulated_kernel(outputs: list[Nonlin], n: int, rng: np.random.Generator) -> np.ndarray:
    """The covariance of the outputs v.h given the body: h.h' / n for v of variance 1/n."""
    network = Network(n, rng)
    h = np.array([network.vector(v) for v in outputs])
    return h @ h.T / n


# 3. The second reading: the limit.


def expectation(phi: str, q: float, r: float, c: float) -> float:
    """E[phi(z) phi(z')] for Gaussian z, z' of mean 0, variances q, r and covariance c."""
    if phi == "erf":
        return 2 / pi * np.arcsin(2 * c / np.sqrt((1 + 2 * q) * (1 + 2 * r)))
    cosine = np.clip(c / np.sqrt(q * r), -1, 1)
    return np.sqrt(q * r) * (np.sqrt(1 - cosine**2) + (pi - np.arccos(cosine)) * cosine) / (2 * pi)


@dataclass
class Limit:
    """Covariances of G-vectors and second moments of H-vectors, each computed once."""

    known: dict[object, float] = field(default_factory=dict)

    def sigma(self, g: Embed | Bias | MatMul | Sum, k: Embed | Bias | MatMul | Sum) -> float:
        """Cov(g, k), by the rules of the theorem."""
        match g, k:
            case Sum(parts), _:  # covariance is linear in the first argument ...
                return sum(self.sigma(part, k) for part in parts)
            case _, Sum(parts):  # ... and in the second
                return sum(self.sigma(g, part) for part in parts)
            case Embed(a, x, var), Embed(b, y, _) if a == b:
                return var * float(np.dot(x, y)) / len(x)
            case Bias(a, var), Bias(b, _) if a == b:
                return var
            case MatMul(a, h, var), MatMul(b, j, _) if a == b:  # the heart of it: one matrix, two vectors
                return var * self.moment(h, j)
        return 0.0  # everything else is independent

    def moment(self, h: Nonlin, j: Nonlin) -> float:
        """E[h j], a Gaussian expectation in two dimensions."""
        if (h, j) not in self.known:
            q, r, c = self.sigma(h.g, h.g), self.sigma(j.g, j.g), self.sigma(h.g, j.g)
            self.known[h, j] = self.known[j, h] = float(expectation(h.phi, q, r, c))
        return self.known[h, j]

    def kernel(self, outputs: list[Nonlin]) -> np.ndarray:
        return np.array([[self.moment(h, j) for j in outputs] for h in outputs])


# 4. The comparison: the distance falls like 1 / sqrt(n).


def compare(name: str, outputs: list[Nonlin], rng: np.random.Generator) -> None:
    limit = Limit().kernel(outputs)
    print(f"{name}: kernel of {len(outputs)} outputs, first row {limit[0].round(4)}")
    for n in (64, 256, 1024):
        found = [simulated_kernel(outputs, n, rng) for _ in range(10)]
        far = np.mean([np.linalg.norm(k - limit) for k in found]) / np.linalg.norm(limit)
        print(f"  width {n:5}: distance {far:.3f}, times sqrt(width) {far * np.sqrt(n):.2f}")


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((3, 5))
    compare("MLP, relu, 3 layers", [h for x in inputs for h in mlp(x, 3, "relu")], rng)
    sequences = [rng.standard_normal((4, 5)), rng.standard_normal((2, 5))]
    compare("RNN, erf, 4 + 2 tokens", [s for tokens in sequences for s in rnn(tokens, "erf")], rng)
