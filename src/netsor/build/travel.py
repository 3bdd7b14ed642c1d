"""How the function of a network travels to another process.

`pickle` takes functions by name, but a function that another one has made has none, and every network of the
zoo is such a function. One of our own travels as its place in the source and the variables that it holds, so
that what is shared stays shared; a user's needs cloudpickle, which takes its code along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import CellType, CodeType, FunctionType
from typing import Any

from netsor.errors import BuildError

__all__ = ["Inner", "arrived", "portable"]


@dataclass(frozen=True)
class Inner:
    """A function of netsor that another one has made: where its code stands, and what it holds.

    name    its qualified name, as in `mlp.<locals>.mlp`
    number  among the functions of this name
    held    its closure variables
    """

    module: str
    name: str
    number: int
    held: dict[str, Any]
    defaults: tuple[Any, ...] | None
    options: dict[str, Any] | None


def portable(fn: Any) -> Any:
    """A function as it travels; what is not made by a function of netsor stays as it is."""
    if not isinstance(fn, FunctionType) or not fn.__module__.startswith("netsor."):
        return fn
    codes = list(_codes(fn.__module__, fn.__qualname__))
    if fn.__code__ not in codes:
        return fn
    cells = (cell.cell_contents for cell in fn.__closure__ or ())
    held = dict(zip(fn.__code__.co_freevars, map(portable, cells), strict=True))
    number = codes.index(fn.__code__)
    return Inner(fn.__module__, fn.__qualname__, number, held, fn.__defaults__, fn.__kwdefaults__)


def arrived(fn: Any) -> Any:
    """The function again, from what `portable` made of it."""
    if not isinstance(fn, Inner):
        return fn
    code = dict(enumerate(_codes(fn.module, fn.name))).get(fn.number)
    if code is None or code.co_freevars != tuple(fn.held):
        raise BuildError(
            f"there is no `{fn.name}` in {fn.module} as it was where the network was pickled",
            remedy="Use the same version of netsor on both sides.",
        )
    cells = tuple(CellType(arrived(value)) for value in fn.held.values())
    made = FunctionType(code, vars(import_module(fn.module)), code.co_name, fn.defaults, cells)
    made.__kwdefaults__, made.__qualname__ = fn.options, fn.name
    return made


def _codes(module: str, name: str) -> Iterator[CodeType]:
    """The codes of a qualified name inside a function of a module, in order."""
    outer, _, inner = name.partition(".<locals>.")
    start = getattr(import_module(module), outer, None)
    todo = [start.__code__] if inner and isinstance(start, FunctionType) else []
    while todo:
        code = todo.pop(0)
        if code.co_qualname == name:
            yield code
        todo += [part for part in code.co_consts if isinstance(part, CodeType)]
