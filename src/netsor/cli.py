"""The command line: `netsor check`, `netsor limit`, `netsor reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from netsor.errors import NetsorError
from netsor.lang import Program, parse
from netsor.lang.types import C, G

app = typer.Typer(
    help="Write a neural network once; read it as a program, as its infinite-width limit, as a simulation.",
    no_args_is_help=True,
    add_completion=False,
)
reproduce_app = typer.Typer(help="Make the paper's figures from our own engine.", no_args_is_help=True)
app.add_typer(reproduce_app, name="reproduce")

ProgramFile = Annotated[Path, typer.Argument(help="A program in text form (.netsor).", dir_okay=False)]


def _load(path: Path) -> Program:
    """Parse and check a file; on error print the message and end with exit code 1."""
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        message = f"there is no file {path}"
    except UnicodeDecodeError:
        message = f"{path} is not a text file"
    except NetsorError as error:
        message = f"{path}: {type(error).__name__}: {error}"
    Console(stderr=True, highlight=False, soft_wrap=True).print(message, markup=False)
    raise typer.Exit(1)


@app.command()
def check(path: ProgramFile) -> None:
    """Type check a program and list its variables."""
    program = _load(path)
    for name, type_ in program.types.items():
        typer.echo(f"{name} :: {type_}")
    classes = ", ".join(f"{width} ({len(names)} vectors)" for width, names in program.widths.items())
    typer.echo(f"OK: {len(program.statements)} statements; widths {classes}")


@app.command()
def limit(path: ProgramFile) -> None:
    """mu, Sigma, the scalar limits and the kernel of a program."""
    from netsor.limits import limit as limit_of

    program = _load(path)
    try:
        found = limit_of(program)
        _print_limit(program, found)
    except NetsorError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"{path}: {type(error).__name__}: {error}", markup=False
        )
        raise typer.Exit(1) from None


def _print_limit(program: Program, found) -> None:
    vectors = [(name, type_) for name, type_ in program.types.items() if isinstance(type_, G)]
    for name, _ in vectors:
        typer.echo(f"mu({name}) = {_number(found.mu(name))}")
    for k, (name, type_) in enumerate(vectors):
        for other, type2 in vectors[k:]:
            if type_.width == type2.width:
                typer.echo(f"Sigma({name}, {other}) = {_number(found.sigma(name, other))}")
    for name, type_ in program.types.items():
        if isinstance(type_, C):
            typer.echo(f"limit of {name} = {_number(found.scalar(name))}")
    if program.outputs:
        result = found.kernel()
        typer.echo(f"K = {_number(result.value)}")
        typer.echo(result.explain())


def _number(value) -> str:
    return np.array2string(np.asarray(value), precision=10, suppress_small=True)


@reproduce_app.command()
def rnn(
    out: Annotated[Path, typer.Option(help="Folder for the figure and its numbers.")] = Path("out"),
    full: Annotated[
        bool, typer.Option("--full", help="100,000 networks in panel E, as in the paper.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Networks in panel E (without --full).", min=100)] = 1000,
    width: Annotated[int, typer.Option(help="Width of the simulated networks.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
) -> None:
    """Infinite-width theory is highly predictive for the simple RNN: the paper's first figure."""
    from netsor.reproduce import rnn_figure

    for line in rnn_figure(out, samples=100_000 if full else samples, width=width, seed=seed):
        typer.echo(line)
