"""Interpretation of the jaxprs of a function at the two widths, in parallel."""

# pyright: reportMissingImports=false

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from netsor.errors import BuildError, Place
from netsor.models.axes import AxisFactor, WidthClass, finite
from netsor.models.jaxpr.laws import CALLS
from netsor.models.operations.elementwise import as_value, unary
from netsor.models.operations.masks import NO_WIDTH, mask
from netsor.models.operations.shapes import concatenate, reshape, slice_axis
from netsor.models.reader import Reader, Where
from netsor.models.values import Constant, OutputValue, Value

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
NAMED = {"relu": "relu", "silu": "silu", "swish": "silu", "softplus": "softplus"}
UNROLLED = 10_000  # the most steps of an unrolled loop


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of JAX primitives.

    A rule is called with the reader, the operands, the parameters of the equation at the two widths, and
    the shapes of its results.
    """

    def enter(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return enter


def walk(reader: Reader, one: Any, two: Any, consts: Sequence[Constant], args: Sequence[Any]) -> list[Any]:
    """Compute the results of two jaxprs that differ only in sizes."""
    if [e.primitive.name for e in one.eqns] != [e.primitive.name for e in two.eqns]:
        raise BuildError(
            "the two widths give different programs",
            remedy="The operations of the function depend on the width. Only sizes may.",
        )
    env: dict[Any, Any] = dict(zip(one.constvars, consts, strict=True))
    env |= dict(zip(one.invars, args, strict=True))

    def read(v: Any, w: Any) -> Any:
        return constant(v.val, w.val) if isinstance(v, jex.Literal) else env[v]

    needed = _needed(one)
    for e, f in zip(one.eqns, two.eqns, strict=True):
        if id(e) in needed:
            ins = [read(v, w) for v, w in zip(e.invars, f.invars, strict=True)]
            with reader.at(where(e, reader.where)):
                outs = equation(reader, e, f, ins)
                reader.single |= any(_is_single(v.aval.dtype) for v in e.outvars)
            env |= dict(zip(e.outvars, outs, strict=True))
    return [read(v, w) for v, w in zip(one.outvars, two.outvars, strict=True)]


def _needed(jaxpr: Any) -> set[int]:
    """The equations on which the results depend."""
    wanted = {id(v) for v in jaxpr.outvars}
    needed: set[int] = set()
    for e in reversed(jaxpr.eqns):
        if any(id(v) in wanted for v in e.outvars):
            needed.add(id(e))
            wanted |= {id(v) for v in e.invars}
    return needed


def _is_single(dtype: Any) -> bool:
    """Whether a type has less than double precision."""
    return jnp.issubdtype(dtype, jnp.floating) and dtype != jnp.float64


def constant(one: Any, two: Any) -> Constant:
    """Create a constant from numbers at the two widths; keep keys of random numbers unchanged."""
    is_key = jnp.issubdtype(getattr(one, "dtype", np.float64), jax.dtypes.prng_key)
    return Constant(one, two) if is_key else Constant(np.asarray(one), np.asarray(two))


def where(eqn: Any, outer: Where) -> Where:
    """The place of an equation: its name stack, its primitive, and the user's line."""
    info = eqn.source_info
    frames = info.traceback.frames if info.traceback else []  # the innermost first
    libraries = ("site-packages", "netsor/models/")
    mine = [f for f in frames if not any(part in f.file_name for part in libraries)]
    place = outer.place
    if mine:
        file, line = mine[0].file_name, mine[0].line_num
        place = Place(line, linecache.getline(file, line).rstrip("\n"), file=file.rsplit("/", 1)[-1])
    path = str(info.name_stack).replace("/", ".") or outer.module
    return Where(path, eqn.primitive.name, place)


def equation(reader: Reader, e: Any, f: Any, ins: list[Any]) -> list[Any]:
    """Apply an equation to values; if all operands are constants, run it in JAX at both widths."""
    name = e.primitive.name
    if name in CALLS:
        return _call(reader, e, f, ins)
    if name == "scan":
        return _scan(reader, e.params, f.params, ins)
    if name == "while":
        return _while(reader, e.params, f.params, ins)
    if all(isinstance(x, Constant) for x in ins):
        return _run(e, f, ins)
    if name not in RULES:
        raise reader.refuse(
            f"the JAX primitive `{name}` has no rule",
            "Write this part with functions that act coordinate by coordinate, or with the usual layers.",
        )
    shapes = [
        list(zip(v.aval.shape, w.aval.shape, strict=True)) for v, w in zip(e.outvars, f.outvars, strict=True)
    ]
    out = RULES[name](reader, ins, e.params, f.params, shapes)
    return list(out) if isinstance(out, list | tuple) else [out]


