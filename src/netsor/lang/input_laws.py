"""Mean and covariance of the input G-vars of a program: the paper's mu_in and Sigma_in.

Blocks are flattened: an input of index shape I has size prod(I). Its mean is (size,), and the covariance of
two inputs is (size, size').
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

import numpy as np

from netsor.lang.blocks import Block
from netsor.lang.components import components
from netsor.lang.evaluate import evaluate
from netsor.lang.program import Embedding, Input, MatrixLaw, Normal, Program, used_by
from netsor.lang.types import A

LAW = re.compile(r"~\s*(.*?)\s*$")  # the law in the text of a statement, for carets in errors


def embedded_data(program: Program, law: Embedding) -> np.ndarray:
    """Return the data x of an embedding U x, (..., columns)."""
    values = {name: Block(array, array.ndim) for name, array in program.data.items()}
    return np.asarray(evaluate(law.data, values).array)


def input_mean(s: Input) -> np.ndarray:
    """Return mu_in of a G-input, (size,)."""
    return np.zeros(prod(s.type.index)) + np.ravel(s.law.mean if isinstance(s.law, Normal) else 0.0)


def input_covariance(program: Program, s: Input, t: Input) -> np.ndarray | None:
    """Return Sigma_in(s, t), (size of s, size of t), or None for independent inputs."""
    sizes = prod(s.type.index), prod(t.type.index)
    match s.law, t.law:
        case Normal(cov=cov), Normal() if s.name == t.name:
            return np.eye(sizes[0]) * cov if isinstance(cov, float) else np.asarray(cov, float)
        case Normal(cross=cross), Normal() if t.name in dict(cross):
            return np.reshape(np.asarray(dict(cross)[t.name], float), sizes)
        case Normal(), Normal(cross=cross) if s.name in dict(cross):
            return np.reshape(np.asarray(dict(cross)[s.name], float), sizes[::-1]).T
        case Embedding(matrix=a) as left, Embedding(matrix=b) as right if a == b:
            return _embedded_covariance(program, left, right)
    return None


def _embedded_covariance(program: Program, s: Embedding, t: Embedding) -> np.ndarray:
    """var x.x' / columns for each matrix of a block, and 0 between different matrices."""
    source = program.definitions[s.matrix]
    assert isinstance(source, Input)
    assert isinstance(source.type, A)
    assert isinstance(source.law, MatrixLaw)
    x, y = (_per_matrix(program, law, source.type) for law in (s, t))
    blocks = np.einsum("iam,ibm->iab", x, y) * (source.law.var / x.shape[-1])
    # (matrix, vector, matrix', vector'): the matrices of a block are independent.
    same = np.eye(len(x))[:, None, :, None] * blocks[:, :, None, :]
    return same.reshape(x.shape[0] * x.shape[1], y.shape[0] * y.shape[1])


