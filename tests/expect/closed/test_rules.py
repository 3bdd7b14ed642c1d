"""Rules know whether their formula can be recorded on arrays without values, for every pair of functions."""

from __future__ import annotations

import operator
from itertools import combinations_with_replacement

import array_api_compat.numpy as numpy_api
import numpy as np
import pytest

from each_case import each_case
from netsor.expect.closed.registry import find, find_mean
from netsor.lang.functions import FUNCTIONS
from netsor.limits.tape.tape import Tape

NAMES = [name for name, f in FUNCTIONS.items() if find_mean(f, {})]
PAIRS = list(combinations_with_replacement(NAMES, 2))
LAW = [np.asarray(x) for x in ([0.3, -0.2], [-0.5, 1.0], [1.2, 0.7], [0.8, 2.0], [0.4, -0.9])]


class Abstract:
    """An array without values: a recipe that gives them later."""

    __array_ufunc__ = None

    def __init__(self, shape, dtype, recipe):
        self.shape, self.dtype, self.recipe = shape, dtype, recipe

    @classmethod
    def of(cls, array):
        return cls(array.shape, array.dtype, lambda: array)

    @property
    def ndim(self):
        return len(self.shape)

    def __array_namespace__(self, api_version=None):
        return NAMESPACE

    def _refuse(self, *_, **__):
        raise TypeError("an abstract array has no values")

    __bool__ = __float__ = __complex__ = __array__ = __len__ = __iter__ = __getitem__ = _refuse


def recorded(fn, *args, **options):
    """The operation on abstract arrays; its type is found on ones."""
    ones = [np.ones((), a.dtype) if isinstance(a, Abstract) else a for a in args]
    made = fn(*ones, **options)
    if np.iscomplexobj(made):
        raise TypeError("elementary formulas are real")
    shape = np.broadcast_shapes(*(a.shape for a in args if isinstance(a, Abstract)))
    return Abstract(
        shape,
        made.dtype,
        lambda: fn(*(a.recipe() if isinstance(a, Abstract) else a for a in args), **options),
    )


for name in ("add", "sub", "mul", "truediv", "pow", "lt", "le", "gt", "ge", "eq", "and_", "or_"):
    fn = getattr(operator, name)
    setattr(Abstract, f"__{name.rstrip('_')}__", lambda x, y, fn=fn: recorded(fn, x, y))
    setattr(Abstract, f"__r{name.rstrip('_')}__", lambda x, y, fn=fn: recorded(fn, y, x))
setattr(Abstract, "__neg__", lambda x: recorded(operator.neg, x))  # noqa: B010


class Namespace:
    """The elementwise functions of the array API on abstract arrays."""

    __name__ = "abstract"

    def __getattr__(self, name):
        found = getattr(numpy_api, name)
        if name in ("finfo", "isdtype", "result_type"):
            return found
        return lambda *args, **options: recorded(found, *args, **options)

    def asarray(self, x, dtype=None):
        return x if isinstance(x, Abstract) else Abstract.of(np.asarray(x, dtype))

    def astype(self, x, dtype):
        return recorded(numpy_api.astype, x, dtype)


NAMESPACE = Namespace()


def agrees(rule, law):
    """Recorded and run later, the rule gives what it gives at once; a rule that is not elementary refuses."""
    if rule.elementary:
        later = rule(*map(Abstract.of, law))
        np.testing.assert_array_equal(later.recipe(), rule(*law))
    else:
        with pytest.raises((TypeError, AttributeError, ValueError)):
            rule(*map(Abstract.of, law))


def traces(rule, law):
    """Elementary rules can be recorded on the arrays of a tape, as the engine has them."""
    tape = Tape(compiled=True)
    arrays = [tape.input(f"x{k}", x.shape, x.dtype) for k, x in enumerate(law)]
    assert not rule.elementary or rule(*arrays).shape == (2,)


@each_case("check", [agrees, traces])
@each_case("zero_mean", [False, True], ids=["any mean", "zero mean"])
@each_case(("f", "g"), PAIRS)
def test_pairs(f, g, zero_mean, check):
    for one, two in ((f, g), (g, f)):
        check(find(FUNCTIONS[one], {}, FUNCTIONS[two], {}, zero_mean), LAW)


@each_case("check", [agrees, traces])
@each_case("f", NAMES)
def test_means(f, check):
    check(find_mean(FUNCTIONS[f], {}), LAW[::2][:2])


def test_a_rule_says_what_it_is():
    pair, mean = find(FUNCTIONS["relu"], {}, FUNCTIONS["erf"], {}), find_mean(FUNCTIONS["relu"], {})
    assert pair is not None and pair.what == "E[relu erf]"  # noqa: PT018
    assert mean is not None and mean.what == "E[relu]"  # noqa: PT018