def _run(e: Any, f: Any, ins: list[Constant]) -> list[Constant]:
    outs = []
    for eqn, side in ((e, "one"), (f, "two")):
        results = eqn.primitive.bind(*(jnp.asarray(getattr(x, side)) for x in ins), **eqn.params)
        outs.append(results if eqn.primitive.multiple_results else [results])
    return [constant(a, b) for a, b in zip(*outs, strict=True)]


def _inner(params: dict[str, Any]) -> Any:
    return params.get("jaxpr") or params.get("call_jaxpr") or params.get("fun_jaxpr")


def _closed(reader: Reader, a: Any, b: Any, ins: list[Any]) -> list[Any]:
    """Run a closed jaxpr, with its constants."""
    if not hasattr(a, "consts"):
        return walk(reader, a, b, [], ins)
    consts = [constant(x, y) for x, y in zip(a.consts, b.consts, strict=True)]
    return walk(reader, a.jaxpr, b.jaxpr, consts, ins)


def _call(reader: Reader, e: Any, f: Any, ins: list[Any]) -> list[Any]:
    name = e.params.get("name")
    if name == "_bernoulli" and all(isinstance(x, Constant) for x in ins):
        return [_bernoulli(reader, _closed(reader, _inner(e.params), _inner(f.params), ins)[0], ins[-1])]
    if name in NAMED and len(ins) == 1 and isinstance(ins[0], Value):
        return [unary(reader, NAMED[name], ins[0])]
    return _closed(reader, _inner(e.params), _inner(f.params), ins)


def _bernoulli(reader: Reader, drawn: Constant, keep: Constant) -> Value:
    """Create a mask of dropout, which is drawn anew for each input, for any key."""
    widths = [a != b for a, b in drawn.shape]
    if not any(widths) or keep.number is None:
        raise reader.refuse("random numbers without a width are drawn", NO_WIDTH)
    axes = tuple(
        (AxisFactor(size, WidthClass()),) if wide else finite(size[0])
        for size, wide in zip(drawn.shape, widths, strict=True)
    )
    return mask(reader, keep.number, axes, np.asarray(drawn.one, float))


# Loops


def _scan(reader: Reader, p: dict[str, Any], q: dict[str, Any], ins: list[Any]) -> list[Any]:
    """Unroll a loop of fixed length."""
    fixed, carried = p["num_consts"], p["num_carry"]
    consts, carry, xs = ins[:fixed], ins[fixed : fixed + carried], ins[fixed + carried :]
    length = p["length"]
    if length != q["length"]:
        raise reader.refuse(
            "the number of steps of a loop depends on the width", "Loops run over finite axes."
        )
    stacked: dict[int, list[Any]] = {}
    for t in reversed(range(length)) if p["reverse"] else range(length):
        outs = _closed(
            reader, p["jaxpr"], q["jaxpr"], [*consts, *carry, *(_member(reader, x, t) for x in xs)]
        )
        carry, stacked[t] = outs[:carried], outs[carried:]
    count = len(stacked[0]) if length else 0
    return [*carry, *(_stack(reader, [stacked[t][k] for t in range(length)]) for k in range(count))]


def _member(reader: Reader, x: Any, t: int) -> Any:
    if isinstance(x, Constant):
        return Constant(x.one[t], x.two[t])
    part = slice_axis(reader, x, 0, (t, t), (t + 1, t + 1))
    return reshape(reader, part, part.shape[1:])


def _stack(reader: Reader, parts: list[Any]) -> Any:
    if all(isinstance(x, Constant) for x in parts):
        return Constant(np.stack([x.one for x in parts]), np.stack([x.two for x in parts]))
    if isinstance(parts[0], OutputValue):
        raise reader.refuse(
            "outputs are collected by a loop",
            "Collect the states in the loop, and apply the readout after it.",
        )
    values = [as_value(reader, x) for x in parts]
    return concatenate(reader, [reshape(reader, v, [(1, 1), *v.shape]) for v in values], 0)


def _while(reader: Reader, p: dict[str, Any], q: dict[str, Any], ins: list[Any]) -> list[Any]:
    """Unroll a loop whose condition depends only on constants."""
    nc, nb = p["cond_nconsts"], p["body_nconsts"]
    cond, body, carry = ins[:nc], ins[nc : nc + nb], ins[nc + nb :]
    for _ in range(UNROLLED):
        (go,) = _closed(reader, p["cond_jaxpr"], q["cond_jaxpr"], [*cond, *carry])
        if not isinstance(go, Constant) or go.one.item() != go.two.item():
            raise reader.refuse(
                "a loop whose number of steps depends on values",
                "A program is straight-line: use lax.scan or lax.fori_loop with a fixed number of steps.",
            )
        if not go.one.item():
            return carry
        carry = _closed(reader, p["body_jaxpr"], q["body_jaxpr"], [*body, *carry])
    raise reader.refuse(f"a loop of more than {UNROLLED} steps", "Use fewer steps.")
