"""Random weights of a program at finite widths, with the laws of its Input statements."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from netsor.arguments import is_integer
from netsor.build.source_lines import fail
from netsor.errors import SimulationError
from netsor.lang.input_laws import input_mean, joint_covariance, normal_groups
from netsor.lang.program import Input, MatrixLaw, Program
from netsor.lang.types import A, G, H

Weights = dict[str, np.ndarray]
failure = partial(fail, kind=SimulationError)


def resolve_widths(program: Program, width: int | Mapping[str, int]) -> dict[str, int]:
    """Return the width of each Common Dimension Class, from one number for all or a number per name."""
    classes = list(program.widths)
    given = width if isinstance(width, Mapping) else dict.fromkeys(classes, width)
    chosen = {str(name): n for name, n in given.items()}
    missing, unknown = set(classes) - set(chosen), set(chosen) - set(classes)
    if missing or unknown:
        what = f"no width is given for {min(missing)}" if missing else f"there is no width {min(unknown)}"
        each = ", ".join(f"{name!r}: 1000" for name in classes)
        raise failure(
            what,
            f"The widths (Common Dimension Classes) of this program are: {', '.join(classes)}. Give one for "
            f"all, width=1000, or each by name, width={{{each}}}.",
        )
    for name, n in chosen.items():
        if not is_integer(n, 1, 2**62 - 1):
            remedy = "A width is an integer >= 1; limits become visible from about 100 on."
            raise failure(f"the width {name} is {n!r:.60}", remedy)
    return {name: int(n) for name, n in chosen.items()}


def check_memory(program: Program, widths: Mapping[str, int], members: int, itemsize: int) -> None:
    """Raise a SimulationError if all matrices, or a variable of a batch of `members`, exceed the memory."""
    matrices, remedy = 0, "Choose a smaller width, fewer inputs at a time, or smaller blocks."
    for name, type_ in program.types.items():
        if isinstance(type_, A):
            matrices += prod(type_.index) * prod(matrix_shape(type_, widths)) * itemsize
            refuse_memory(matrices, f"matrices up to `{name}`", remedy)
        elif isinstance(type_, H):
            size = prod(type_.index) * widths[type_.width] * members * itemsize
            refuse_memory(size, f"`{name}`, a block of {prod(type_.index):,} vectors", remedy)


def refuse_memory(size: int, what: str, remedy: str) -> None:
    """Raise a SimulationError for an array of `size` bytes that exceeds the memory of this machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # unknown on this system: allow anything plausible
        memory = 2**40
    if size > memory:
        raise failure(f"{what} of {size / 2**30:,.0f} GiB, in a memory of {memory / 2**30:,.0f} GiB", remedy)


def draw(
    program: Program,
    widths: Mapping[str, int],
    rng: np.random.Generator,
    dtype: Any = np.float64,
    skip: frozenset[str] = frozenset(),
    members: Mapping[str, int] | None = None,
) -> Weights:
    """Draw a random network: matrices (index..., rows, columns) and vectors (index..., width).

    skip     inputs that are not drawn
    members  for each input that is noise the size of its batch axis: it is drawn anew for each member
    """
    weights: Weights = {}
    groups = {group[0].name: group for group in normal_groups(program)}
    for s in program.inputs:
        if s.name in skip:
            continue
        if isinstance(s.law, MatrixLaw):
            assert isinstance(s.type, A)
            rows, cols = matrix_shape(s.type, widths)
            weights[s.name] = rng.standard_normal((*s.type.index, rows, cols), dtype)
            weights[s.name] *= np.sqrt(s.law.var / cols)
        elif s.name in groups:
            count = (members or {}).get(s.name)
            weights |= _draw_vectors(program, groups[s.name], widths, rng, dtype, count)
    return weights


def matrix_shape(type_: A, widths: Mapping[str, int]) -> tuple[int, int]:
    """The rows and columns of a matrix."""
    rows, cols = (widths[d] if isinstance(d, str) else d for d in (type_.rows, type_.cols))
    return rows, cols


def _draw_vectors(
    program: Program, group: list[Input], widths: Mapping[str, int], rng, dtype, count: int | None
) -> Weights:
    """Draw joint inputs, coordinates ~ N(mean, Sigma_in); noise has a batch axis of size `count`."""
    types = [s.type for s in group if isinstance(s.type, G)]
    n = widths[types[0].width]
    mean = np.concatenate([input_mean(s) for s in group])
    values = rng.standard_normal((count or 1, len(mean), n), dtype)
    if len(group) == 1 and isinstance(var := getattr(group[0].law, "cov", None), float):
        values = values * np.sqrt(var)
    else:
        # An eigendecomposition, because Cholesky fails for singular covariances.
        eigenvalues, vectors = np.linalg.eigh(joint_covariance(program, group))
        values = (vectors * np.sqrt(np.clip(eigenvalues, 0, None))).astype(dtype) @ values
    values = (values + mean[:, None]).astype(dtype, copy=False)
    parts = np.split(values, np.cumsum([prod(t.index) for t in types])[:-1], axis=1)
    tables = [part.reshape(-1, *t.index, n) for part, t in zip(parts, types, strict=True)]
    return {s.name: t[0] if count is None else t for s, t in zip(group, tables, strict=True)}
