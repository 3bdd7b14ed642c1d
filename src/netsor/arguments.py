"""Check the arguments of public calls: return the value in the form in which it is used, or raise an error.

Each function takes the name of the argument for the message, and the class of error to raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from netsor.errors import DataError, NetsorError

Error = Callable[..., NetsorError]  # a class, or a function with the arguments of one


def shown(value: object) -> str:
    """A value as messages show it, shortened to 60 characters."""
    return "an enormous integer" if isinstance(value, int) and value.bit_length() > 200 else f"{value!r:.60}"


def a_type(value: object) -> str:
    """The type of a value with its article: "an int", "a str"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def is_integer(value: object, least: int = -(2**62), most: int = 2**62) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy, no bool, from `least` to `most`.

    >>> is_integer(3, 1), is_integer(True, 1), is_integer(0, 1)
    (True, False, False)
    """
    return (
        isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)
    )


def whole(
    name: str,
    value: object,
    least: int,
    most: int = 2**62,
    *,
    remedy: str = "",
    error: Error = DataError,
) -> int:
    """Check an integer from `least` to `most`."""
    if not is_integer(value, least, most):
        raise error(f"{name}={shown(value)}", remedy=remedy or f"`{name}` is an integer >= {least}.")
    return int(value)


def number(
    name: str,
    value: Any,
    *,
    above: float = -inf,
    least: float = -inf,
    infinite: bool = False,
    remedy: str = "",
    error: Error = DataError,
) -> float:
    """Check a real number above a bound, finite unless `infinite` is allowed."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if real and not (isinstance(value, int) and value.bit_length() > 1000):  # a float cannot hold more
        given = float(value)
        if above < given and least <= given and (given < inf or infinite):
            return given
    bound = f" > {above:g}" if above > -inf else f" >= {least:g}" if least > -inf else ""
    raise error(f"{name}={shown(value)}", remedy=remedy or f"`{name}` is a number{bound}.")


def flag(name: str, value: object, *, or_none: bool = False, error: Error = DataError) -> Any:
    """Check True or False, or None where that is a choice, too."""
    if isinstance(value, bool | np.bool) or (or_none and value is None):
        return value if value is None else bool(value)
    raise error(f"{name}={shown(value)}", remedy=f"Give True{', False or None' if or_none else ' or False'}.")


def choice(name: str, value: object, words: Iterable[str], *, error: Error = DataError) -> str:
    """Check that a value is one of several words."""
    words = tuple(words)
    if isinstance(value, str) and value in words:
        return value
    raise error(f"{name}={shown(value)}", remedy=f"Choose one of {', '.join(words)}.")


def seed(value: object, *, error: Error = DataError) -> int:
    """Check a seed of random numbers, which may have up to 128 bits."""
    return whole("seed", value, 0, 2**128, error=error)


def names(name: str, value: object) -> tuple[str, ...]:
    """Check a collection of names."""
    if not isinstance(value, str | bytes | Mapping) and isinstance(value, Iterable):
        words = tuple(value)
        if all(isinstance(word, str) for word in words):
            return words
    raise DataError(f"{name}={shown(value)}", remedy=f"Give a list of names, as in {name}=['W1'].")


def mapping(name: str, value: object, example: str, *, error: Error = DataError) -> dict[str, Any]:
    """Check a mapping from names to values; None is an empty one."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise error(f"{name}={shown(value)}", remedy=f"Give values by name, as in {name}={example}.")


def array(what: str, value: object, *, error: Error = DataError) -> np.ndarray:
    """Convert an array of any library on the processor to NumPy."""
    if getattr(value, "requires_grad", False):
        raise error(
            f"{what} is a tensor that requires gradients",
            remedy="netsor computes without PyTorch's gradients: give x.detach().",
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise error(
            f"{what} is {a_type(value)} that cannot become a NumPy array: {str(reason).splitlines()[0]:.200}",
            remedy="Give a NumPy array of real numbers, or a dense array in the processor's memory.",
        ) from None


def file(name: str, value: object) -> Path:
    """Check a path that a file can have."""
    why = ""
    if isinstance(value, str | PathLike) and str(value) and "\0" not in str(value):
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                Path(value).stat()
            return Path(value)
        except OSError as error:  # a name that is too long, a folder without permission
            why = f": {error.strerror}"
        except UnicodeEncodeError:
            why = ": it cannot be encoded"
    raise DataError(f"{name}={shown(value)}{why}", remedy="Give the path of a file.")
