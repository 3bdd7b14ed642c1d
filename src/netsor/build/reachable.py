"""What a function depends on: the objects that its code mentions, through helpers, closures and objects."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from netsor.lang.ops import Op

__all__ = [
    "GENERATORS",
    "generators",
    "is_foreign",
    "is_opaque",
    "mentioned",
    "names_in",
    "reachable",
    "users_code",
]

FOREIGN = ("netsor", "numpy", "scipy", "jax", "torch")  # their code holds no parameters of a network
MOST = 100_000  # objects; what a network mentions is small
PLAIN = (bool, int, float, complex, str, bytes, type(None))
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def mentioned(fn: Callable[..., Any]) -> dict[str, Any]:
    """The globals, closure variables and defaults of a function by name, those of inner functions too."""
    if isinstance(fn, MethodType):
        return {"self": fn.__self__, **mentioned(fn.__func__)}
    if isinstance(fn, functools.partial):
        parts = {f"argument_{i}": value for i, value in enumerate(fn.args)}
        return {**_parts_of_function(fn.func), **parts, **fn.keywords}
    if not isinstance(fn, FunctionType):
        return {"self": fn}
    found: dict[str, Any] = {}
    names = names_in(fn.__code__)
    for name in names:
        value = fn.__globals__.get(name, fn)
        if isinstance(value, ModuleType) and not is_foreign(value.__name__):
            found.update((n, getattr(value, n)) for n in names if hasattr(value, n))
        elif value is not fn:
            found[name] = value
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    defaults = fn.__defaults__ or ()
    positional = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    found.update(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    return {**found, **(fn.__kwdefaults__ or {})}


def _parts_of_function(fn: Any) -> dict[str, Any]:
    return mentioned(fn) if isinstance(fn, FunctionType | MethodType | functools.partial) else {"self": fn}


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """The globals and attributes that code mentions, that of inner functions too."""
    inner = (name for part in code.co_consts if isinstance(part, CodeType) for name in names_in(part))
    return tuple(dict.fromkeys((*code.co_names, *inner)))


@functools.lru_cache(maxsize=4096)
def is_foreign(module: str | None) -> bool:
    """Whether a module is none of the user's."""
    return (module or "").partition(".")[0] in FOREIGN or is_opaque(module)


@functools.lru_cache(maxsize=4096)
def is_opaque(module: str | None) -> bool:
    """Whether objects of a module hold nothing of the user's: it is Numba's, or one of Python's own."""
    name = (module or "").partition(".")[0]
    if name not in sys.stdlib_module_names:
        return name in ("numba", "llvmlite")
    file = getattr(sys.modules.get(name), "__file__", None)  # a user's module may have such a name
    return file is None or file.startswith(sysconfig.get_path("stdlib"))


def reachable(fn: Callable[..., Any], leaves: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Every object that a function depends on, once, with a name; nothing is looked for inside `leaves`.

    Members of lists are called W_0, W_1, attributes by the name of their object and their own; what a
    function mentions, by the name that it has there.
    """
    seen: dict[int, Any] = {}
    todo = list(reversed(mentioned(fn).items()))
    while todo and len(seen) < MOST:
        name, value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value  # kept alive, so that its id stays its own
        yield name, value
        if not isinstance(value, leaves):
            todo += reversed(list(_parts(name, value)))


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object consists of, by name."""
    if isinstance(value, PLAIN + GENERATORS + (np.ndarray, np.generic, ModuleType, type, Op)):
        return
    if isinstance(value, dict):
        yield from ((f"{name}_{key}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{name}_{i}", part) for i, part in enumerate(value))
    elif isinstance(value, FunctionType | MethodType | functools.partial):
        if not is_foreign(getattr(value, "__module__", None)) or isinstance(value, functools.partial):
            yield from mentioned(value).items()
    elif isinstance(_attribute(value, "fn"), FunctionType | MethodType | functools.partial):
        yield from mentioned(value.fn).items()  # a network inside a network
    else:
        yield from _parts_of_object(name, value)


def _attribute(value: Any, name: str) -> Any:
    """An attribute that an object holds; asking for another one would run its `__getattr__`."""
    held = getattr(value, "__dict__", None)
    return held.get(name) if isinstance(held, dict) else None


def _parts_of_object(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of an object, and what the methods of its class mention."""
    prefix = "" if name == "self" else f"{name}_"
    yield from ((f"{prefix}{key}", part) for key, part in getattr(value, "__dict__", {}).items())
    kind = type(value)
    if is_foreign(kind.__module__):
        return
    for cls in kind.__mro__:
        if not is_foreign(cls.__module__):
            for slot in (
                getattr(cls, "__slots__", ()) if not isinstance(cls.__dict__.get("__slots__"), str) else ()
            ):
                if hasattr(value, slot):
                    yield f"{prefix}{slot}", getattr(value, slot)
            for part in vars(cls).values():
                if inspect.isfunction(part):
                    yield from mentioned(part).items()


def generators(fn: Callable[..., Any]) -> list[Any]:
    """The random number generators that a function can reach."""
    return [value for _, value in reachable(fn, GENERATORS) if isinstance(value, GENERATORS)]


def users_code(fn: Callable[..., Any], leaves: tuple[type, ...]) -> list[Callable[..., Any]]:
    """The function itself, or, if it is our own, the functions of others among what it holds."""
    if not is_foreign(getattr(fn, "__module__", None)):
        return [fn]
    held = (value for _, value in reachable(fn, leaves))
    kinds = (FunctionType, MethodType, functools.partial)
    return [f for f in held if isinstance(f, kinds) and not is_foreign(getattr(f, "__module__", None))]
