"""The laws of JAX parameters, read from the jaxpr of their initialiser."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from scipy.stats import truncnorm

from netsor.models.laws import Law, measured_law

CALLS = {  # primitives that call an inner jaxpr
    *("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
}


@dataclass(frozen=True)
class Draw:
    """An array of independent draws: mean, variance, and the name of the law."""

    mean: float
    var: float
    name: str

    def affine(self, factor: float, shift: float = 0.0) -> Draw:
        return Draw(self.mean * factor + shift, self.var * factor**2, self.name)


class Unknown:
    """Random numbers whose law is unknown."""


UNKNOWN = Unknown()


def label(path: Sequence[Any]) -> str:
    """The name of a leaf of a tree of parameters: `layers.0.kernel`."""
    names = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
    return ".".join(names)


def read_laws(init: Callable[[Any], Any]) -> tuple[dict[str, Law], Any]:
    """Read the laws of the leaves of `init(key)` by name, and the shapes of the tree."""
    closed, shape = jax.make_jaxpr(init, return_shape=True)(jax.random.key(0))
    leaves = jax.tree_util.tree_flatten_with_path(shape)[0]
    values = run(closed.jaxpr, closed.consts, [UNKNOWN] * len(closed.jaxpr.invars))
    laws = {label(path): _law(value) for (path, _), value in zip(leaves, values, strict=True)}
    if any(law is None for law in laws.values()):
        draws = [jax.tree_util.tree_leaves(init(jax.random.key(seed))) for seed in range(4)]
        for k, (path, _) in enumerate(leaves):
            if laws[label(path)] is None:
                laws[label(path)] = measured_law(
                    np.concatenate([np.ravel(np.asarray(d[k], float)) for d in draws])
                )
    return {name: law for name, law in laws.items() if law is not None}, shape


def _law(value: Any) -> Law | None:
    if isinstance(value, Draw):
        return Law(value.mean, (value.var, value.var), value.name)
    if isinstance(value, Unknown):
        return None
    array = np.asarray(value)
    if array.size and (array == array.flat[0]).all():
        return Law(float(array.flat[0]), (0.0, 0.0), "constant")
    return None


def run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Interpret a jaxpr on numbers and draws."""
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env |= dict(zip(jaxpr.invars, args, strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, jex.Literal) else env[v]

    for eqn in jaxpr.eqns:
        env |= dict(zip(eqn.outvars, _equation(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _equation(eqn: Any, ins: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    if name in CALLS and inner is not None:
        drawn = _drawn(eqn.params.get("name", ""), ins)
        return [drawn] if drawn else run(inner.jaxpr, inner.consts, ins)
    if any(isinstance(x, Draw) for x in ins):
        return [_affine(name, ins)] * len(eqn.outvars)
    if any(isinstance(x, Unknown) for x in ins) or name.startswith("random_"):
        return [UNKNOWN] * len(eqn.outvars)
    out = eqn.primitive.bind(*map(jnp.asarray, ins), **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]


def _drawn(name: str, ins: list[Any]) -> Draw | None:
    """The law of JAX's sampling functions."""
    match name:
        case "_normal" | "_normal_real":
            return Draw(0.0, 1.0, "normal")
        case "_uniform":
            low, high = (float(np.asarray(x)) for x in ins[1:3])
            return Draw((low + high) / 2, (high - low) ** 2 / 12, "uniform")
        case "_truncated_normal":
            z = truncnorm(*(float(np.asarray(x)) for x in ins[1:3]))
            return Draw(float(z.mean()), float(z.var()), "truncated normal")
    return None


def _affine(name: str, ins: list[Any]) -> Draw | Unknown:
    """Multiply a draw by numbers, or add numbers to it."""
    if name in ("reshape", "transpose", "convert_element_type", "broadcast_in_dim", "copy", "squeeze", "rev"):
        return ins[0]
    if name == "neg":
        return ins[0].affine(-1.0)
    if name not in ("mul", "div", "add", "sub") or len(ins) != 2:
        return UNKNOWN
    first = isinstance(ins[0], Draw)
    draw, other = (ins[0], ins[1]) if first else (ins[1], ins[0])
    c = None if isinstance(other, Draw | Unknown) else _number(other)
    if c is None or (name == "div" and not first):
        return UNKNOWN
    match name:
        case "mul":
            return draw.affine(c)
        case "div":
            return draw.affine(1 / c)
        case "add":
            return draw.affine(1.0, c)
    return draw.affine(1.0, -c) if first else draw.affine(-1.0, c)


def _number(x: Any) -> float | None:
    array = np.asarray(x)
    return float(array.flat[0]) if array.size and (array == array.flat[0]).all() else None
