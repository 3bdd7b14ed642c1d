"""`netsor report`: one page of HTML about a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from netsor.cli.app import app, reporting
from netsor.cli.kernel_commands import labels_of
from netsor.cli.loading import data_files, inputs_of, load_network
from netsor.cli.shared_options import NetworkTarget, OldInput, Seed, widths_of
from netsor.errors import DataError
from netsor.files import write_text


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
    """Write a page about a network: program, graph, plan, NNGP and NTK, eigenvalues, convergence."""
    from netsor.reports import find, render

    net = load_network(target)
    files = data_files([data] if data else [], inputs)
    if len(files) > 1:
        raise DataError(f"{len(files)} files of data", remedy="A report is about one: FILE.py:NETWORK DATA.")
    x, _, names = inputs_of(files[0])
    findings = find(net, x, widths=widths_of(widths), samples=samples, seed=seed)
    findings.labels = labels_of(net, x, names, len(findings.nngp.value))[0]
    page = render(findings, " ".join(["netsor", *sys.argv[1:]]))
    write_text(output, page)
    seconds = sum(findings.seconds.values())
    typer.echo(f"wrote {output}: {len(page) / 1e6:.1f} MB, {seconds:.1f} s of computing")