def _per_matrix(program: Program, law: Embedding, type_: A) -> np.ndarray:
    """The vectors that each matrix of a block multiplies, (matrices, vectors, columns)."""
    data, shared = embedded_data(program, law), type_.index[: law.aligned]
    vectors = data.reshape(prod(shared), -1, int(type_.cols))
    return np.repeat(vectors, prod(type_.index) // prod(shared), axis=0)


def normal_groups(program: Program) -> list[list[Input]]:
    """Group the inputs with explicit laws; inputs of different groups are independent."""
    normal = [s for s in program.inputs if isinstance(s.law, Normal)]
    return components(normal, lambda s: [s.name, *used_by(s)])


def check_input_laws(program: Program, fail: Callable[..., Exception]) -> None:
    """Check that shapes fit, numbers are finite, and joint covariances are positive semi-definite."""
    seen: dict[str, Input] = {}
    for s in program.inputs:
        if isinstance(s.law, Normal):
            for name, _ in s.law.cross:
                if name not in seen:
                    raise fail(
                        s,
                        f"`{name}` is not an earlier input with a law N(mean, cov)",
                        "Rule Input: a covariance `N(0, 1, g: 0.5)` refers back to an input `g :: G(n)` "
                        "on a line above. Of two correlated inputs the later one names the earlier.",
                        name,
                    )
                (width,), (earlier,) = s.type.dims, seen[name].type.dims
                if earlier != width:
                    raise fail(
                        s,
                        f"`{s.name}` has width {width}, but `{name}` has width {earlier}",
                        "Rule Input: coordinate i of one input is correlated with coordinate i of the other, "
                        "so both have one width.",
                        name,
                    )
            _check_shapes(s, s.law, seen, fail)
            seen[s.name] = s
    for group in normal_groups(program):
        _check_psd(program, group, fail)


def _check_shapes(s: Input, law: Normal, seen: dict[str, Input], fail: Callable[..., Exception]) -> None:
    size = prod(s.type.index)
    remedy = (
        f"Rule Input: {s.type} has {size} member{'s' if size > 1 else ''}, so its mean is a number or has "
        f"shape {s.type.index}, and its covariance is one variance or a matrix {size} x {size}."
    )
    mean, cov = np.asarray(law.mean, float), np.asarray(law.cov, float)
    if mean.ndim and mean.shape != s.type.index:
        raise fail(s, f"the mean of `{s.name}` has shape {mean.shape}, not {s.type.index}", remedy, LAW)
    if cov.ndim and cov.shape != (size, size):
        raise fail(s, f"the covariance of `{s.name}` has shape {cov.shape}, not {(size, size)}", remedy, LAW)
    for name, value in law.cross:
        other, shape = prod(seen[name].type.index), np.shape(value)
        if prod(shape) != size * other or (min(size, other) > 1 and shape != (size, other)):
            raise fail(
                s,
                f"the covariance of `{s.name}` with `{name}` has shape {shape}, not {(size, other)}",
                f"Rule Input: it has a row for each member of `{s.name}` and a column for each of `{name}`.",
                name,
            )
    numbers = [mean, cov, *(np.asarray(v, float) for _, v in law.cross)]
    if not all(np.isfinite(n).all() for n in numbers):
        what = f"the law of `{s.name}` has a NaN or an infinity"
        raise fail(s, what, "Rule Input: means and covariances are finite numbers.", LAW)


def _check_psd(program: Program, group: list[Input], fail: Callable[..., Exception]) -> None:
    law, names = group[0].law, " and ".join(f"`{s.name}`" for s in group)
    if len(group) == 1 and isinstance(law, Normal) and isinstance(law.cov, float):
        if law.cov < 0:
            what = f"the variance of {names} is {law.cov:g}"
            raise fail(group[0], what, "Rule Input: a variance is finite and >= 0.", LAW)
        return
    sigma = joint_covariance(program, group)
    scale = float(np.abs(sigma).max())
    joint = "joint covariance" if len(group) > 1 else "covariance"
    if not np.allclose(sigma, sigma.T, rtol=0, atol=1e-12 * scale):
        raise fail(
            group[-1],
            f"the {joint} of {names} is not symmetric",
            "Rule Input: entry (i, j) is the covariance of members i and j, and equals entry (j, i).",
            LAW,
        )
    low = float(np.linalg.eigvalsh(sigma)[0])
    if low < -1e-10 * scale:  # tolerate rounding: eigenvalues of a singular matrix may come out negative
        raise fail(
            group[-1],
            f"the {joint} of {names} is not positive semi-definite: its lowest eigenvalue is {low:.3g}",
            "Rule Input: no Gaussian vector has this covariance. A covariance is at most the root of the "
            "product of the two variances; check the entries.",
            LAW,
        )


def joint_covariance(program: Program, group: list[Input]) -> np.ndarray:
    """Return Sigma_in of several inputs, flattened and concatenated, (total, total)."""

    def block(s: Input, t: Input) -> np.ndarray:
        covariance = input_covariance(program, s, t)
        return np.zeros((prod(s.type.index), prod(t.type.index))) if covariance is None else covariance

    return np.block([[block(s, t) for t in group] for s in group])
