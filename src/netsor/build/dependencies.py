"""Dependencies of a function: all objects that its code, variables and attributes reach.

Code, numbers, texts, arrays and Python's containers are compared by content. Any other object is compared by
identity, and by its attributes.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
import sysconfig
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from netsor.lang.ops import Op

MOST = 100_000  # objects; beyond, a state equals no other, so the network is read again at every call
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
Parts = list[tuple[Any, Any]]  # labels and objects; a label is a plain value


def reachable(root: object, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Yield every object of these kinds that a function depends on, once and with a name."""
    seen: dict[int, Any] = {}  # keeps objects alive, so that their ids stay unique
    todo = [("", root)]
    while todo and len(seen) < MOST:
        name, value = todo.pop()
        if type(value) not in EXACT and id(value) not in seen:
            seen[id(value)] = value
            if isinstance(value, kinds):
                yield name, value
            else:
                todo += [(_name(name, label), part) for label, part in reversed(_parts(value))]


def _name(parent: str, label: Any) -> str:
    """Name a part: a variable keeps its name; members of a list W are W_0 and W_1, and so are attributes."""
    if isinstance(label, str):
        return "self" if label == "self" else parent
    prefix = "" if parent in ("", "self") else f"{parent}_"
    return f"{prefix}{label[-1]}" if label[0] in (".", "item") else str(label[-1])


class _Identity:
    """A key that compares an object by identity, whatever its `__eq__` does."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def state_of(*roots: object) -> tuple[Any, ...]:
    """Return a value that stays equal until an object that `roots` reach changes; it keeps them alive."""
    return tuple(_steps(roots, _exact, lambda code: code, _Identity))


def content_of(*roots: object, texts: bool = False) -> str:
    """Return a digest of the code, numbers and arrays that functions reach; it is the same in every process.

    Other objects count by their type only. So do texts, unless `texts` is set: paths differ between machines.
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
    """Visit objects depth first. A step describes an object and the labels of its parts, which follow.

    A repeated object is described by its number, so the steps determine the whole graph, cycles included.

    plain   describes a plain value (see EXACT)
    code    describes the code of a function
    opaque  describes any other object
    """
    seen: dict[int, tuple[int, Any]] = {}  # keeps objects alive, so that their ids stay unique
    todo = list(reversed(roots))
    while todo:
        value = todo.pop()
        kind = type(value)
        if kind in EXACT:
            yield plain(value)
        elif kind is tuple and all(type(member) in EXACT for member in value):
            yield "tuple", *map(plain, value)
        elif id(value) in seen:
            yield "again", seen[id(value)][0]
        elif len(seen) == MOST:
            yield opaque(object())  # a new object, so the state equals no other
            return
        else:
            seen[id(value)] = len(seen), value
            parts = _parts(value)
            yield kind.__name__, _content(value, code, opaque), *[label for label, _ in parts]
            todo += [part for _, part in reversed(parts)]


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


def _exact(value: object) -> Any:
    """Describe a value so that 1, 1.0 and True differ, 0.0 and -0.0 differ, and NaN equals itself."""
    kind = type(value)
    return kind.__name__, EXACT[kind](value)


def _number(value: object) -> Any:
    """Describe a number by its value, and any other plain value by its type."""
    return _exact(value) if type(value) in (bool, int, float, complex) else type(value).__name__


def _kind(value: object) -> str:
    """The qualified name of an object's type."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _code(code: CodeType) -> tuple[Any, ...]:
    """Describe code without its file and line numbers."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, code.co_exceptiontable, counts, names, tuple(map(_constant, code.co_consts))


def _constant(value: object) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    if isinstance(value, frozenset):
        return sorted(repr(_constant(member)) for member in value)  # their order depends on hashes
    return _exact(value)


def _content(value: Any, code: Callable[..., Any], opaque: Callable[..., Any]) -> Any:
    """Describe an object without its parts."""
    kind = type(value)
    if kind is FunctionType:
        return code(value.__code__), opaque(value.__globals__)
    if kind is BuiltinMethodType:
        return value.__name__
    if kind in WRAPPERS or kind in CONTAINERS:
        return ()
    if not isinstance(value, np.ndarray | np.generic):
        return opaque(value)
    numbers = np.asarray(value)
    subclass = None if kind is np.ndarray or isinstance(value, np.generic) else opaque(value)
    data = b"" if numbers.dtype.hasobject else numbers.tobytes()
    return subclass, numbers.shape, numbers.dtype, data if len(data) <= 32 else hashlib.sha256(data).digest()


def _parts(value: Any) -> Parts:
    """List the objects that an object contains or refers to, with labels."""
    kind = type(value)
    if kind in CONTAINERS:
        return _items(value)
    if kind is FunctionType:
        return _parts_of_function(value)
    if kind in WRAPPERS:
        return WRAPPERS[kind](value)
    if isinstance(value, np.ndarray | np.generic):
        members = np.asarray(value).reshape(-1).tolist() if value.dtype.hasobject else ()
        return [*((("item", i), part) for i, part in enumerate(members)), *_attributes(value)]
    if isinstance(value, type):
        # Python sets these itself; they do not affect what the class does.
        unread = ("__dict__", "__doc__", "__module__", "__weakref__", "_abc_impl")
        members = [((".", name), part) for name, part in vars(value).items() if name not in unread]
        return [] if is_foreign(value.__module__) else [("bases", value.__bases__), *members]
    return [] if isinstance(value, (*GENERATORS, ModuleType, Op)) else _parts_of_object(value)


