"""`netsor train`: an infinitely wide network under gradient descent, at several times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netsor.cli.app import app, reporting
from netsor.cli.loading import load_network, load_npz
from netsor.cli.shared_options import NetworkTarget, Rates, listed, rates_of
from netsor.errors import DataError
from netsor.files import write_npz


@app.command()
@reporting
def train(
    target: NetworkTarget,
    data: Annotated[Path, typer.Argument(help="Arrays x, y and new inputs `new`, as .npz.", metavar="DATA")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write everything as .npz, for `netsor plot`.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Rate of gradient flow.")] = 1.0,
    noise: Annotated[float, typer.Option(help="The ridge.", min=0)] = 0.0,
    times: Annotated[str, typer.Option(help="Times, separated by commas.")] = "0,1,10,100,1000,inf",
    rates: Rates = "ntk",
) -> None:
    """Train an ensemble of infinitely wide networks; print its loss over time."""
    from netsor import gp
    from netsor.plots.processes import training_numbers

    arrays = load_npz(data)
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{data} has no array `{name}`", remedy="Training takes inputs x and targets y.")
    remedy = "Give numbers >= 0, and inf for the end: 0,10,inf."
    moments = listed("--times", times, float, lambda t: all(moment >= 0 for moment in t), remedy)
    new = arrays.get("new", arrays["x"])
    net = load_network(target)
    model = gp.train(net, arrays["x"], arrays["y"], rate=rate, noise=noise, rates=rates_of(rates))
    for moment, loss in zip(moments, model.loss(moments), strict=True):
        typer.echo(f"time {moment:<10g} loss {loss:.6g}")
    typer.echo(f"gradient descent is stable for rates below {model.max_rate:.4g}")
    if output is not None:
        write_npz(output, training_numbers(model, new, moments))
        typer.echo(f"wrote {output}: {len(moments)} times, {len(new)} inputs")
