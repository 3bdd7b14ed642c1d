"""Samples of Gaussian forms, drawn jointly for all inputs, for the families that have no exact method."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.points.gaussian import GaussianSampler
from netsor.expect.points.normal import NormalPoints
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref, refs
from netsor.limits.forms import HOLE, Atom, replace_exprs
from netsor.limits.pairs import Pair, pad_index

if TYPE_CHECKING:
    from netsor.limits.engine import Engine
    from netsor.limits.moments import Moments

__all__ = ["NoRoomError", "Sampler"]


class NoRoomError(Exception):
    """The samples of some repeats need more memory than they may have; there may be room for fewer."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        super().__init__(needed)

    def said(self, memory: int) -> LimitError:
        return LimitError(
            f"sampling this kernel needs a workspace of more than {self.needed / 2**20:.3g} MB",
            remedy=f"memory={memory} allows {memory / 2**20:.3g} MB. Allow more, or take fewer inputs at a "
            "time, or fewer points.",
        )


class Sampler:
    """Joint samples of the forms of some families; each form is drawn when it is first asked for.

    There are independent randomisations, numbered by `repeats`, each with its own points and covariances.
    `moments` are second moments that have been computed with the first dimensions of these points.
    `memory` are the bytes that samples and their averages may have.
    """

    def __init__(
        self,
        families: frozenset[str],
        points: int,
        repeats: range,
        seed: int,
        dimensions: int = 0,
        memory: int | None = None,
    ) -> None:
        self.families, self.count, self.repeats = families, points, len(repeats)
        self.points = [NormalPoints(points, (seed, k), dimensions=dimensions) for k in repeats]
        self.moments: Moments | None = None
        self.memory, self.used = memory, 0
        self.samplers: dict[str, list[GaussianSampler]] = {}
        self.drawn: dict[str, list[Expr]] = {}
        self.samples: dict[Expr, Block] = {}
        self._values: dict[tuple[Atom, ...], Block] = {}
        self._means: dict[Any, np.ndarray] = {}

    @property
    def dimensions(self) -> int:
        return self.points[0].taken

    def reserve(self, rows: int) -> None:
        """Count the values of so many rows that will be kept, before they are computed."""
        self.used += 8 * self.repeats * rows
        if self.memory is not None and self.used > self.memory:
            raise NoRoomError(self.used)

    def form(self, engine: Engine, form: Expr) -> Block:
        """Samples of a form: (repeats, inputs, index..., points)."""
        if form not in self.samples:
            family = next(engine.forms.families[n] for n in refs(form) if n in engine.forms.families)
            self.samples[form] = self._draw(engine, form, family)
        return self.samples[form]

    def _draw(self, engine: Engine, form: Expr, family: str) -> Block:
        own = _covariance(engine, form, form)
        known = list(self.drawn.setdefault(family, []))
        cross = [_covariance(engine, form, other) for other in known]
        if form in self.samples:  # computing a covariance drew this form
            return self.samples[form]
        if self.drawn[family] != known:  # ... or further forms of this family
            return self._draw(engine, form, family)
        if family not in self.samplers:
            self.samplers[family] = [GaussianSampler(points) for points in self.points]
        self.reserve(3 * own.shape[1] * self.count)  # noise with some room, and values
        noise = [
            sampler.extend(_joined(cross, k, own.shape[1]), _symmetric(_repeat(own, k)))
            for k, sampler in enumerate(self.samplers[family])
        ]
        self.drawn[family].append(form)
        index = engine.index(form)
        mean = engine.mean(form)
        shape = (self.repeats, engine.inputs_of(form), *index)
        return Block(np.stack(noise).reshape(*shape, self.count) + mean[..., None], len(index), True)

    def values(self, engine: Engine, atoms: tuple[Atom, ...]) -> Block | None:
        """Product of sampled atoms of one side: (repeats, inputs, index..., points)."""
        if not atoms:
            return None
        if atoms not in self._values:
            made = [self._atom(engine, atom) for atom in atoms]
            rank = max(b.rank for b in made)
            self.reserve(max(b.array.size for b in made) // self.repeats)
            out = made[0].lift(rank, True)
            for block in made[1:]:
                out = out * block.lift(rank, True)
            self._values[atoms] = Block(out, rank, True)
        return self._values[atoms]

    def _atom(self, engine: Engine, atom: Atom) -> Block:
        holes = [HOLE] if atom.unary else [Ref(f"@{k}") for k in range(len(atom.forms))]
        body = (
            atom.body if atom.unary else replace_exprs(atom.body, dict(zip(atom.forms, holes, strict=True)))
        )
        values = {h.name: self.form(engine, form) for h, form in zip(holes, atom.forms, strict=True)}
        constants = {n: engine.block(n) for n in refs(body) if n not in values}
        with np.errstate(all="ignore"):
            return evaluate(body, {**constants, **values})

    def product_mean(
        self, x: Block, y: Block, left: tuple[Atom, ...], right: tuple[Atom, ...], pair: Pair, tie: bool
    ) -> np.ndarray:
        """Average over the points of left times right, for every pair of inputs."""
        key = (left, right, pair, tie)
        if key not in self._means:
            back = None if pair.same or tie else self._means.get((right, left, pair.flipped, tie))
            found = _product_mean(x, y, pair, tie) if back is None else _flip(back, y.rank)
            self.reserve(found.size // self.repeats)
            self._means[key] = found
        return self._means[key]


def _gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a[k] @ b[k].T for every repeat; single rows without BLAS, whose threads cost more than the work."""
    if a.shape[1] * b.shape[1] == 1:
        return np.einsum("kpn,kqn->kpq", a, b)
    return np.stack([x @ y.T for x, y in zip(a, b, strict=True)])


def _flip(block: np.ndarray, rank: int) -> np.ndarray:
    axes = list(range(block.ndim))
    return block.transpose([0, 2, 1, *axes[3 + rank :], *axes[3 : 3 + rank]])


def _product_mean(x: Block, y: Block, pair: Pair, tie: bool) -> np.ndarray:
    n, repeats = x.array.shape[-1], x.array.shape[0]
    a, b = x.array, y.array
    if tie:
        rank = max(x.rank, y.rank)
        a, b = pad_index(a, 2, x.rank, rank), pad_index(b, 2, y.rank, rank)
        if pair.same:
            return (a * b).mean(-1)
        a, b = np.moveaxis(a, 1, -2), np.moveaxis(b, 1, -2)
        return np.moveaxis(a @ np.swapaxes(b, -1, -2), (-2, -1), (1, 2)) / n
    if pair.same:
        out = a.reshape(*a.shape[:2], -1, n) @ np.swapaxes(b.reshape(*b.shape[:2], -1, n), -1, -2) / n
        return out.reshape(*out.shape[:2], *a.shape[2:-1], *b.shape[2:-1])
    out = _gram(a.reshape(repeats, -1, n), b.reshape(repeats, -1, n)) / n
    return np.moveaxis(out.reshape(repeats, *a.shape[1:-1], *b.shape[1:-1]), a.ndim - 1, 2)


def _covariance(engine: Engine, e: Expr, f: Expr) -> np.ndarray:
    """Covariance matrix of two forms over all inputs and indices: (repeats, rows, columns)."""
    left, right = engine.index(e), engine.index(f)
    sizes = (engine.inputs_of(e), engine.inputs_of(f))
    rows, cols = sizes[0] * prod(left), sizes[1] * prod(right)
    block = engine.cov(e, f, Pair(False), False)
    if block is None:
        return np.zeros((1, rows, cols))
    full = np.broadcast_to(block, (block.shape[0], *sizes, *left, *right))
    return np.moveaxis(full, 2, 2 + len(left)).reshape(-1, rows, cols)


def _repeat(matrices: np.ndarray, k: int) -> np.ndarray:
    return matrices[k if len(matrices) > 1 else 0]


def _joined(matrices: list[np.ndarray], k: int, rows: int) -> np.ndarray:
    return np.concatenate([np.zeros((rows, 0)), *(_repeat(m, k) for m in matrices)], axis=1)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2
