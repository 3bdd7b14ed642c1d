"""Checks of arguments of public calls: the value in the form that it is used, or an error that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from netsor.errors import DataError, NetsorError

__all__ = [
    "a_type",
    "array",
    "choice",
    "file",
    "flag",
    "mapping",
    "names",
    "number",
    "seed",
    "shown",
    "whole",
]


def shown(value: Any) -> str:
    """A value in a message, not longer than a part of a line."""
    return "an enormous integer" if isinstance(value, int) and value.bit_length() > 200 else f"{value!r:.60}"


def a_type(value: Any) -> str:
    """What a value is, with its article.

    >>> a_type(1), a_type("x")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def whole(
    name: str, value: Any, least: int, most: int = 2**62, *, error: type[NetsorError] = DataError
) -> int:
    """An integer from `least` on.

    >>> whole("repeats", 3, 2)
    3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise error(f"{name}={shown(value)}", remedy=f"`{name}` is an integer >= {least}.")
    return int(value)


def number(
    name: str,
    value: Any,
    *,
    above: float = -inf,
    least: float = -inf,
    below: float = inf,
    infinite: bool = False,
    remedy: str = "",
    error: type[NetsorError] = DataError,
) -> float:
    """A real number, finite unless `infinite` is allowed.

    >>> number("rate", 2, above=0)
    2.0
    """
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    small = not isinstance(value, int) or value.bit_length() <= 1000  # of those that a float can hold
    if real and small:
        found = float(value)
        if above < found and least <= found and (found < below or (infinite and found == inf)):
            return found
    bound = f" > {above:g}" if above > -inf else f" >= {least:g}" if least > -inf else ""
    raise error(f"{name}={shown(value)}", remedy=remedy or f"`{name}` is a number{bound}.")


def flag(name: str, value: Any, *, or_none: bool = False, error: type[NetsorError] = DataError) -> Any:
    """True or False, or None where that means something."""
    if isinstance(value, bool | np.bool) or (or_none and value is None):
        return value if value is None else bool(value)
    raise error(f"{name}={shown(value)}", remedy=f"Give True{', False or None' if or_none else ' or False'}.")


def choice(name: str, value: Any, known: Iterable[str], *, error: type[NetsorError] = DataError) -> str:
    """One of some words."""
    known = tuple(known)
    if isinstance(value, str) and value in known:
        return value
    raise error(f"{name}={shown(value)}", remedy=f"Choose one of {', '.join(known)}.")


def seed(value: Any, *, error: type[NetsorError] = DataError) -> int:
    """A seed of random numbers, which may be longer than other integers."""
    return whole("seed", value, 0, 2**128, error=error)


def names(name: str, value: Any) -> tuple[str, ...]:
    """Several words."""
    if not isinstance(value, str | bytes | Mapping) and isinstance(value, Iterable):
        found = tuple(value)
        if all(isinstance(word, str) for word in found):
            return found
    raise DataError(f"{name}={shown(value)}", remedy=f"Give a list of names, as in {name}=['W1'].")


def mapping(name: str, value: Any, example: str, *, error: type[NetsorError] = DataError) -> dict[str, Any]:
    """Values by name; None is none."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise error(f"{name}={shown(value)}", remedy=f"Give values by name, as in {name}={example}.")


def array(what: str, value: Any, *, error: type[NetsorError] = DataError) -> np.ndarray:
    """A NumPy array of what another array library holds."""
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


def file(name: str, value: Any) -> Path:
    """A path that can be one of a file."""
    if isinstance(value, str | PathLike) and str(value) and "\0" not in str(value):
        path = Path(value)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, UnicodeEncodeError) as error:  # a name that is too long, a folder without permission
            why = error.strerror if isinstance(error, OSError) else "it cannot be encoded"
            raise DataError(f"{name}={shown(value)}: {why}", remedy="Give the path of a file.") from None
        return path
    raise DataError(f"{name}={shown(value)}", remedy="Give the path of a file.")
