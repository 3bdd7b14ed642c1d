"""Whether two functions are the same: all that a function can reach, as a value that is compared.

Code, numbers, texts, arrays and the containers of Python count by their content. Any other object is equal to
itself alone, and its attributes count, too, so that a state changes with them. Nothing is compared by its
printed form, by `__eq__` or by an id: a state keeps its objects alive.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from netsor.build.reachable import GENERATORS, is_foreign, is_opaque, names_in
from netsor.lang.ops import Op

__all__ = ["content_of", "state_of"]

MOST = 100_000  # objects; a larger state is equal to no other
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
OPEN = (*CONTAINERS, SimpleNamespace, type(functools.cache(len)))  # of Python's own: their parts count
UNREAD = ("__dict__", "__doc__", "__module__", "__weakref__", "_abc_impl")  # of a class
Parts = list[tuple[Any, Any]]  # with labels, which are plain values


class Held:
    """An object as a key: equal to itself alone, whatever its `__eq__` says."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def state_of(*roots: Any) -> tuple[Any, ...]:
    """All that functions and objects depend on: equal as long as nothing that they can reach has changed."""
    return tuple(_steps(roots, _exact, lambda code: code, Held))


def content_of(*roots: Any, texts: bool = False) -> str:
    """A digest of the code, numbers and arrays that functions can reach, the same in every process.

    Other objects count by their type, and so do texts unless asked for: paths differ between machines.
    """
    digest = hashlib.sha256()
    for step in _steps(roots, _exact if texts else _number, _code, _kind):
        digest.update(repr(step).encode())
    return digest.hexdigest()


def _steps(
    roots: tuple[Any, ...],
    plain: Callable[[Any], Any],
    code: Callable[[CodeType], Any],
    opaque: Callable[[Any], Any],
) -> Iterator[Any]:
    """The objects that roots reach, depth first: what each is, and the labels of its parts, which follow.

    One that was there before is given by its number, so the steps tell the whole graph.
    """
    seen: dict[int, tuple[int, Any]] = {}  # it keeps objects that are made here alive, so ids stay their own
    todo = list(reversed(roots))
    while todo:
        value = todo.pop()
        if type(value) in EXACT:
            yield plain(value)
        elif id(value) in seen:
            yield "again", seen[id(value)][0]
        elif len(seen) == MOST:
            yield opaque(object())
            return
        else:
            seen[id(value)] = len(seen), value
            what, parts = _anatomy(value, code, opaque)
            yield type(value).__name__, what, *(label for label, _ in parts)
            todo += reversed([part for _, part in parts])


EXACT: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    int: hex,  # Python refuses to write more than 4,300 decimal digits
    float: float.hex,
    complex: lambda z: (z.real.hex(), z.imag.hex()),
    str: str,
    bytes: bytes,
    type(None): type,
    type(Ellipsis): type,
}


def _exact(value: Any) -> Any:
    """1, 1.0 and True are three, 0.0 and -0.0 are two, and NaN is equal to itself."""
    return type(value).__name__, EXACT[type(value)](value)


