"""`netsor report`: one page of HTML about a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from netsor.cli.app import app, reporting
from netsor.cli.kernels import Seed, inputs_of, labels_of, widths_of
from netsor.cli.loading import load_network
from netsor.cli.programs import NetworkTarget, OldInput, data_files
from netsor.errors import DataError
from netsor.files import write_text

__all__ = ["report"]


@app.command()
@reporting
def report(
    target: NetworkTarget,
    data: Annotated[
        Path | None, typer.Argument(help="The inputs, as for kernel.", metavar="DATA", show_default=False)
    ] = None,
    inputs: OldInput = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    widths: Annotated[str, typer.Option(help="Widths of finite networks.")] = "32,64,128,256",
    samples: Annotated[int, typer.Option(help="Finite networks at each width.", min=2)] = 20,
    seed: Seed = 0,
) -> None:
    """A page about a network: program, graph, plan, NNGP and NTK, eigenvalues, convergence, in one file."""
    from netsor.reports import find, render

    net = load_network(target)
    files = data_files([data] if data else [], inputs)
    if len(files) > 1:
        raise DataError(f"{len(files)} files of data", remedy="A report is about one: FILE.py:NETWORK DATA.")
    x, _, names = inputs_of(files[0])
    found = find(net, x, widths=widths_of(widths), samples=samples, seed=seed)
    found.labels = labels_of(net, x, names, len(found.nngp.value))[0]
    page = render(found, " ".join(["netsor", *sys.argv[1:]]))
    write_text(output, page)
    typer.echo(f"wrote {output}: {len(page) / 1e6:.1f} MB, {sum(found.seconds.values()):.1f} s of computing")
