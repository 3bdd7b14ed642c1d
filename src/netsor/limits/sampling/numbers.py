"""The numbers that a schedule takes from the inputs: means, data, coefficients and variances.

A schedule depends on shapes alone. The numbers that it needs are recorded as steps, and a run computes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from netsor.lang.expr import Const, Expr, Ref
from netsor.lang.program import Embedding, Input, Law, Normal
from netsor.limits.rules.input import embedded_data
from netsor.limits.rules.lincomb import cov, mean
from netsor.limits.rules.moment import constant
from netsor.limits.rules.pairs import Pair
from netsor.limits.rules.recorder import Recorder
from netsor.limits.sampling.records import CoreGroup, Family, Link, Schedule
from netsor.limits.tape.traced import Traced


def numbers_of(r: Recorder, schedule: Schedule) -> Traced:
    """Record the step that computes the numbers of a schedule."""
    asked: dict[Any, Any] = {}

    def ask(key: tuple[Any, ...], *question: Any) -> None:
        if key not in asked:
            answer = r.ask(*question)
            asked[key] = None if answer is None else answer.array

    def ask_for_constants(constants: Iterable[Expr]) -> None:
        for c in constants:
            if not isinstance(c, Const):
                ask(("constant", c), constant, c)

    for family in schedule.families:
        for form in family.forms:
            ask(("mean", form.expr), mean, form.expr)
            ask_for_constants(form.coefs.values())
            for name in form.coefs:
                law = _law(r, name)
                if isinstance(law, Embedding):
                    asked["data", name] = embedded_data(r, law)
                    asked["var", law.matrix] = r.variance(law.matrix)
            for link in form.links:
                asked["var", link.matrix] = r.variance(link.matrix)
        names = _random_vectors(r, family)
        for name in names:
            for other in names:
                # Random vectors of one family may be correlated, also with each other.
                ask(("cov", name, other), cov, Ref(name), Ref(other), Pair(False))
    for group in schedule.groups:
        ask_for_constants(c for lists, _ in group.constants for constants in lists for c in constants)
    keys = [key for key, array in asked.items() if isinstance(array, Traced)]

    def run(*arrays: np.ndarray) -> Numbers:
        return Numbers(r, schedule, {**asked, **dict(zip(keys, arrays, strict=True))})

    return r.tape.call(run, tuple(asked[key] for key in keys), (), np.float64)


def _law(r: Recorder, name: str) -> Law | None:
    source = r.program.definitions[name]
    return source.law if isinstance(source, Input) else None


def _random_vectors(r: Recorder, family: Family) -> list[str]:
    """Return the names of the random vectors in the forms of a family."""
    names = dict.fromkeys(name for form in family.forms for name in form.coefs)
    return [name for name in names if isinstance(_law(r, name), Normal)]


class Numbers:
    """The numbers of a schedule, computed from the values of its questions.

    means      by family: E of its variables, `(variables,)`
    features   by family: F `(variables, features)`, where F F^T is the covariance that comes from the inputs
    constants  by group: the constant of each part, `(parts,)`; None if all are 1
    scales     by link: var_W times the coefficient of its form, and the coefficients of the other forms
    """

    def __init__(self, r: Recorder, schedule: Schedule, values: dict[Any, Any]) -> None:
        self._r, self._values = r, values
        families = schedule.families
        self.means = [self._means(family) for family in families]
        self.features = [self._features(family) for family in families]
        self.constants = [self._constants(group) for group in schedule.groups]
        links = (link for family in families for form in family.forms for link in form.links)
        self.scales = {id(link): self._scales(link) for link in links}
        # Only the results are read from here on.
        self._values = {}

    def _number(self, c: Expr) -> np.ndarray:
        """Return a constant `(inputs,)`, or `(1,)` if all inputs share it."""
        return np.array([c.value]) if isinstance(c, Const) else self._values["constant", c][0]

    def _means(self, family: Family) -> np.ndarray:
        means = np.zeros(family.size)
        for form in family.forms:
            means[form.rows] = self._values["mean", form.expr][0]
        return means

    def _scales(self, link: Link) -> tuple[np.ndarray, np.ndarray]:
        scale = self._values["var", link.matrix] * self._number(link.coef)
        coefs = [np.broadcast_to(self._number(c), n) for c, n in link.coefs]
        return np.broadcast_to(scale, len(link.left.core)), np.concatenate(coefs)

    def _constants(self, group: CoreGroup) -> np.ndarray | None:
        if not any(constants for lists, _ in group.constants for constants in lists):
            return None
        rows = []
        for lists, n in group.constants:
            columns = [np.broadcast_to(self._product(constants), n) for constants in lists]
            rows.append(np.stack(columns, axis=1).ravel() if columns else np.zeros(0))
        joined = np.concatenate(rows)
        return None if np.all(joined == 1) else joined

    def _product(self, constants: Iterable[Expr]) -> np.ndarray:
        value = np.ones(1)
        for c in constants:
            value = value * self._number(c)
        return value

    def _features(self, family: Family) -> np.ndarray:
        """Return F: the data that matrices multiply, and a root of the law of random vectors."""
        columns, count = {}, 0
        for name in _random_vectors(self._r, family):
            n = self._r.inputs_of(Ref(name))
            columns[name], count = np.arange(count, count + n), count + n
        coefs, data = np.zeros((family.size, count)), {}
        for form in family.forms:
            rows = form.rows
            for name, coef in form.coefs.items():
                law = _law(self._r, name)
                if name in columns:
                    coefs[np.arange(rows.start, rows.stop), columns[name]] = self._number(coef)
                elif isinstance(law, Embedding):
                    x = np.asarray(self._values["data", name][0], float)
                    table = data.setdefault(law.matrix, np.zeros((family.size, x.shape[1])))
                    table[rows] += np.reshape(self._number(coef), (-1, 1)) * x
        # The covariance may be singular, so Cholesky could fail; an eigendecomposition gives a root anyway.
        variances, vectors = np.linalg.eigh(self._covariance(columns, count))
        root = vectors * np.sqrt(np.clip(variances, 0.0, None))
        scaled = [np.sqrt(self._values["var", m] / x.shape[1]) * x for m, x in data.items()]
        features = np.concatenate([*scaled, coefs @ root], axis=1)
        # F F^T = R^T R for F^T = Q R, so R^T has the same inner products with at most `family.size` columns.
        if features.shape[1] > family.size:
            features = np.asarray(np.linalg.qr(features.T, mode="r")).T
        return features

    def _covariance(self, columns: dict[str, np.ndarray], count: int) -> np.ndarray:
        """Return the covariance of the random vectors of a family, `(count, count)`."""
        covariance = np.zeros((count, count))
        for name in columns:
            for other in columns:
                block = self._values["cov", name, other]
                if block is not None:
                    covariance[np.ix_(columns[name], columns[other])] = block[0]
        return covariance
