"""Samples of Gaussian forms, drawn jointly for all inputs, for the families that have no exact method."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.expect.points import GaussianSampler, NormalPoints
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref, refs
from netsor.limits.forms import HOLE, Atom
from netsor.limits.pairs import Pair, pad_index

if TYPE_CHECKING:
    from netsor.limits.engine import Engine

__all__ = ["Sampler", "stacked_means"]


class Sampler:
    """Joint samples of the forms of some families; each form is drawn when it is first asked for."""

    def __init__(self, families: frozenset[str], points: int, seed: int | tuple[int, ...]) -> None:
        self.families, self.count = families, points
        self.points = NormalPoints(points, seed)
        self.samplers: dict[str, GaussianSampler] = {}
        self.drawn: dict[str, list[Expr]] = {}
        self.samples: dict[Expr, Block] = {}
        self._values: dict[tuple[Atom, ...], Block] = {}
        self._means: dict[Any, np.ndarray] = {}

    @property
    def dimensions(self) -> int:
        return self.points.taken

    def form(self, engine: Engine, form: Expr) -> Block:
        """Samples of a form: (inputs, index..., points)."""
        if form not in self.samples:
            family = next(engine.forms.families[n] for n in refs(form) if n in engine.forms.families)
            self.samples[form] = self._draw(engine, form, family)
        return self.samples[form]

    def _draw(self, engine: Engine, form: Expr, family: str) -> Block:
        own = _covariance(engine, form, form)
        old = self.drawn.setdefault(family, [])
        known = list(old)
        cross = [_covariance(engine, form, other) for other in known]
        if list(old) != known:  # computing a covariance drew further forms of this family
            return self._draw(engine, form, family)
        if form in self.samples:
            return self.samples[form]
        sampler = self.samplers.setdefault(family, GaussianSampler(self.points))
        empty = np.zeros((len(own), 0))
        noise = sampler.extend(np.concatenate([empty, *cross], axis=1), (own + own.T) / 2)
        old.append(form)
        index = engine.index(form)
        mean = np.broadcast_to(engine.mean(form), (engine.inputs_of(form), *index))
        return Block(noise.reshape(*mean.shape, self.count) + mean[..., None], len(index), True)

    def values(self, engine: Engine, atoms: tuple[Atom, ...]) -> Block | None:
        """Product of sampled atoms of one side: (inputs, index..., points)."""
        if not atoms:
            return None
        if atoms not in self._values:
            made = [self._atom(engine, atom) for atom in atoms]
            rank = max(b.rank for b in made)
            out = made[0].lift(rank, True)
            for block in made[1:]:
                out = out * block.lift(rank, True)
            self._values[atoms] = Block(out, rank, True)
        return self._values[atoms]

    def _atom(self, engine: Engine, atom: Atom) -> Block:
        from netsor.limits.forms import _replace

        body, values = atom.body, {}
        for k, form in enumerate(atom.forms):
            hole = HOLE if atom.unary else Ref(f"@{k}")
            body = body if atom.unary else _replace(body, form, hole)
            values[hole.name] = self.form(engine, form)
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
            self._means[key] = _product_mean(x, y, pair, tie) if back is None else _flip(back, y.rank)
        return self._means[key]


def stacked_means(left: np.ndarray, right: np.ndarray, pair: Pair) -> np.ndarray:
    """Means over points of all products of rows: (left rows, right rows, batch...)."""
    n = left.shape[-1]
    if pair.same:
        a, b = left.swapaxes(0, 1), right.swapaxes(0, 1)
        return np.moveaxis(a @ b.swapaxes(-1, -2), 0, -1) / n
    out = left.reshape(-1, n) @ right.reshape(-1, n).T / n
    return np.moveaxis(out.reshape(*left.shape[:2], *right.shape[:2]), 1, 2)


def _flip(block: np.ndarray, rank: int) -> np.ndarray:
    axes = list(range(block.ndim))
    return block.transpose([1, 0, *axes[2 + rank :], *axes[2 : 2 + rank]])


def _product_mean(x: Block, y: Block, pair: Pair, tie: bool) -> np.ndarray:
    n = x.array.shape[-1]
    a, b = x.array, y.array
    if tie:
        rank = max(x.rank, y.rank)
        a, b = pad_index(a, 1, x.rank, rank), pad_index(b, 1, y.rank, rank)
        if pair.same:
            return (a * b).mean(-1)
        a, b = np.moveaxis(a, 0, -2), np.moveaxis(b, 0, -2)
        return np.moveaxis(a @ np.swapaxes(b, -1, -2), (-2, -1), (0, 1)) / n
    if pair.same:
        out = a.reshape(len(a), -1, n) @ np.swapaxes(b.reshape(len(b), -1, n), -1, -2) / n
        return out.reshape(out.shape[0], *a.shape[1:-1], *b.shape[1:-1])
    out = a.reshape(-1, n) @ b.reshape(-1, n).T / n
    return np.moveaxis(out.reshape(*a.shape[:-1], *b.shape[:-1]), a.ndim - 1, 1)


def _covariance(engine: Engine, e: Expr, f: Expr) -> np.ndarray:
    """Covariance matrix of two forms over all inputs and indices."""
    left, right = engine.index(e), engine.index(f)
    sizes = (engine.inputs_of(e), engine.inputs_of(f))
    block = engine.cov(e, f, Pair(False), False)
    if block is None:
        return np.zeros((sizes[0] * prod(left), sizes[1] * prod(right)))
    full = np.broadcast_to(block, (*sizes, *left, *right))
    return np.moveaxis(full, 1, 1 + len(left)).reshape(sizes[0] * prod(left), sizes[1] * prod(right))
