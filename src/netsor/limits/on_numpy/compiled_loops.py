"""Loops compiled by Numba (the extra `fast`) from their source, and kept on disk for the next process.

They are kept in `netsor/loops` under `$XDG_CACHE_HOME` or `~/.cache`, if nobody else can write there. You may
delete the folder at any time.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from netsor.files import write_text
from netsor.machine_code import compiled

# atan(t) / t as a polynomial in t^2 for |t| <= tan(pi / 8), with error 1.3e-18 (Chebyshev, 12 terms)
ATAN = (
    *(-0.017805397205419446, 0.03796525745386593, -0.05035102456601552, 0.05846878297330872),
    *(-0.06662951813629191, 0.07692045330902225, -0.09090896809064027, 0.11111110744919658),
    *(-0.14285714279250245, 0.19999999999940893, -0.3333333333333312, 1.0),
)
NORMAL = {4: (-87.0, 88.0), 8: (-708.0, 709.0)}  # by bytes of a number, where exp(x) is a normal number


def is_available() -> bool:
    """Whether Numba is installed."""
    return find_spec("numba") is not None


def make_atan2(
    number: Callable[[float], Any], fma: Callable[..., Any] = lambda x, y, z: x * y + z
) -> Callable[[Any, Any], Any]:
    """Return the angle of (x, y) as a function without branches or tables, so that loops vectorise.

    One division: with t = small / big, atan(t) = pi / 4 + atan((t - 1) / (t + 1)) if t > tan(pi / 8).
    """
    zero, one, limit = number(0.0), number(1.0), number(math.tan(math.pi / 8))
    quarter, half, whole = number(math.pi / 4), number(math.pi / 2), number(math.pi)
    a, b, c, d, e, f, g, h, i, j, k, m = map(number, ATAN)
    short = number is np.float32

    def atan2(y, x):
        ax, ay = abs(x), abs(y)
        steep = ay > ax
        big = ay if steep else ax
        small = ax if steep else ay
        far = small > limit * big
        top = small - big if far else small
        bottom = small + big if far else big
        t = top / (bottom if bottom > zero else one)
        s = t * t
        r = f if short else fma(fma(fma(fma(fma(a, s, b), s, c), s, d), s, e), s, f)
        r = fma(fma(fma(fma(fma(fma(r, s, g), s, h), s, i), s, j), s, k), s, m)
        r = fma(r, t, quarter if far else zero)
        r = half - r if steep else r
        r = whole - r if x < zero else r
        return -r if y < zero else r

    return atan2


def make_exp(number: Callable[[float], Any], fma: Callable[..., Any], scaled: Callable[..., Any]) -> Any:
    """Return x -> (2^n, expm1(r)), x = n log 2 + r with |r| <= log(2) / 2, without branches or tables.

    Adding a number whose last binary place is 1 to x / log 2 gives t, which has n in its last places;
    `scaled(1, t)` is 2^n. expm1(r) is a Taylor polynomial of relative error 1e-17. If exp(x) is not a normal
    number, the result is 0 or infinity.
    """
    short = number is np.float32
    magic, inverse, one = number(1.5 * 2.0 ** (23 if short else 52)), number(1 / math.log(2)), number(1.0)
    # log 2 as a number with few digits plus the remainder, so that n times it is exact (Cody and Waite 1980).
    high = number(0.693359375 if short else 0.6931471803691238)
    low = number(-2.12194440e-4 if short else 1.9082149292705877e-10)
    least, most = map(number, NORMAL[4 if short else 8])
    a, b, c, d, e, f, g, h, i, j, k, m = (number(1 / math.factorial(n)) for n in range(13, 1, -1))

    def parts(x):
        t = fma(min(max(x, least), most), inverse, magic)
        n = t - magic
        r = fma(n, -low, fma(n, -high, min(max(x, least), most)))
        p = f if short else fma(fma(fma(fma(fma(a, r, b), r, c), r, d), r, e), r, f)
        p = fma(fma(fma(fma(fma(fma(p, r, g), r, h), r, i), r, j), r, k), r, m)
        return scaled(one, t), fma(p * r, r, r)

    return parts


@cache
def compiled_functions(name: str) -> tuple[Any, Any, Any, Any]:
    """Return `exp`, `expm1`, `atan2` and `fma` (x y + z with one rounding) for numbers of a type."""
    import numba  # type: ignore[import-not-found]
    from llvmlite import ir  # type: ignore[import-not-found]
    from numba.extending import intrinsic  # type: ignore[import-not-found]

    number = np.dtype(name).type
    bits, places = (32, 23) if number is np.float32 else (64, 52)

    @intrinsic
    def fma(context, x, y, z):
        return x(x, x, x), lambda context, builder, signature, args: builder.fma(*args)

    @intrinsic
    def scaled(context, y, t):
        def build(context, builder, signature, args):
            whole, kind = ir.IntType(bits), args[0].type
            y, t = (builder.bitcast(x, whole) for x in args)
            return builder.bitcast(builder.add(y, builder.shl(t, ir.Constant(whole, places))), kind)

        return y(y, y), build

    options: dict[str, Any] = {"inline": "always", "error_model": "numpy"}
    parts: Any = numba.njit(make_exp(number, fma, scaled), **options)
    least, most = map(number, NORMAL[bits // 8])
    zero, infinity = number(0.0), number(np.inf)

    def exp_minus(shift):
        def function(x):
            scale, fraction = parts(x)
            value = scale * fraction + (scale - shift)
            value = zero - shift if x < least else value
            value = infinity if x > most else value
            return value if x == x else x

        return numba.njit(function, **options)

    return exp_minus(zero), exp_minus(number(1.0)), numba.njit(make_atan2(number, fma), **options), fma


HEADER = """from numpy import cos, log, sin, sqrt
from numba import {number} as number
from netsor.limits.on_numpy.compiled_loops import compiled_functions

