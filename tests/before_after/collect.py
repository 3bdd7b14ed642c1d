"""Compute the kernels of `items` with the netsor that Python finds, and write them to a file.

PYTHONPATH=CHECKOUT/src python tests/before_after/collect.py FILE.npz [--seed 0] [--only PREFIX] ...
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import netsor as ns
from before_after.items import Item, items

__all__ = ["OUT_OF_TIME", "Found", "compute", "read", "write"]


@dataclass(frozen=True)
class Found:
    """A kernel and its errors, or how the computation failed.

    failure  "" or the name of the exception with the first line of its message
    refused  whether that is an error of netsor's own
    eps      the unit of rounding of the precision that was asked for
    """

    name: str
    exact: bool
    failure: str
    refused: bool
    seconds: float
    eps: float
    value: np.ndarray
    error: np.ndarray


class _OutOfTime(BaseException):
    """Not an Exception, so that nothing catches it on its way."""


OUT_OF_TIME = _OutOfTime.__name__


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Processor time of all threads, so that a busy machine changes nothing."""

    def stop(_: int, __: FrameType | None) -> None:
        raise _OutOfTime

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def compute(item: Item, seconds: int, **options: Any) -> Found:
    """The kernel of an item with further options, in at most so many seconds of processor time."""
    start, nothing = perf_counter(), np.zeros((0, 0))
    try:
        with _at_most(seconds):
            found = item.compute(**options)
    except (Exception, _OutOfTime) as error:  # whatever it is, it is a result to be compared
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        refused = isinstance(error, ns.NetsorError)
        return Found(item.name, False, failure, refused, perf_counter() - start, 0.0, nothing, nothing)
    spent, value = perf_counter() - start, np.asarray(found.value)
    eps = float(np.finfo(value.dtype).eps)
    return Found(
        item.name, found.plan.exact, "", False, spent, eps, value.astype(float), np.asarray(found.error)
    )


def write(path: Path, found: Iterable[Found], about: str) -> None:
    """All kernels in one array, all errors in another, and an index."""
    found, index, offset = list(found), [], 0
    for item in found:
        entry = {k: v for k, v in asdict(item).items() if k not in ("value", "error")}
        index.append({**entry, "seconds": round(item.seconds, 3), "shape": item.value.shape, "at": offset})
        offset += item.value.size
    values = np.concatenate([item.value.ravel() for item in found]).astype(np.float64)
    errors = np.concatenate([item.error.ravel() for item in found]).astype(np.float64)
    text = json.dumps({"about": about, "items": index})
    np.savez_compressed(path, values=values, errors=errors, index=np.array(text))


def read(path: Path) -> dict[str, Found]:
    """What `write` wrote, by name."""
    with np.load(path) as stored:
        values, errors = stored["values"], stored["errors"]
        index = json.loads(str(stored["index"]))
    found = {}
    for entry in index["items"]:
        shape, at = entry.pop("shape"), entry.pop("at")
        part = slice(at, at + int(np.prod(shape)))
        found[entry["name"]] = Found(
            **entry, value=values[part].reshape(shape), error=errors[part].reshape(shape)
        )
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="items whose name begins with one of these (a,b)")
    parser.add_argument("--seconds", type=int, default=120, help="of processor time, at most, for one item")
    parser.add_argument("--sample", action="store_true", help="sample every family")
    parser.add_argument("--update", action="store_true", help="keep the other items of the file")
    parser.add_argument("--about", default="", help="a note that is kept in the file, such as the commit")
    options = parser.parse_args(arguments)
    settings = {"seed": options.seed} | ({"method": "sample"} if options.sample else {})
    kept = read(options.file) if options.update else {}
    found = []
    for item in items():
        if item.name.startswith(tuple(options.only.split(","))):
            found.append(compute(item, options.seconds, **settings))
            how = found[-1].failure or ("exact" if found[-1].exact else "sampled")
            print(f"{item.name:50} {found[-1].seconds:7.2f} s  {how}", flush=True)
    write(options.file, {**kept, **{f.name: f for f in found}}.values(), options.about)
    print(
        f"{len(found)} kernels in {sum(f.seconds for f in found):.0f} s, {options.file.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
