"""Ways to write y -> sin(a y), each of which holds the number a somewhere else.

`FAMILIES` make a function from a; `CHANGING` make a function and what changes its a afterwards.
"""

import array
import enum
import functools
import math
import os
import struct
import sys
import types
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

Function = Callable[[Any], Any]
Make = Callable[[float], Function]
FAMILIES: dict[str, Make] = {}
CHANGING: dict[str, Callable[[float], tuple[Function, Callable[[float], Any]]]] = {}


def family(make: Make) -> Make:
    FAMILIES[make.__name__] = make
    return make


def changing(make: Any) -> Any:
    CHANGING[make.__name__] = make
    return make


class Plain:
    def __init__(self, a: Any) -> None:
        self.a = a

    def method(self, y):
        return np.sin(self.a * y)

    def other(self, y):
        return np.sin(self.scale * y)

    def __call__(self, y):
        return np.sin(self.a * y)

    @property
    def scale(self) -> Any:
        return self.a

    half = functools.partialmethod(method)


class Equal(Plain):
    """Says that it is equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class Unhashable(Plain):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class Printed(Plain):
    """Looks like all others."""

    def __repr__(self) -> str:
        return "Printed()"

    __str__ = __repr__


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: float) -> None:
        self.a = a

    def method(self, y):
        return np.sin(self.a * y)


class Dynamic:
    """Its attributes are not in its dictionary."""

    def __init__(self, a: float) -> None:
        object.__setattr__(self, "_held", {"a": a})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._held[name]

    def __call__(self, y):
        return np.sin(self.a * y)


@dataclass(frozen=True)
class Frozen:
    a: float

    def method(self, y):
        return np.sin(self.a * y)


@dataclass
class WithArray:
    table: np.ndarray

    def __call__(self, y):
        return np.sin(self.table[600] * y)


class Tupled(namedtuple("Tupled", "a")):
    def method(self, y):
        return np.sin(self.a * y)


def times(y, a=1.0):
    return np.sin(a * y)


def two(a, y):
    return np.sin(a * y)


def table(a: float, dtype: Any = float) -> np.ndarray:
    values = np.linspace(0.0, 1.0, 1200).astype(dtype)
    values[600] = a
    return values


def written(text: str, **names: Any) -> Function:
    """A function of its own source, in globals of its own."""
    scope = {"np": np, "__name__": "written", **names}
    exec(text, scope)
    return scope["f"]


# Objects and their methods
FAMILIES |= {
    "bound method": lambda a: Plain(a).method,
    "method that reads a property": lambda a: Plain(a).other,
    "partial method": lambda a: Plain(a).half,
    "method of slots": lambda a: Slotted(a).method,
    "callable object": Plain,
    "object equal to all": Equal,
    "method of an object equal to all": lambda a: Equal(a).method,
    "object without a hash": Unhashable,
    "object of one printed form": Printed,
    "method of a frozen dataclass": lambda a: Frozen(a).method,
    "dataclass with an array": lambda a: WithArray(table(a)),
    "method of a named tuple": lambda a: Tupled(a).method,
    "dynamic attributes": Dynamic,
    "object in an object": lambda a: Plain(np.float64(a)).method,
    "object with a list": lambda a: (lambda held: lambda y: np.sin(held.a[1] * y))(Plain([0.0, a])),
    "unbound method": lambda a: functools.partial(Plain.method, Plain(a)),
    "call of an object": lambda a: Plain(a).__call__,
}

# Partials and defaults
FAMILIES |= {
    "partial": lambda a: functools.partial(two, a),
    "partial with keyword": lambda a: functools.partial(times, a=a),
    "partial of a partial": lambda a: functools.partial(functools.partial(times), a=a),
    "partial of a method": lambda a: functools.partial(Plain(a).method),
    "partial over an array": lambda a: functools.partial(lambda t, y: np.sin(t[600] * y), table(a)),
    "default": lambda a: lambda y, a=a: np.sin(a * y),
    "keyword-only default": lambda a: lambda y, *, a=a: np.sin(a * y),
    "default array": lambda a: (lambda held: lambda y, t=held: np.sin(t[600] * y))(table(a)),
    "keyword-only default tuple": lambda a: (lambda held: lambda y, *, t=held: np.sin(t[0][600] * y))(
        (table(a),)
    ),
    "default object": lambda a: (lambda held: lambda y, o=held: np.sin(o.a * y))(Printed(a)),
}

# Closures
FAMILIES |= {
    "closure": lambda a: lambda y: np.sin(a * y),
    "closure over a tuple": lambda a: (lambda t: lambda y: np.sin(t[1] * y))((1, a)),
    "tuple with a long array": lambda a: (lambda t: lambda y: np.sin(t[0][600] * y))((table(a), 1.0)),
    "long array": lambda a: (lambda t: lambda y: np.sin(t[600] * y))(table(a)),
    "long list": lambda a: (lambda t: lambda y: np.sin(t[600] * y))(table(a).tolist()),
    "list": lambda a: (lambda t: lambda y: np.sin(t[1] * y))([1, a]),
    "dictionary": lambda a: (lambda t: lambda y: np.sin(t["a"] * y))({"b": 1.0, "a": a}),
    "keys of a dictionary": lambda a: (lambda t: lambda y: np.sin(next(iter(t)) * y))({a: "a"}),
    "array in a dictionary": lambda a: (lambda t: lambda y: np.sin(t["x"]["a"][600] * y))(
        {"x": {"a": table(a)}}
    ),
    "object": lambda a: (lambda o: lambda y: np.sin(o.a * y))(Plain(a)),
    "object equal to all in a closure": lambda a: (lambda o: lambda y: np.sin(o.a * y))(Equal(a)),
    "inner function": lambda a: (lambda g: lambda y: np.sin(g(y)))(lambda y: a * y),
    "two levels": lambda a: (lambda g: lambda y: g()(y))(lambda: lambda y: np.sin(a * y)),
    "function inside": lambda a: lambda y: (lambda z: np.sin(a * z))(y),
    "namespace": lambda a: (lambda o: lambda y: np.sin(o.a * y))(types.SimpleNamespace(a=a)),
    "deque": lambda a: (lambda d: lambda y: np.sin(d[0] * y))(deque([a])),
    "set": lambda a: (lambda s: lambda y: np.sin(max(s) * y))({a, -5.0}),
    "frozen set": lambda a: (lambda s: lambda y: np.sin(max(s) * y))(frozenset({a, -5.0})),
    "bytes": lambda a: (lambda b: lambda y: np.sin(struct.unpack("d", b)[0] * y))(struct.pack("d", a)),
    "byte array": lambda a: (lambda b: lambda y: np.sin(struct.unpack("d", b)[0] * y))(
        bytearray(struct.pack("d", a))
    ),
    "text": lambda a: (lambda s: lambda y: np.sin(float.fromhex(s) * y))(float(a).hex()),
    "whole numbers": lambda a: (lambda n, d: lambda y: np.sin(n / d * y))(*float(a).as_integer_ratio()),
    "fraction": lambda a: (lambda q: lambda y: np.sin(float(q) * y))(Fraction(a)),
    "decimal": lambda a: (lambda q: lambda y: np.sin(float(q) * y))(Decimal(a)),
    "complex number": lambda a: (lambda z: lambda y: np.sin(z.imag * y))(complex(0.0, a)),
    "NumPy number": lambda a: (lambda q: lambda y: np.sin(q * y))(np.float64(a)),
    "array without axes": lambda a: (lambda q: lambda y: np.sin(q * y))(np.array(a)),
    "array of objects": lambda a: (lambda q: lambda y: np.sin(q[1].a * y))(np.array([None, Plain(a)])),
    "records": lambda a: (lambda q: lambda y: np.sin(q["a"][0] * y))(
        np.array([(a, 1)], [("a", "f8"), ("n", "i4")])
    ),
    "masked array": lambda a: (lambda q: lambda y: np.sin(q.compressed()[0] * y))(
        np.ma.array([a, 9.0], mask=[False, True])
    ),
    "which entry is masked": lambda a: (lambda q: lambda y: np.sin(q.compressed().sum() * y))(
        np.ma.array([a, 0.5, a - 0.5], mask=[False, True, True])
    ),
    "strided view": lambda a: (lambda q: lambda y: np.sin(q[300] * y))(table(a)[::2]),
    "array of the library": lambda a: (lambda q: lambda y: np.sin(q[0] * y))(array.array("d", [a])),
    "which of two variables": lambda a: _either(a),
    "slice": lambda a: (lambda s, t: lambda y: np.sin(t[s][0] * y))(slice(600, 601), table(a)),
    "method of an array": lambda a: (lambda item: lambda y: np.sin(item() * y))(np.array(a).item),
    "cached helper": lambda a: (lambda g: lambda y: np.sin(g() * y))(functools.cache(lambda: a)),
    "iterated": lambda a: (lambda t: lambda y: np.sin(sum(t) * y))([a / 2, a / 2]),
}  # fmt: skip

ONE, TWO = Plain(1.1), Plain(1.7)


def _either(a: float) -> Function:
    """c is one of two objects that are in the closure anyway."""
    first, second = ONE, TWO
    rest = a / (1.1 if a < 1.5 else 1.7)
    chosen = first if a < 1.5 else second

    def f(y):
        return np.sin(chosen.a * rest * y) if first is not second else y

    return f


# Code and globals
FAMILIES |= {
    "constant of the code": lambda a: written(f"def f(y):\n    return np.sin({a!r} * y)"),
    "constant of inner code": lambda a: written(f"def f(y):\n    return (lambda z: np.sin({a!r} * z))(y)"),
    "tuple constant of the code": lambda a: written(f"def f(y):\n    return np.sin((0.0, {a!r})[1] * y)"),
    "global": lambda a: written("def f(y):\n    return np.sin(a * y)", a=a),
    "global array": lambda a: written("def f(y):\n    return np.sin(a[600] * y)", a=table(a)),
    "global object": lambda a: written("def f(y):\n    return np.sin(o.a * y)", o=Printed(a)),
    "global function": lambda a: written("def f(y):\n    return g(y)", g=Plain(a).method),
    "function of a function": lambda a: written(
        "def h(y):\n    return np.sin(a * y)\ndef g(y):\n    return h(y)\ndef f(y):\n    return g(y)", a=a
    ),
    "attribute of a class": lambda a: (lambda c: lambda y: np.sin(c.a * y))(type("C", (), {"a": a})),
    "inherited attribute": lambda a: type("D", (type("C", (Plain,), {"b": a}),), {})(a).method,
    "class method": lambda a: type(
        "C", (), {"a": a, "f": classmethod(lambda cls, y: np.sin(cls.a * y)), "__module__": __name__}
    ).f,
    "static method": lambda a: type("C", (), {"f": staticmethod(lambda y: np.sin(a * y))}).f,
    "enumeration": lambda a: (lambda e: lambda y: np.sin(e.A.value * y))(enum.Enum("E", {"A": a})),
    "attribute of the function": lambda a: _with_attribute(a),
    "wrapped function": lambda a: functools.wraps(times)(lambda y: times(y, a)),
    "np.vectorize": lambda a: np.vectorize(lambda y: math.sin(a * y), otypes=[float]),
    "np.vectorize without types": lambda a: np.vectorize(lambda y: math.sin(a * y)),
    "attribute of a module": lambda a: _of_module(a),
}  # fmt: skip


def _with_attribute(a: float) -> Function:
    f = written("def f(y):\n    return np.sin(f.a * y)")
    f.a = a  # type: ignore[attr-defined]
    return f


def _of_module(a: float) -> Function:
    inner: Any = types.ModuleType("inner_module")
    inner.a = a
    outer: Any = types.ModuleType("outer_module")
    outer.inner = inner
    return written("def f(y):\n    return np.sin(outer.inner.a * y)", outer=outer)


# What changes


@changing
def attribute(a):
    held = Plain(a)
    return held.method, lambda b: setattr(held, "a", b)


@changing
def callable_object(a):
    held = Equal(a)
    return held, lambda b: setattr(held, "a", b)


@changing
def object_without_hash(a):
    held = Unhashable(a)
    return held, lambda b: setattr(held, "a", b)


@changing
def slot(a):
    held = Slotted(a)
    return held.method, lambda b: setattr(held, "a", b)


@changing
def dynamic_attribute(a):
    held = Dynamic(a)
    return held, lambda b: held._held.update(a=b)


@changing
def cell(a):
    def change(b):
        nonlocal a
        a = b

    return lambda y: np.sin(a * y), change


@changing
def global_variable(a):
    f = written("def f(y):\n    return np.sin(a * y)", a=a)
    return f, lambda b: f.__globals__.update(a=b)


@changing
def helper_function(a):
    f = written("def f(y):\n    return g(y)", g=Plain(a).method)
    return f, lambda b: f.__globals__.update(g=Plain(b).method)


@changing
def helper_made_anew(a):
    """The old one is collected, and the new one may have its address."""
    held = types.SimpleNamespace(g=lambda y: np.sin(a * y))

    def change(b):
        held.g = None
        held.g = lambda y: np.sin(b * y)

    return lambda y: held.g(y), change


@changing
def array_in_place(a):
    held = table(a)
    return lambda y: np.sin(held[600] * y), lambda b: held.__setitem__(600, b)


@changing
def list_in_place(a):
    held = [1, a]
    return lambda y: np.sin(held[1] * y), lambda b: held.__setitem__(1, b)


@changing
def dictionary_in_place(a):
    held = {"a": [a]}
    return lambda y: np.sin(held["a"][0] * y), lambda b: held.update(a=[b])


@changing
def attribute_of_a_class(a):
    class Held:
        value: ClassVar[float] = a

    return lambda y: np.sin(Held.value * y), lambda b: setattr(Held, "value", b)


@changing
def class_attribute_of_an_object(a):
    kind = type("Held", (Plain,), {"scale": a})
    return kind(0.0).other, lambda b: setattr(kind, "scale", b)


@changing
def keyword_only_default(a):
    def f(y, *, a=a):
        return np.sin(a * y)

    return f, lambda b: f.__kwdefaults__.update(a=b)


@changing
def default(a):
    def f(y, a=a):
        return np.sin(a * y)

    return f, lambda b: setattr(f, "__defaults__", (b,))


@changing
def code(a):
    def f(y):
        return np.sin(1.1 * y)

    f.__code__ = written(f"def f(y):\n    return np.sin({a!r} * y)").__code__
    return f, lambda b: setattr(f, "__code__", written(f"def f(y):\n    return np.sin({b!r} * y)").__code__)


@changing
def attribute_of_the_function(a):
    f = _with_attribute(a)
    return f, lambda b: setattr(f, "a", b)


@changing
def attribute_of_a_module(a):
    f = _of_module(a)
    return f, lambda b: setattr(f.__globals__["outer"].inner, "a", b)


@changing
def module_by_import(a):
    inner: Any = types.ModuleType("module_by_import")
    inner.a = a
    sys.modules["module_by_import"] = inner
    f = written("def f(y):\n    import module_by_import\n    return np.sin(module_by_import.a * y)")
    return f, lambda b: setattr(inner, "a", b)


@changing
def deque_in_place(a):
    held = deque([a])
    return lambda y: np.sin(held[0] * y), lambda b: held.__setitem__(0, b)


@changing
def byte_array(a):
    held = bytearray(struct.pack("d", a))
    return lambda y: np.sin(struct.unpack("d", held)[0] * y), lambda b: struct.pack_into("d", held, 0, b)


@changing
def environment(a):
    os.environ["NETSOR_TEST_A"] = a.hex()
    return (
        lambda y: np.sin(float.fromhex(os.environ["NETSOR_TEST_A"]) * y),
        lambda b: os.environ.__setitem__("NETSOR_TEST_A", b.hex()),
    )


@changing
def vectorized(a):
    held = Plain(a)
    return np.vectorize(held.method), lambda b: setattr(held, "a", b)


@changing
def partial(a):
    held = Plain(a)
    return functools.partial(lambda o, y: np.sin(o.a * y), held), lambda b: setattr(held, "a", b)


VALUES = (1.1, 1.7), (1.3, 1.3), (0.9, float(np.nextafter(0.9, 1.0)))
PAIRS = [(name, a, b) for name in FAMILIES for a, b in VALUES]
