"""`netsor show`, `check`, `tangent`, `limit`: the program, its tangent, and its mu, Sigma and kernel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import netsor as ns
from netsor.cli import shared_options as shared
from netsor.cli.app import app
from netsor.cli.loading import data_files, load_inputs, load_network, load_program, set_data
from netsor.files import write_npz, write_text
from netsor.lang import Program
from netsor.lang.types import C, G
from netsor.limits import Limit


@app.command()
def show(
    target: shared.NetworkTarget,
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="One input (.npy), or several (.npz, one array each); several files make a joint program.",
            metavar="DATA...",
        ),
    ] = None,
    inputs: shared.OldInput = None,
    variant: Annotated[
        str, typer.Option(help="Rewrite it as netsor, netsor-minus, netsor-o or netsor+.")
    ] = "",
    expand: Annotated[
        bool, typer.Option("--expand", help="Write one variable of the paper per line.")
    ] = False,
    ntk: Annotated[bool, typer.Option("--ntk", help="Show the tangent, whose kernel is the NTK.")] = False,
    output: shared.ProgramOutput = None,
) -> None:
    """Show the type-checked program of a network on an input, in the notation of the paper."""
    net = load_network(target)
    x = [array for path in data_files(data or [], inputs) for array in load_inputs(path, one=True)[0]]
    program = ns.program(ns.tangent(net) if ntk else net, *x)
    program = program.lower(variant) if variant else program
    program = program.expand() if expand else program
    program.check()
    _write(program, output)


def _write(program: Program, output: Path | None) -> None:
    if output is None:
        typer.echo(str(program), nl=False)
    else:
        write_text(output, program.show())
        typer.echo(f"wrote {output}: {len(program.statements)} statements")


@app.command()
def check(path: shared.ProgramFile) -> None:
    """Type check a program and list its variables."""
    program = load_program(path)
    for name, type_ in program.types.items():
        typer.echo(f"{name} :: {type_}")
    classes = ", ".join(f"{width} ({len(names)} vectors)" for width, names in program.widths.items())
    typer.echo(f"OK: {len(program.statements)} statements; widths {classes}")


@app.command()
def tangent(
    path: shared.ProgramFile,
    rates: shared.Rates = "ntk",
    finite: Annotated[bool, typer.Option("--finite", help="Write it as it is at finite width.")] = False,
    output: shared.ProgramOutput = None,
) -> None:
    """Differentiate a program along a random direction of its parameters; its kernel is the NTK."""
    _write(load_program(path).tangent(shared.rates_of(rates), tied=finite, scalars=finite), output)


@app.command()
def limit(
    path: shared.ProgramFile,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", help="Replace data: 'x=[1, 0.5]' or x=FILE.npy.", metavar="NAME=VALUE"),
    ] = None,
    method: shared.Method = "auto",
    output: Annotated[Path | None, shared.output_option(help="Write the values as .npz, too.")] = None,
) -> None:
    """Print mu, Sigma, the limits of scalars and the kernel of a program."""
    program = set_data(load_program(path), data or [])
    L = ns.limit(program, method=method)
    stored: dict[str, np.ndarray | str | float] = {}
    for name, value, note in _quantities(program, L):
        stored[name] = value
        typer.echo(f"{name} = {_number(value)}{note}")
    if program.outputs:
        result = L.kernel()
        stored |= {"K": result.value, "error": result.error, "plan": result.explain()}
        typer.echo(f"K = {_number(result.value)}")
        typer.echo(result.explain())
    if output is not None:
        write_npz(output, stored)


def _quantities(program: Program, L: Limit) -> Iterator[tuple[str, np.ndarray | float, str]]:
    """Name, value and note of every mu, Sigma and limit of a scalar, in the order of the program."""
    vectors = {name: type_ for name, type_ in program.types.items() if isinstance(type_, G)}
    for name in vectors:
        yield f"mu({name})", L.mu(name), ""
    for a, b in combinations_with_replacement(vectors, 2):
        first, second = vectors[a], vectors[b]
        same = first.width == second.width
        sigma = L.sigma(a, b) if same else np.zeros((*first.index, *second.index))
        yield f"Sigma({a}, {b})", sigma, "" if same else f"  (widths {first.width}, {second.width})"
    for name, type_ in program.types.items():
        if isinstance(type_, C):
            yield f"limit of {name}", L.scalar(name), ""


def _number(value: np.ndarray | float) -> str:
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{float(array) + 0.0:.10g}"  # -0.0 + 0.0 is 0.0
    if not array.any():
        return f"0 in all {array.size} entries" if array.size > 1 else "0"
    return np.array2string(array, precision=10, suppress_small=True)
