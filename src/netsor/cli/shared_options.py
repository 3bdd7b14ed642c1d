"""Arguments and options that several commands have, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from netsor.errors import DataError

Target = Annotated[
    str,
    typer.Argument(help="A network in a Python file, or a program.", metavar="FILE.py:NETWORK|FILE.netsor"),
]
NetworkTarget = Annotated[str, typer.Argument(help="A network in a Python file.", metavar="FILE.py:NETWORK")]
ProgramFile = Annotated[Path, typer.Argument(help="A program in text form (.netsor).", metavar="FILE.netsor")]
Data = Annotated[
    Path | None,
    typer.Argument(
        help="The inputs: .npy, or .npz (x with the inputs along its first axis, or one array per input; "
        "name.0, name.1 are the parts of one). A program has its own data.",
        metavar="DATA",
    ),
]
OldInput = Annotated[
    list[Path] | None, typer.Option("--input", "-i", help="DATA, as an option.", hidden=True)
]
Ntk = Annotated[bool, typer.Option("--ntk", help="Take the tangent kernel (NTK), which governs training.")]
Rates = Annotated[
    str,
    typer.Option(
        help="Learning rates of the tangent kernel: ntk, unit, standard:512, or numbers by name: W=0,b=0.5."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.", min=0)]
Method = Annotated[str, typer.Option(help="auto, exact or sample.")]
Tol = Annotated[float | None, typer.Option(help="Sample until the relative error is below this.")]
output_option = partial(typer.Option, "--output", "-o")
ProgramOutput = Annotated[Path | None, output_option(help="Write the program and all data to this file.")]


def listed(
    option: str, text: str, kind: Callable[[str], float], valid: Callable[[list], bool], remedy: str
) -> list:
    """Read numbers that are separated by commas."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not valid(numbers):
        raise DataError(f"{option} {text}", remedy=remedy)
    return numbers


def widths_of(text: str) -> tuple[int, ...]:
    """Read at least two different widths."""
    remedy = "Give at least two numbers >= 1, e.g. 64,256,1024."
    return tuple(listed("--widths", text, int, lambda w: len(set(w)) > 1 and min(w) > 0, remedy))


def rates_of(text: str) -> str | tuple[str, int] | dict[str, float]:
    """Read learning rates: a convention, or numbers by name."""
    convention, _, width = text.partition(":")
    if convention == "standard" and width.isdecimal():
        return convention, int(width)
    if "=" not in text:
        return text
    try:
        return {name.strip(): float(rate) for name, rate in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise DataError(f"--rates {text}", remedy="Rates are numbers by name: --rates W=0,b=0.5.") from None


def bytes_of(text: str) -> int:
    """Read an amount of memory such as 500MB."""
    number, size = text[:-2], {"KB": 2**10, "MB": 2**20, "GB": 2**30}.get(text[-2:].upper())
    if size is None or not number.replace(".", "", 1).isdecimal():
        raise DataError(f"--memory {text}", remedy="Write a number and KB, MB or GB: --memory 2GB.")
    return int(float(number) * size)
