"""`netsor train`: an infinitely wide network under gradient descent, at several times."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from netsor.cli.app import app, reporting
from netsor.cli.loading import load_network, load_npz
from netsor.cli.programs import NetworkTarget, RatesOption, rates_of
from netsor.errors import DataError
from netsor.files import write_npz

__all__ = ["train"]


@app.command()
@reporting
def train(
    target: NetworkTarget,
    data: Annotated[Path, typer.Argument(help="Arrays x, y and new inputs `new`, as .npz.", metavar="DATA")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Store all of it, for `netsor plot`.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Rate of gradient flow.")] = 1.0,
    noise: Annotated[float, typer.Option(help="The ridge.", min=0)] = 0.0,
    times: Annotated[str, typer.Option(help="Times, divided by commas.")] = "0,1,10,100,1000,inf",
    rates: RatesOption = "ntk",
) -> None:
    """The ensemble of infinitely wide networks in training: its loss, mean and deviation over time."""
    from netsor import gp
    from netsor.plots.functions import training_numbers

    stored = load_npz(data)
    for name in ("x", "y"):
        if name not in stored:
            raise DataError(f"{data} has no array `{name}`", remedy="Training takes inputs x and targets y.")
    moments = _times(times)
    new = stored.get("new", stored["x"])
    net, given = load_network(target), rates_of(rates)
    model = gp.train(net, stored["x"], stored["y"], rate=rate, noise=noise, rates=given)
    losses = model.loss(moments)
    for time, loss in zip(moments, losses, strict=True):
        typer.echo(f"time {time:<10g} loss {loss:.6g}")
    typer.echo(f"gradient descent is stable for rates below {model.max_rate:.4g}")
    if output is not None:
        write_npz(output, training_numbers(model, new, moments.tolist()))
        typer.echo(f"wrote {output}: {len(moments)} times, {len(new)} inputs")


def _times(text: str) -> np.ndarray:
    try:
        times = np.array([float(part) for part in text.split(",")])
    except ValueError:
        times = np.array([-inf])
    if not (times >= 0).all():
        raise DataError(f"--times {text}", remedy="Give numbers >= 0, and inf for the end: 0,10,inf.")
    return times
