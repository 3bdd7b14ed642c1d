"""Derivatives of kernels with respect to the logarithms of variances, by differences or by JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from netsor import arguments
from netsor.build.joint_program import as_inputs
from netsor.errors import DataError, NetsorError
from netsor.gp.targets import as_kernel
from netsor.lang.array_api import double_precision
from netsor.limits.inputs import InputSet
from netsor.limits.kernel import KernelFn
from netsor.limits.kernel_tiles import of_params


def kernel_gradient(
    kernel: KernelFn,
    x: InputSet,
    names: Iterable[str] | None = None,
    *,
    params: Mapping[str, float] | None = None,
    method: str = "differences",
) -> tuple[np.ndarray, np.ndarray]:
    """Return K(x) and its derivative with respect to the logarithm of each named variance.

    Parameters
    ----------
    kernel, x, params
        As for `ns.gp.fit`.
    names
        Names of variances; by default all of the network's.
    method
        "differences": central differences, with errors of about 1e-9 of the entries and two kernels per name.
        "jax": automatic differentiation, compiled anew at each call.

    Returns
    -------
    tuple
        K(x), (rows, rows), and its slopes, (rows, rows, names).

    Raises
    ------
    DataError
        There is no such variance.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> K = ns.kernel(ns.zoo.mlp(1, var_b=0.0))
    >>> value, slopes = ns.gp.kernel_gradient(K, np.eye(2), ["v"])  # K is linear in it
    >>> bool(abs(slopes[:, :, 0] - value).max() < 1e-9)
    True
    """
    kernel = as_kernel(kernel)
    values = {**kernel.params, **arguments.mapping("params", params, '{"W1": 2.0}')}
    chosen = list(kernel.params) if names is None else list(arguments.names("names", names))
    for name in chosen:
        if name not in values:
            raise _no_variance(name, values)
    arguments.choice("method", method, ("jax", "differences"))
    inputs, start = as_inputs(x), np.zeros(len(chosen))
    matrix_of = of_params(kernel, inputs)
    value = matrix_of(values)

    def moved(shift: Any, exp: Callable[[Any], Any] = np.exp) -> dict[str, Any]:
        return {**values, **{name: values[name] * exp(shift[k]) for k, name in enumerate(chosen)}}

    if method == "jax":
        import jax  # type: ignore[import-not-found]

        with double_precision():
            matrix = jax.jacfwd(lambda shift: kernel(inputs, params=moved(shift, jax.numpy.exp)))
            slopes = np.asarray(jax.jit(matrix)(jax.numpy.asarray(start)))
    else:
        slopes = central_differences(lambda shift: matrix_of(moved(shift)), start)
    return value, slopes


def central_differences(function: Callable[[np.ndarray], Any], at: np.ndarray) -> np.ndarray:
    """The derivative of `function` at a point (k,), with a last axis (k,) for the coordinates."""
    step = 1e-5  # near eps^(1/3): truncation and rounding are both about 1e-10
    slopes = [
        (np.asarray(function(at + move)) - np.asarray(function(at - move))) / (2 * step)
        for move in step * np.eye(len(at))
    ]
    return np.stack(slopes, axis=-1) if slopes else np.zeros((*np.shape(function(at)), 0))


def jax_runs(kernel: KernelFn, inputs: list[Any], params: Mapping[str, float], most: int = 5000) -> bool:
    """Whether JAX is installed, can trace this kernel, and compiles it in seconds rather than minutes.

    A kernel that calls back to NumPy gains nothing from JAX. More than `most` operations, as for inputs of
    many different lengths, compile for minutes.
    """
    if importlib.util.find_spec("jax") is None or not params:
        return False
    import jax  # type: ignore[import-not-found]

    try:
        with double_precision():
            traced = jax.make_jaxpr(lambda values: kernel(inputs, params=values))(dict(params))
    except (TypeError, AttributeError, NotImplementedError, NetsorError):  # NumPy functions on JAX's tracers
        return False
    return len(traced.jaxpr.eqns) <= most and "pure_callback" not in str(traced)


def tied_groups(tied: object, names: Iterable[str], *, partial: bool = False) -> list[tuple[str, ...]]:
    """Expand the patterns (`*`, `?`, `[...]`) in groups of names; with `partial`, ignore unknown names.

    >>> tied_groups([["W*"], ["b1"]], ["W1", "b1", "W2", "v"])
    [('W1', 'W2'), ('b1',)]
    """
    if isinstance(tied, str | bytes | Mapping) or not isinstance(tied, Iterable):
        raise DataError(
            f"tied={arguments.shown(tied)}",
            remedy="Give groups of names or patterns, as in tied=[['W1', 'W2'], ['b*']].",
        )
    groups, listed = [], list(names)
    for patterns in tied:
        members: dict[str, None] = {}  # an ordered set
        for pattern in arguments.names("tied[...]", patterns):
            matched = [name for name in listed if fnmatchcase(name, pattern)]
            if not matched and not partial:
                raise _no_variance(pattern, listed)
            members |= dict.fromkeys(matched)
        groups.append(tuple(members))
    return groups


def free_groups(
    values: Mapping[str, float], tied: Sequence[Sequence[str]], fixed: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """Group the free variances: tied ones together, others alone. Variances of 0 are not free."""
    groups = tied_groups(tied, values)
    named = [name for group in groups for name in group]
    for name in fixed:
        if name not in values:
            raise _no_variance(name, values)
    if len(set(named)) < len(named) or set(named) & set(fixed):
        raise DataError("a variance is tied twice, or tied and fixed", remedy="Name each variance once.")
    free = [name for name, value in values.items() if value > 0 and name not in fixed]
    groups = [tuple(name for name in group if name in free) for group in groups]
    return [g for g in groups if g] + [(name,) for name in free if name not in named]


def scaled(
    values: Mapping[str, float], groups: Sequence[tuple[str, ...]], leaders: Iterable[Any]
) -> dict[str, Any]:
    """The variances with those of each group in proportion to its first, which becomes one of `leaders`."""
    pairs = zip(groups, leaders, strict=True)
    return {**values, **{n: first * (values[n] / values[g[0]]) for g, first in pairs for n in g}}


def _no_variance(name: str, names: Iterable[str]) -> DataError:
    return DataError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(names)}.")
