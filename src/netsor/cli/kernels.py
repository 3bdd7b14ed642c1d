"""`netsor kernel`, `netsor plan`, `netsor simulate`, `netsor verify`."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from netsor.build.network import Network, program
from netsor.build.tangent import tangent
from netsor.cli.app import app, complain, reporting
from netsor.cli.loading import is_program, load_inputs, load_network, load_program
from netsor.cli.programs import NetworkTarget, RatesOption, rates_of
from netsor.errors import DataError
from netsor.files import write_npz
from netsor.lang import Program

__all__ = [
    "Data",
    "Seed",
    "Target",
    "inputs_of",
    "kernel",
    "labels_of",
    "plan",
    "simulate",
    "verify",
    "widths_of",
]

Target = Annotated[
    str,
    typer.Argument(help="A network in a Python file, or a program.", metavar="FILE.py:NETWORK|FILE.netsor"),
]
Data = Annotated[
    Path | None,
    typer.Argument(
        help="The inputs: .npy, or .npz (x with the inputs along its first axis, or one array per input; "
        "name.0, name.1 are the parts of one). A program has its own data.",
        metavar="DATA",
        show_default=False,
    ),
]
Ntk = Annotated[bool, typer.Option("--ntk", help="The tangent kernel (NTK), that of training.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.", min=0)]


@app.command()
@reporting
def kernel(
    target: Target,
    data: Data = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Values, errors and plan as .npz, or tile by tile into a store, .zarr."
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which method computed what, with which error.")
    ] = False,
    method: Annotated[str, typer.Option(help="auto, exact or sample.")] = "auto",
    tol: Annotated[
        float | None, typer.Option(help="Sample until the relative error is below this.", show_default=False)
    ] = None,
    seed: Seed = 0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Begin even if the plan says that it takes more than an hour.")
    ] = False,
    tile: Annotated[
        int | None, typer.Option(help="Inputs of a tile of a store, about.", min=1, show_default=False)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that compute a store.", min=1, show_default=False)
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, tcp://...", show_default=False)
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="The k-th of N parts of a store, k/N.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a store that is there.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Make damaged tiles again.")] = False,
    ntk: Ntk = False,
    rates: RatesOption = "ntk",
) -> None:
    """The infinite-width kernel of a network on a set of inputs, or between the sets x and y."""
    from netsor.limits import kernel as kernel_of
    from netsor.limits import limit

    options: dict[str, Any] = {"method": method, "tol": tol, "seed": seed, "confirm": confirm}
    if output is not None and output.suffix == ".zarr":
        if rates != "ntk":
            raise DataError(
                "--rates for a store", remedy="Give rates to the network: ns.Matrix(var, rate=0.5)."
            )
        made = kernel_of(_chosen(load_network(target), ntk, rates), **options)
        into = {"tile": tile, "engine": _engine(workers, scheduler), "part": _part(part), "verify": verify}
        _store(made, data, output, resume or part is not None, into)
        return
    if any((tile, workers, scheduler, part, resume, verify)):
        raise DataError("tiles, workers and parts are for stores", remedy="Give a store: -o K.zarr.")
    if is_program(target):
        made = _chosen(_program(target, data), ntk, rates)
        found, labels, starts = limit(made, **options).kernel(), [], []
    else:
        net, (x, y, names) = load_network(target), inputs_of(data)
        found = kernel_of(_chosen(net, ntk, rates), **options).evaluate(x, y)
        labels, starts = ([], []) if y is not None else labels_of(net, x, names, len(found.value))
    if output is not None:
        write_npz(
            output,
            {
                "K": found.value,
                "error": found.error,
                "plan": found.explain(),
                "labels": np.array(labels, str),
                "starts": np.array(starts, int),
            },
        )
        typer.echo(f"wrote {output}: K {found.value.shape}, largest error {found.error.max():.1e}")
    else:
        _print_matrix(found.value)
    if explain:
        typer.echo(found.explain())


def _store(made: Any, data: Path | None, output: Path, resume: bool, options: dict[str, Any]) -> None:
    """A kernel into a store."""
    from netsor.gp.stores.tiles import store

    if output.exists() and not resume:
        raise DataError(f"{output} is there already", remedy="Go on with it with --resume, or remove it.")
    x, y, _ = inputs_of(data)
    typer.echo(f"{output}: {store(made, x, output, y, **options).status()}")


def _engine(workers: int | None, scheduler: str | None) -> Any:
    if workers is not None and scheduler is not None:
        raise DataError("--workers and --scheduler", remedy="Give one of them: who computes the tiles?")
    return scheduler or workers


def _part(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    k, _, count = text.partition("/")
    if not (k.isdecimal() and count.isdecimal()):
        raise DataError(f"--part {text}", remedy="Write k/N, as in --part 3/8.")
    return int(k), int(count)


@app.command()
@reporting
def plan(
    target: Target,
    data: Data = None,
    method: Annotated[str, typer.Option(help="auto, exact or sample.")] = "auto",
    tol: Annotated[
        float | None, typer.Option(help="Sample until the relative error is below this.", show_default=False)
    ] = None,
    ntk: Ntk = False,
    rates: RatesOption = "ntk",
) -> None:
    """What the kernel takes, without computing it: which method for what, samples, work and memory."""
    from netsor.limits import kernel as kernel_of
    from netsor.limits import limit

    if is_program(target):
        made = _chosen(_program(target, data), ntk, rates)
        typer.echo(str(limit(made, method=method, tol=tol).plan()))
        return
    net, (x, y, _) = _chosen(load_network(target), ntk, rates), inputs_of(data)
    typer.echo(str(kernel_of(net, method=method, tol=tol).plan(x, y)))


@app.command()
@reporting
def simulate(
    target: Target,
    data: Data = None,
    width: Annotated[int, typer.Option(help="Width of all layers.", min=1)] = 1000,
    samples: Annotated[int, typer.Option(help="Number of random networks.", min=1)] = 100,
    seed: Seed = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Store the outputs of all networks.")
    ] = None,
) -> None:
    """Outputs of random networks of finite width; prints their second moments."""
    from netsor.simulation import simulate as run

    if is_program(target):
        outputs = run(_program(target, data), None, width, samples, seed)
    else:
        outputs = run(load_network(target), inputs_of(data)[0], width, samples, seed)
    if output is not None:
        write_npz(output, {"outputs": outputs, "width": width, "seed": seed})
        typer.echo(f"wrote {output}: outputs {outputs.shape}")
        return
    typer.echo(f"second moments of the outputs over {samples} networks of width {width}:")
    _print_matrix(outputs.T @ outputs / samples)


@app.command()
@reporting
def verify(
    target: NetworkTarget,
    data: Annotated[Path, typer.Argument(help="The inputs, as for kernel.", metavar="DATA")],
    widths: Annotated[str, typer.Option(help="Widths, divided by commas.")] = "64,128,256,512,1024",
    samples: Annotated[int, typer.Option(help="Networks at each width.", min=2)] = 30,
    seed: Seed = 0,
    ntk: Ntk = False,
    rates: RatesOption = "ntk",
) -> None:
    """Compare a network with its limit at several widths; exit code 3 if they do not agree."""
    from netsor.verify import verify as compare

    net = _chosen(load_network(target), ntk, rates)
    found = compare(net, inputs_of(data)[0], widths_of(widths), samples, seed)
    typer.echo(str(found))
    if not found.ok:
        complain("the network does not agree with its limit", 3)


def _chosen(given: Any, ntk: bool, rates: str) -> Any:
    """A network or a program, or its tangent."""
    if not ntk:
        if rates != "ntk":
            raise DataError(f"--rates {rates}", remedy="Rates belong to tangent kernels: give --ntk, too.")
        return given
    return given.tangent(rates_of(rates)) if isinstance(given, Program) else tangent(given, rates_of(rates))


def _program(target: str, data: Path | None) -> Program:
    if data is not None:
        raise DataError("a program has its own data", remedy=f"Leave out {data}.")
    return load_program(Path(target))


def inputs_of(data: Path | None) -> tuple[list[Any], list[Any] | None, list[str]]:
    if data is None:
        raise DataError("a network needs data", remedy="Give a .npy or .npz file after the network.")
    return load_inputs(data)


def widths_of(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        widths = ()
    if len(set(widths)) < 2 or min(widths) < 1:
        raise DataError(f"--widths {text}", remedy="Give at least two numbers >= 1, e.g. 64,256,1024.")
    return widths


def labels_of(net: Network, x: list[Any], names: list[str], rows: int) -> tuple[list[str], list[int]]:
    """A name for each row of the kernel, and the row where each input begins."""
    sizes: dict[Any, int] = {}
    labels: list[str] = []
    starts: list[int] = []
    for name, xi in zip(names, x, strict=True):
        key = repr([np.shape(part) for part in xi]) if isinstance(xi, tuple) else np.shape(xi)
        size = sizes[key] = sizes.get(key) or _outputs(program(net, xi))
        starts.append(len(labels))
        labels += [name] if size == 1 else [f"{name} {k}" for k in range(size)]
    return (labels, starts) if len(labels) == rows else ([], [])


def _outputs(made: Program) -> int:
    """The number of output scalars."""
    total = 0
    for s in made.outputs:
        t = s.terms[0]
        v, y = made.types[t.readout], made.types[t.operand]
        total += prod(v.index[t.aligned :]) * prod(y.index[t.aligned :])
    return total


def _print_matrix(matrix: np.ndarray) -> None:
    with np.printoptions(precision=6, suppress=True, linewidth=110):
        typer.echo(str(matrix))
