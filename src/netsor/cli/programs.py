"""`netsor show`, `check`, `tangent`, `limit`: the program, its tangent, and its mu, Sigma and kernel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from netsor.build.network import program as program_of
from netsor.build.tangent import tangent as tangent_of
from netsor.cli.app import app, reporting
from netsor.cli.loading import load_inputs, load_network, load_program, set_data
from netsor.errors import DataError
from netsor.files import write_npz, write_text
from netsor.lang import Program
from netsor.lang.types import C, G

__all__ = [
    "NetworkTarget",
    "OldInput",
    "RatesOption",
    "check",
    "data_files",
    "limit",
    "rates_of",
    "show",
    "tangent",
]

ProgramFile = Annotated[Path, typer.Argument(help="A program in text form (.netsor).", metavar="FILE.netsor")]
NetworkTarget = Annotated[
    str, typer.Argument(help="A network in a Python file.", metavar="FILE.py:NETWORK", show_default=False)
]
RatesOption = Annotated[
    str,
    typer.Option(help="What a parameter is: ntk, unit, or standard:512; or rates by name: W=0,b=0.5."),
]
OldInput = Annotated[
    list[Path] | None, typer.Option("--input", "-i", help="DATA, as an option.", hidden=True)
]


def data_files(data: list[Path], inputs: list[Path] | None) -> list[Path]:
    """The files with inputs, as arguments or, as they once were, as options."""
    files = [*data, *(inputs or [])]
    if not files:
        raise DataError("a network needs data", remedy="Give a .npy or .npz file after the network.")
    return files


@app.command()
@reporting
def show(
    target: NetworkTarget,
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="One input (.npy), or several (.npz, one array each); several files make a joint program.",
            metavar="DATA...",
            show_default=False,
        ),
    ] = None,
    inputs: OldInput = None,
    variant: Annotated[
        str, typer.Option(help="Rewrite it as netsor, netsor-minus, netsor-o or netsor+.", show_default=False)
    ] = "",
    expand: Annotated[bool, typer.Option("--expand", help="One variable of the paper per line.")] = False,
    ntk: Annotated[bool, typer.Option("--ntk", help="Of its tangent, whose kernel is the NTK.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file, with all data.")
    ] = None,
) -> None:
    """The program of a network on an input, type checked, in the paper's notation."""
    net = load_network(target)
    given = [x for path in data_files(data or [], inputs) for x in load_inputs(path, one=True)[0]]
    made = program_of(tangent_of(net) if ntk else net, *given)
    made = made.lower(variant) if variant else made
    made = made.expand() if expand else made
    made.check()
    _write(made, output)


def _write(made: Program, output: Path | None) -> None:
    if output is None:
        typer.echo(str(made), nl=False)
    else:
        write_text(output, made.show())
        typer.echo(f"wrote {output}: {len(made.statements)} statements")


@app.command()
@reporting
def check(path: ProgramFile) -> None:
    """Type check a program and list its variables."""
    program = load_program(path)
    for name, type_ in program.types.items():
        typer.echo(f"{name} :: {type_}")
    classes = ", ".join(f"{width} ({len(names)} vectors)" for width, names in program.widths.items())
    typer.echo(f"OK: {len(program.statements)} statements; widths {classes}")


@app.command()
@reporting
def tangent(
    path: ProgramFile,
    rates: RatesOption = "ntk",
    finite: Annotated[bool, typer.Option("--finite", help="As it is at finite width.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file, with all data.")
    ] = None,
) -> None:
    """The derivative of a program along a random direction of its parameters, whose kernel is the NTK."""
    made = load_program(path).tangent(rates_of(rates), tied=finite, scalars=finite)
    _write(made, output)


def rates_of(text: str) -> Any:
    """Rates from a text: a convention, or numbers by name."""
    convention, _, width = text.partition(":")
    if convention == "standard" and width.isdecimal():
        return convention, int(width)
    if "=" not in text:
        return text
    try:
        return {name.strip(): float(rate) for name, rate in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise DataError(f"--rates {text}", remedy="Rates are numbers by name: --rates W=0,b=0.5.") from None


@app.command()
@reporting
def limit(
    path: ProgramFile,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", help="Replace data: 'x=[1, 0.5]' or x=FILE.npy.", metavar="NAME=VALUE"),
    ] = None,
    method: Annotated[str, typer.Option(help="auto, exact or sample.")] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Store the values, as a .npz file.")
    ] = None,
) -> None:
    """mu, Sigma, the scalar limits and the kernel of a program."""
    from netsor.limits import limit as limit_of

    program = set_data(load_program(path), data or [])
    found = limit_of(program, method=method)
    stored: dict[str, Any] = {}
    for name, value, note in _quantities(program, found):
        stored[name] = value
        typer.echo(f"{name} = {_number(value)}{note}")
    if program.outputs:
        result = found.kernel()
        stored |= {"K": result.value, "error": result.error, "plan": result.explain()}
        typer.echo(f"K = {_number(result.value)}")
        typer.echo(result.explain())
    if output is not None:
        write_npz(output, stored)


def _quantities(program: Program, found: Any) -> Iterator[tuple[str, Any, str]]:
    """Name, value and note of every mu, Sigma and scalar limit, in the order of the program."""
    vectors = [(name, type_) for name, type_ in program.types.items() if isinstance(type_, G)]
    for name, _ in vectors:
        yield f"mu({name})", found.mu(name), ""
    for (name, type_), (other, type2) in combinations_with_replacement(vectors, 2):
        if type_.width == type2.width:
            yield f"Sigma({name}, {other})", found.sigma(name, other), ""
        else:
            shape = (*type_.index, *type2.index)
            yield f"Sigma({name}, {other})", np.zeros(shape), f"  (widths {type_.width}, {type2.width})"
    for name, type_ in program.types.items():
        if isinstance(type_, C):
            yield f"limit of {name}", found.scalar(name), ""


def _number(value: Any) -> str:
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{float(array) + 0.0:.10g}"
    if not array.any():
        return f"0 in all {array.size} entries" if array.size > 1 else "0"
    return np.array2string(array, precision=10, suppress_small=True)