def _parts_of_partial(value: functools.partial) -> Parts:
    positional = [(("argument", f"argument_{i}"), part) for i, part in enumerate(value.args)]
    return [("function", value.func), *positional, *((("option", n), p) for n, p in value.keywords.items())]


# Objects that are determined by what they wrap.
WRAPPERS: dict[type, Callable[[Any], Parts]] = {
    MethodType: lambda method: [("self", method.__self__), ("function", method.__func__)],
    BuiltinMethodType: lambda method: [("self", method.__self__)],
    functools.partial: _parts_of_partial,
    classmethod: lambda method: [("function", method.__func__)],
    staticmethod: lambda method: [("function", method.__func__)],
    property: lambda attribute: [("get", attribute.fget)],
}


def _parts_of_function(fn: FunctionType) -> Parts:
    """The globals that a function mentions, its closure, defaults and attributes."""
    # Doctests run under the name of a module, but with globals of their own.
    module = sys.modules.get(fn.__module__ or "")
    of_its_module = module is not None and fn.__globals__ is vars(module)
    parts = [] if of_its_module and is_foreign(fn.__module__) else _globals_of(fn)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            parts.append((("variable", name), cell.cell_contents))
        except ValueError:  # an unassigned variable of the closure
            continue
    arguments, defaults = fn.__code__.co_varnames[: fn.__code__.co_argcount], fn.__defaults__ or ()
    with_default = arguments[len(arguments) - len(defaults) :]
    parts += [(("default", name), part) for name, part in zip(with_default, defaults, strict=True)]
    return parts + [(("option", n), part) for n, part in (fn.__kwdefaults__ or {}).items()] + _attributes(fn)


def _globals_of(fn: FunctionType) -> Parts:
    """The globals that a function mentions, and the members of the user's modules that it mentions."""
    parts: Parts = []
    spaces = {"": fn.__globals__}
    todo = [""]
    for place in todo:
        space = spaces[place]
        for name in _names_in(fn.__code__):
            value = space.get(name, sys.modules.get(name, space) if not place else space)
            if value is space:
                continue
            parts.append(((place, name), value))
            if isinstance(value, ModuleType) and not is_foreign(value.__name__):
                if value.__name__ not in spaces:
                    todo.append(value.__name__)
                spaces[value.__name__] = vars(value)
    return parts


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """The globals and attributes that code mentions, including inner functions."""
    inner = (name for part in code.co_consts if isinstance(part, CodeType) for name in _names_in(part))
    return tuple(dict.fromkeys((*code.co_names, *inner)))


@functools.lru_cache(maxsize=4096)
def is_foreign(module: str | None) -> bool:
    """Whether a module is a known library, whose code holds no parameters of a network."""
    foreign = ("netsor", "numpy", "scipy", "jax", "torch")
    return (module or "").partition(".")[0] in foreign or _is_opaque(module)


@functools.lru_cache(maxsize=4096)
def _is_opaque(module: str | None) -> bool:
    """Whether objects of a module hold no objects of the user: it is Numba's or of the standard library."""
    name = (module or "").partition(".")[0]
    if name not in sys.stdlib_module_names:
        return name in ("numba", "llvmlite")
    file = getattr(sys.modules.get(name), "__file__", None)  # a user's module may have such a name
    return file is None or file.startswith(sysconfig.get_path("stdlib"))


def _parts_of_object(value: Any) -> Parts:
    """Members and attributes of an object, and its class if that is the user's."""
    kind, module = type(value), str(type(value).__module__)
    if _is_opaque(module) and kind not in (SimpleNamespace, functools._lru_cache_wrapper):
        if isinstance(value, Mapping):  # such as os.environ
            return [("items", dict(value))]
        return [("bytes", bytes(value))] if isinstance(value, bytearray | memoryview | array) else []
    if module.startswith("netsor.") and callable(getattr(value, "fn", None)):
        return [("fn", value.fn)]  # a network's other attributes cache its last reading
    parts = _items(value) + _attributes(value)
    if is_foreign(module):
        return parts
    for cls in kind.__mro__:
        slots = vars(cls).get("__slots__", ())
        names = {slots} if isinstance(slots, str) else dict.fromkeys(slots)
        held = (name for name in names if name not in ("__dict__", "__weakref__") and hasattr(value, name))
        parts += [((".", name), getattr(value, name)) for name in held]
    return [*parts, ("class", kind)]


def _items(value: object) -> Parts:
    """The members of a container; a key of a dictionary that is no plain value counts as a member, too."""
    if isinstance(value, dict):
        parts: Parts = []
        for key, part in value.items():
            plain = type(key) in EXACT
            parts += [] if plain else [("key", key)]
            parts.append((("item", _exact(key), key) if plain else "value", part))
        return parts
    if isinstance(value, set | frozenset):
        return [("member", part) for part in sorted(value, key=hash)]
    return [(("item", i), p) for i, p in enumerate(value)] if isinstance(value, list | tuple | deque) else []


def _attributes(value: object) -> Parts:
    attributes = getattr(value, "__dict__", None)
    return [((".", name), p) for name, p in attributes.items()] if isinstance(attributes, dict) else []