exp, expm1, atan2, fma = compiled_functions("{number}")


"""


@cache
def compiled_loop(source: str, dtype: np.dtype) -> Callable[..., Any]:
    """Return the function `loop` of a source, compiled at its first call or read from disk."""
    import numba  # type: ignore[import-not-found]

    text = HEADER.format(number=dtype.name) + source
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
    folder = _kept_in()
    if folder is not None:
        with suppress(OSError):  # the folder cannot be written
            return compiled(_imported(text, folder).loop, **options)
    scope: dict[str, Any] = {}
    exec(text, scope)
    return numba.njit(scope["loop"], **options)


@cache
def _kept_in() -> Path | None:
    """Return the folder of compiled loops, or None with a warning if somebody else could put code there.

    The next process runs these files. So the folder, its content and all folders above it must belong to the
    user (or to the system), and nobody else may be able to write them.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folders = [Path(base) / "netsor" / "loops"]
    if os.environ.get("NUMBA_CACHE_DIR"):  # Numba keeps its files there instead
        folders.append(Path(os.environ["NUMBA_CACHE_DIR"]))
    for folder in folders:
        problem = "there is no home folder" if base.startswith("~") else _distrust(folder)
        if problem:
            warnings.warn(
                f"compiled loops are not kept for the next process: {problem}. They are code, so they are "
                "kept only where nobody else can write; set XDG_CACHE_HOME to a folder of your own.",
                stacklevel=2,
            )
            return None
    return folders[0]


def _distrust(folder: Path) -> str:
    """Return why a folder may hold code of somebody else, or "" if it cannot."""
    if not folder.is_absolute():
        return f"{folder} is a relative path"
    if not hasattr(os, "getuid"):  # Windows: the folder of a user is closed to others
        return ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = folder.resolve(strict=True)
        problem = _open_to_others((*_above(whole), whole), stat.S_IWGRP | stat.S_IWOTH)
        if not problem:
            whole.chmod(0o700)  # files inside may be open to the group, but nobody can reach them now
            problem = _open_to_others(whole.rglob("*"), stat.S_IWOTH)
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return problem


def _above(folder: Path) -> tuple[Path, ...]:
    return tuple(folder.parents)


def _open_to_others(paths: Iterable[Path], writable: int) -> str:
    """Return why somebody else owns or can write one of the files or folders, or "" if nobody can."""
    for path in paths:
        state = os.lstat(path)
        if state.st_uid not in (0, os.getuid()) or stat.S_ISLNK(state.st_mode):
            return f"{path} is a link or belongs to somebody else"
        if state.st_mode & writable:
            return f"others can write {path}"
    return ""


def _imported(text: str, folder: Path) -> Any:
    """Return the module of a text, with a file named after a hash of everything that it depends on.

    Only the text is executed. The file is for Numba, which keeps machine code only for functions in files. A
    file with another text is replaced.
    """
    import numba  # type: ignore[import-not-found]

    functions = inspect.getsource(sys.modules[__name__])
    name = "loop_" + hashlib.sha256("\n".join((numba.__version__, functions, text)).encode()).hexdigest()[:24]
    path = folder / f"{name}.py"
    if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
        write_text(path, text)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # Numba looks its functions up by module
    exec(compile(text, str(path), "exec"), vars(module))
    return module
