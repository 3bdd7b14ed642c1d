"""The application object, and how errors reach the user."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from netsor import __version__
from netsor.errors import NetsorError, NetsorWarning


class Commands(TyperGroup):
    """All commands: their errors and warnings are printed as messages, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        standard = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, NetsorWarning):
                _print_error(f"Warning: {message}")
            else:
                standard(message, category, *where)

        with warnings.catch_warnings():  # restored: tests run several commands in one process
            warnings.showwarning = show
            try:
                return super().invoke(ctx)
            except NetsorError as error:
                complain(f"{type(error).__name__}: {error}")
            except OSError as error:
                complain(f"{error.filename or 'file'}: {error.strerror or error}")
            except KeyboardInterrupt:
                complain("interrupted", 130)


# Commands import what they need when they run, so that `netsor --help` does not wait for SciPy.
app = typer.Typer(
    cls=Commands,
    help="Write a neural network once; read it as a program, an infinite-width limit, or a simulation.",
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 verify found no agreement, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce_app = typer.Typer(help="Draw the figures of the paper.", no_args_is_help=True)
app.add_typer(reproduce_app, name="reproduce")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"netsor {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Read the options that all commands have."""


def complain(message: str, code: int = 1) -> NoReturn:
    """Print a message on the error stream and end."""
    _print_error(message)
    raise typer.Exit(code)


def _print_error(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(message, markup=False)