def _number(value: Any) -> Any:
    return _exact(value) if type(value) in (bool, int, float, complex) else type(value).__name__


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _code(code: CodeType) -> tuple[Any, ...]:
    """What code does, wherever it stands."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, code.co_exceptiontable, counts, names, tuple(map(_constant, code.co_consts))


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    if isinstance(value, frozenset):
        return sorted(repr(_constant(member)) for member in value)  # their order is that of hashes
    return _exact(value)


def _anatomy(value: Any, code: Callable[..., Any], opaque: Callable[..., Any]) -> tuple[Any, Parts]:
    """What an object is without its parts, and those."""
    kind = type(value)
    if kind is FunctionType:
        return (code(value.__code__), opaque(value.__globals__)), _parts_of_function(value)
    if kind is MethodType:
        return (), [("self", value.__self__), ("function", value.__func__)]
    if kind is BuiltinMethodType:
        return value.__name__, [("self", value.__self__)]
    if kind is functools.partial:
        return (), [("function", value.func), ("args", value.args), ("keywords", value.keywords)]
    if kind in (classmethod, staticmethod):
        return (), [("function", value.__func__)]
    if kind is property:
        return (), [("get", value.fget)]
    if isinstance(value, np.ndarray | np.generic):
        return _anatomy_of_array(value, opaque)
    return () if kind in CONTAINERS else opaque(value), _parts_of_object(value)


def _anatomy_of_array(value: Any, opaque: Callable[..., Any]) -> tuple[Any, Parts]:
    numbers = np.asarray(value)
    what = () if type(value) is np.ndarray or isinstance(value, np.generic) else opaque(value)
    if numbers.dtype.hasobject:
        return (what, numbers.shape), [("members", numbers.reshape(-1).tolist()), *_attributes(value)]
    content = hashlib.sha256(numbers.tobytes()).digest()
    return (what, numbers.shape, numbers.dtype, content), _attributes(value)


def _items(value: Any) -> Parts:
    """The members of a container; a key that is no plain value is one itself."""
    if isinstance(value, dict):
        keyed = ((key, _exact(key) if type(key) in EXACT else None, part) for key, part in value.items())
        return [x for key, name, part in keyed for x in ([] if name else [("key", key)]) + [(name, part)]]
    if isinstance(value, set | frozenset):
        return [("member", part) for part in sorted(value, key=hash)]
    return list(enumerate(value)) if isinstance(value, list | tuple | deque) else []


def _attributes(value: Any) -> Parts:
    held = getattr(value, "__dict__", None)
    return [((".", name), part) for name, part in held.items()] if isinstance(held, dict) else []


def _parts_of_function(fn: FunctionType) -> Parts:
    """Its variables, defaults and attributes, and the globals that its code mentions."""
    parts: Parts = [(("default", i), value) for i, value in enumerate(fn.__defaults__ or ())]
    parts += [(("option", name), value) for name, value in (fn.__kwdefaults__ or {}).items()]
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            parts.append((("variable", name), cell.cell_contents))
        except ValueError:  # it has no value yet
            continue
    if not is_foreign(fn.__module__):
        parts += _globals_of(fn)
    return parts + _attributes(fn)


def _globals_of(fn: FunctionType) -> Parts:
    """The globals that a function mentions, and what it mentions of modules that are the user's."""
    names = names_in(fn.__code__)
    spaces = [("", fn.__globals__)]
    parts: Parts = []
    seen: set[str] = set()
    while spaces:
        place, space = spaces.pop()
        for name in names:
            value = space.get(name, sys.modules.get(name, space) if not place else space)
            if value is space:
                continue
            parts.append(((place, name), value))
            if (
                isinstance(value, ModuleType)
                and not is_foreign(value.__name__)
                and value.__name__ not in seen
            ):
                seen.add(value.__name__)
                spaces.append((value.__name__, vars(value)))
    return parts


def _parts_of_object(value: Any) -> Parts:
    """Members and attributes, and the class, whose methods and attributes count if it is the user's."""
    kind, module = type(value), str(type(value).__module__)
    if isinstance(value, type):
        members = [((".", name), part) for name, part in vars(value).items() if name not in UNREAD]
        return [] if is_foreign(value.__module__) else [("bases", value.__bases__), *members]
    if isinstance(value, (*GENERATORS, ModuleType, Op)):
        return []
    if is_opaque(module) and kind not in OPEN:
        return _parts_of_opaque(value)
    if module.startswith("netsor.") and callable(getattr(value, "fn", None)):
        return [("fn", value.fn)]  # a network inside a network notes what it was last read for
    parts = _items(value) + _attributes(value)
    if is_foreign(module):
        return parts
    slots = [name for cls in kind.__mro__ for name in _slots(cls) if hasattr(value, name)]
    return [*parts, *(((".", name), getattr(value, name)) for name in slots), ("class", kind)]


def _parts_of_opaque(value: Any) -> Parts:
    """What an object of Python's own library can be asked for: items, as those of os.environ, or bytes."""
    if isinstance(value, Mapping):
        return [("items", dict(value))]
    return [("bytes", bytes(value))] if isinstance(value, bytearray | memoryview | array) else []


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
