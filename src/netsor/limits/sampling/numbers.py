"""The numbers that a schedule needs of the inputs: means, covariances of inputs, coefficients and variances.

A schedule is made of shapes alone. What it asks for is recorded as steps (`asked`), and a run fills it in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.lang.expr import Const, Expr, Ref
from netsor.lang.program import Embedding, Input, Normal
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.leaves import embedded_data
from netsor.limits.recursion.pairs import Pair
from netsor.limits.recursion.recorder import Recorder
from netsor.limits.recursion.values import constant, mean
from netsor.limits.sampling.schedule import Family, Link, Parts, Schedule
from netsor.limits.tape.traced import Traced

__all__ = ["Numbers", "Static", "numbers_of"]

ALL = Pair(False)


@dataclass(frozen=True)
class Static:
    """The covariance that variables have from inputs: D D^T + A C A^T.

    data     D (variables, numbers): what the matrices of the family multiply
    weights  A (variables, vectors): coefficients of random vectors, whose covariance is C
    """

    data: np.ndarray
    weights: np.ndarray
    cov: np.ndarray

    def features(self, rows: slice) -> np.ndarray:
        """F with F F^T the covariance of some variables."""
        values, vectors = np.linalg.eigh(self.cov)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        return np.concatenate([self.data[rows], self.weights[rows] @ root], axis=1)

    def rows(self, rows: slice) -> np.ndarray:
        """Some variables with all up to them; all pairs are never there at once."""
        data, weights = self.data[: rows.stop], self.weights[: rows.stop]
        return data[rows] @ data.T + weights[rows] @ self.cov @ weights.T


@dataclass(frozen=True)
class Numbers:
    """The numbers of a schedule.

    means      for each family, of its variables
    static     for each family, see `Static`
    constants  for each group, of its parts; None if all are 1
    inner      the same for the parts of cores within these
    scales     for each link, var_W times the coefficient of its form, and the coefficients of the others
    """

    means: list[np.ndarray]
    static: list[Static]
    constants: list[np.ndarray | None]
    inner: list[np.ndarray | None]
    scales: dict[int, tuple[np.ndarray, np.ndarray]]


def numbers_of(r: Recorder, schedule: Schedule) -> Traced:
    """The step that computes the numbers of a schedule."""
    asked: dict[Any, Any] = {}

    def ask(key: Any, *question: Any) -> None:
        if key not in asked:
            found = r.ask(*question)
            asked[key] = None if found is None else found.array

    for family in schedule.families:
        for form in family.forms:
            ask(("mean", form.expr), mean, form.expr)
            for name, coef in form.coefs.items():
                _ask_for_constant(ask, coef)
                law = _law(r, name)
                if isinstance(law, Embedding):
                    asked["data", name] = embedded_data(r, law)
                    asked["var", law.matrix] = r.variance(law.matrix)
            for link in form.links:
                asked["var", link.matrix] = r.variance(link.matrix)
        names = _random(r, family)
        for name in names:
            for other in names:
                ask(("cov", name, other), cov, Ref(name), Ref(other), ALL)
    for group in schedule.groups:
        for parts, _ in (*group.factors, *(group.inner.factors if group.inner else ())):
            for constants in parts:
                for c in constants:
                    _ask_for_constant(ask, c)
    keys = [key for key, array in asked.items() if isinstance(array, Traced)]

    def run(*arrays: np.ndarray) -> Numbers:
        values = {**asked, **dict(zip(keys, arrays, strict=True))}
        return _Filling(r, schedule, values).numbers()

    return r.tape.call(run, tuple(asked[key] for key in keys), (), np.float64)


def _ask_for_constant(ask: Any, c: Expr) -> None:
    if not isinstance(c, Const):
        ask(("constant", c), constant, c)


def _law(r: Recorder, name: str) -> Any:
    source = r.program.definitions[name]
    return source.law if isinstance(source, Input) else None


def _random(r: Recorder, family: Family) -> list[str]:
    """The random vectors in the forms of a family."""
    names = dict.fromkeys(name for form in family.forms for name in form.coefs)
    return [name for name in names if isinstance(_law(r, name), Normal)]


class _Filling:
    """The numbers of a schedule from the values of what it asked for."""

    def __init__(self, r: Recorder, schedule: Schedule, values: dict[Any, Any]) -> None:
        self.r, self.schedule, self.values = r, schedule, values

    def numbers(self) -> Numbers:
        links = (link for family in self.schedule.families for form in family.forms for link in form.links)
        return Numbers(
            [self.mean(family) for family in self.schedule.families],
            [self.static(family) for family in self.schedule.families],
            [self.constants(group) for group in self.schedule.groups],
            [self.constants(group.inner) if group.inner else None for group in self.schedule.groups],
            {id(link): self.scales(link) for link in links},
        )

    def number(self, c: Expr) -> np.ndarray:
        """A constant for each input, or for all of them."""
        return np.array([c.value]) if isinstance(c, Const) else self.values["constant", c][0]

    def mean(self, family: Family) -> np.ndarray:
        made = np.zeros(family.size)
        for form in family.forms:
            made[form.rows] = self.values["mean", form.expr][0]
        return made

    def scales(self, link: Link) -> tuple[np.ndarray, np.ndarray]:
        own = np.broadcast_to(self.values["var", link.matrix] * self.number(link.coef), len(link.own))
        return own, _joined([(self.number(c), size) for c, size in link.others])

    def constants(self, parts: Parts) -> np.ndarray | None:
        if not any(constants for own, _ in parts.factors for constants in own):
            return None
        made = []
        for own, n in parts.factors:
            columns = [np.broadcast_to(self._product(constants), n) for constants in own]
            made.append(np.stack(columns, axis=1).ravel() if columns else np.zeros(0))
        joined = np.concatenate(made)
        return None if np.all(joined == 1) else joined

    def _product(self, constants: Iterable[Expr]) -> np.ndarray:
        value = np.ones(1)
        for c in constants:
            value = value * self.number(c)
        return value

    def static(self, family: Family) -> Static:
        """Data by the matrix that multiplies them, and the coefficients of random vectors."""
        columns, start = {}, 0
        for name in _random(self.r, family):
            n = self.r.inputs_of(Ref(name))
            columns[name], start = np.arange(start, start + n), start + n
        weights, data = np.zeros((family.size, start)), {}
        for form in family.forms:
            rows = form.rows
            for name, coef in form.coefs.items():
                law = _law(self.r, name)
                if name in columns:
                    weights[np.arange(rows.start, rows.stop), columns[name]] = self.number(coef)
                elif isinstance(law, Embedding):
                    x = np.asarray(self.values["data", name][0], float)
                    table = data.setdefault(law.matrix, np.zeros((family.size, x.shape[1])))
                    table[rows] += np.reshape(self.number(coef), (-1, 1)) * x
        scaled = [np.sqrt(self.values["var", m] / x.shape[1]) * x for m, x in data.items()]
        joined = np.concatenate([np.zeros((family.size, 0)), *scaled], axis=1)
        if joined.shape[1] > family.size:
            joined = np.asarray(np.linalg.qr(joined.T, mode="r")).T  # the same products of rows
        return Static(joined, weights, self._covariance(columns, start))

    def _covariance(self, places: dict[str, np.ndarray], total: int) -> np.ndarray:
        made = np.zeros((total, total))
        for name in places:
            for other in places:
                block = self.values["cov", name, other]
                if block is not None:
                    made[np.ix_(places[name], places[other])] = block[0]
        return made


def _joined(parts: list[tuple[np.ndarray, int]]) -> np.ndarray:
    return np.concatenate([np.broadcast_to(x, n) for x, n in parts])
