"""`netsor kernel`, `netsor plan`, `netsor simulate`, `netsor verify`, `netsor train`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer

import netsor as ns
from netsor.build.tangent_network import TangentNetwork
from netsor.cli import shared_options as shared
from netsor.cli.app import app, complain
from netsor.cli.loading import Inputs, inputs_of, load_network, load_npz, load_program
from netsor.errors import DataError
from netsor.files import write_npz

T = TypeVar("T", ns.Network, ns.Program)
KernelOutput = Annotated[
    Path | None,
    shared.output_option(help="Write values, errors and plan as .npz, or tile by tile into a store, .zarr."),
]


@app.command()
def kernel(
    target: shared.Target,
    data: shared.Data = None,
    output: KernelOutput = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which method computed what, with which error.")
    ] = False,
    method: shared.Method = "auto",
    tol: shared.Tol = None,
    seed: shared.Seed = 0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Start even if the plan says that it takes more than an hour.")
    ] = False,
    tile: Annotated[int | None, typer.Option(help="Inputs in a tile of a store, roughly.", min=1)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes that compute a store.", min=1)
    ] = None,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, tcp://...")] = None,
    part: Annotated[str | None, typer.Option(help="Compute the k-th of N parts of a store, k/N.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a store that exists.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compute damaged tiles of a store again.")] = False,
    ntk: shared.Ntk = False,
    rates: shared.Rates = "ntk",
) -> None:
    """Compute the infinite-width kernel of a network on a set of inputs, or between the sets x and y."""
    options: dict[str, Any] = {"method": method, "tol": tol, "seed": seed, "confirm": confirm}
    if output is not None and output.suffix == ".zarr":
        if rates != "ntk":
            remedy = "Give rates to the network: ns.Matrix(var, rate=0.5)."
            raise DataError("--rates for a store", remedy=remedy)
        if workers is not None and scheduler is not None:
            raise DataError("--workers and --scheduler", remedy="Give one of them: who computes the tiles?")
        if output.exists() and not (resume or part is not None):
            raise DataError(f"{output} is there already", remedy="Go on with it with --resume, or remove it.")
        engine = scheduler or workers  # the address of Dask, a number of processes, or None
        into = {"tile": tile, "engine": engine, "part": _part(part), "verify": verify}
        K = ns.kernel(tangent_if(ntk, rates, load_network(target)), **options)
        x, y, _ = inputs_of(data)
        typer.echo(f"{output}: {ns.gp.store(K, x, output, y, **into).status()}")
        return
    if any((tile, workers, scheduler, part, resume, verify)):
        raise DataError("tiles, workers and parts are for stores", remedy="Give a store: -o K.zarr.")
    read, (x, y, names) = _load(target, data, ntk, rates)
    labels, starts = [], []
    if isinstance(read, ns.Program):
        result = ns.limit(read, **options).kernel()
    else:
        result = ns.kernel(read, **options).evaluate(x, y)
        if y is None:  # otherwise the kernel is not square: its rows have no labels of their own
            labels, starts = labels_of(read, x, names, len(result.value))
    explanation = result.explain()
    if output is not None:
        arrays = {"labels": np.array(labels, str), "starts": np.array(starts, int)}
        write_npz(output, {"K": result.value, "error": result.error, "plan": explanation, **arrays})
        typer.echo(f"wrote {output}: K {result.value.shape}, largest error {result.error.max():.1e}")
    else:
        _print_matrix(result.value)
    if explain:
        typer.echo(explanation)


def _part(text: str | None) -> tuple[int, ...] | None:
    if text is not None and not re.fullmatch(r"\d+/\d+", text):
        raise DataError(f"--part {text}", remedy="Write k/N, as in --part 3/8.")
    return None if text is None else tuple(map(int, text.split("/")))


@app.command()
def plan(
    target: shared.Target,
    data: shared.Data = None,
    method: shared.Method = "auto",
    tol: shared.Tol = None,
    ntk: shared.Ntk = False,
    rates: shared.Rates = "ntk",
) -> None:
    """Say what a kernel takes, without computing it: methods, samples, work and memory."""
    read, (x, y, _) = _load(target, data, ntk, rates)
    if isinstance(read, ns.Program):
        typer.echo(str(ns.limit(read, method=method, tol=tol).plan()))
    else:
        typer.echo(str(ns.kernel(read, method=method, tol=tol).plan(x, y)))


@app.command()
def simulate(
    target: shared.Target,
    data: shared.Data = None,
    width: Annotated[int, typer.Option(help="Width of all layers.", min=1)] = 1000,
    samples: Annotated[int, typer.Option(help="Number of random networks.", min=1)] = 100,
    seed: shared.Seed = 0,
    output: Annotated[
        Path | None, shared.output_option(help="Write the outputs of all networks as .npz.")
    ] = None,
) -> None:
    """Simulate random networks of finite width and print the second moments of their outputs."""
    read, (x, _, _) = _load(target, data)
    outputs = ns.simulate(read, x, width, samples, seed)
    if output is not None:
        write_npz(output, {"outputs": outputs, "width": width, "seed": seed})
        typer.echo(f"wrote {output}: outputs {outputs.shape}")
        return
    typer.echo(f"second moments of the outputs over {samples} networks of width {width}:")
    _print_matrix(outputs.T @ outputs / samples)


@app.command()
def verify(
    target: shared.NetworkTarget,
    data: Annotated[Path, typer.Argument(help="The inputs, as for kernel.", metavar="DATA")],
    widths: Annotated[str, typer.Option(help="Widths, separated by commas.")] = "64,128,256,512,1024",
    samples: Annotated[int, typer.Option(help="Networks at each width.", min=2)] = 30,
    seed: shared.Seed = 0,
    ntk: shared.Ntk = False,
    rates: shared.Rates = "ntk",
) -> None:
    """Compare a network with its limit at several widths. The exit code is 3 if they do not agree."""
    net = tangent_if(ntk, rates, load_network(target))
    verification = ns.verify(net, inputs_of(data)[0], shared.widths_of(widths), samples, seed)
    typer.echo(str(verification))
    if not verification.ok:
        complain("the network does not agree with its limit", 3)


@app.command()
def train(
    target: shared.NetworkTarget,
    data: Annotated[Path, typer.Argument(help="Arrays x, y and new inputs `new`, as .npz.", metavar="DATA")],
    output: Annotated[
        Path | None, shared.output_option(help="Write everything as .npz, for `netsor plot`.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Rate of gradient flow.")] = 1.0,
    noise: Annotated[float, typer.Option(help="The ridge.", min=0)] = 0.0,
    times: Annotated[str, typer.Option(help="Times, separated by commas.")] = "0,1,10,100,1000,inf",
    rates: shared.Rates = "ntk",
) -> None:
    """Train an ensemble of infinitely wide networks; print its loss over time."""
    from netsor.plots.processes import training_numbers

    arrays = load_npz(data)
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{data} has no array `{name}`", remedy="Training takes inputs x and targets y.")
    remedy = "Give numbers >= 0, and inf for the end: 0,10,inf."
    moments = shared.listed("--times", times, float, lambda t: all(moment >= 0 for moment in t), remedy)
    new = arrays.get("new", arrays["x"])
    net = load_network(target)
    model = ns.gp.train(net, arrays["x"], arrays["y"], rate=rate, noise=noise, rates=shared.rates_of(rates))
    for moment, loss in zip(moments, model.loss(moments), strict=True):
        typer.echo(f"time {moment:<10g} loss {loss:.6g}")
    typer.echo(f"gradient descent is stable for rates below {model.max_rate:.4g}")
    if output is not None:
        write_npz(output, training_numbers(model, new, moments))
        typer.echo(f"wrote {output}: {len(moments)} times, {len(new)} inputs")


def _load(
    target: str, data: Path | None, ntk: bool = False, rates: str = "ntk"
) -> tuple[ns.Network | ns.Program, Inputs]:
    """A network and its inputs, or a program, which has its own data; or the tangent of either."""
    if not target.endswith(".netsor"):
        return tangent_if(ntk, rates, load_network(target)), inputs_of(data)
    if data is not None:
        raise DataError("a program has its own data", remedy=f"Leave out {data}.")
    return tangent_if(ntk, rates, load_program(Path(target))), (None, None, [])


def tangent_if(ntk: bool, rates: str, target: T) -> T | TangentNetwork:
    """The tangent of a network or a program, or itself."""
    if not ntk:
        if rates != "ntk":
            raise DataError(f"--rates {rates}", remedy="Rates belong to tangent kernels: give --ntk, too.")
        return target
    given = shared.rates_of(rates)
    return target.tangent(given) if isinstance(target, ns.Program) else ns.tangent(target, given)


def labels_of(net: ns.Network, x: list[Any], names: list[str], rows: int) -> tuple[list[str], list[int]]:
    """A name for each row of the kernel, and the row where each input begins."""
    from netsor.gp.targets import output_sizes

    labels: list[str] = []
    starts: list[int] = []
    for name, size in zip(names, output_sizes(net, x), strict=True):
        starts.append(len(labels))
        labels += [name] if size == 1 else [f"{name} {k}" for k in range(size)]
    return (labels, starts) if len(labels) == rows else ([], [])


def _print_matrix(matrix: np.ndarray) -> None:
    with np.printoptions(precision=6, suppress=True, linewidth=110):
        typer.echo(str(matrix))
