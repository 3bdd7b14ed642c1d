"""`netsor status`, `netsor fit`, `netsor predict`: kernels in stores, and Gaussian processes from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netsor.build.tangent import tangent
from netsor.cli.app import app, reporting
from netsor.cli.loading import load_array, load_inputs, load_network
from netsor.cli.programs import NetworkTarget
from netsor.errors import DataError
from netsor.files import write_npz

__all__ = ["fit", "predict", "status"]

StorePath = Annotated[
    Path, typer.Argument(help="A store, made by `netsor kernel -o K.zarr`.", metavar="K.zarr")
]
Memory = Annotated[str, typer.Option(help="How much memory may be used: 500MB, 4GB.")]
Nngp = Annotated[
    bool, typer.Option("--nngp", help="In a store of a tangent kernel: the network's own kernel.")
]
SIZES = {"KB": 2**10, "MB": 2**20, "GB": 2**30}


def _bytes(text: str) -> int:
    number, size = text[:-2], SIZES.get(text[-2:].upper())
    if size is None or not number.replace(".", "", 1).isdecimal():
        raise DataError(f"--memory {text}", remedy="Write a number and KB, MB or GB: --memory 2GB.")
    return int(float(number) * size)


@app.command()
@reporting
def status(path: StorePath) -> None:
    """How far a store is: tiles, time left, largest error. Safe while others write it."""
    from netsor.gp.stores.store import Store

    store = Store(path)
    rows, columns = store.shape
    typer.echo(f"{path}: kernel of {store.identity['network']}, {rows} x {columns}")
    typer.echo(str(store.status()))


@app.command()
@reporting
def fit(
    path: StorePath,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="The targets, .npy: one row per row of the kernel.", metavar="TARGETS", show_default=False
        ),
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="TARGETS, as an option.", hidden=True)] = None,
    noise: Annotated[float, typer.Option(help="Variance of the noise on the targets.", min=0.0)] = 0.0,
    solver: Annotated[str, typer.Option(help="auto, cholesky or pcg.")] = "auto",
    memory: Memory = "1GB",
    tol: Annotated[float, typer.Option(help="Relative residual of pcg.")] = 1e-8,
    nngp: Nngp = False,
    likelihood: Annotated[
        bool,
        typer.Option(
            "--likelihood",
            help="Compute the log marginal likelihood with pcg, too: 40 more passes over the tiles.",
        ),
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Weights and targets, for `netsor predict`.")
    ] = Path("model.npz"),
) -> None:
    """Condition the Gaussian process of a stored kernel on targets; the matrix is never in memory."""
    from netsor.gp.stores.gradients import Gradients
    from netsor.gp.stores.model import fit_store
    from netsor.gp.stores.store import Store

    given = [file for file in (data, labels) if file is not None]
    if len(given) != 1:
        raise DataError(f"{len(given)} files of targets", remedy="Give one .npy file after the store.")
    found = fit_store(
        Store(path, nngp=nngp),
        load_array(given[0]),
        noise=noise,
        solver=solver,
        memory=_bytes(memory),
        tol=tol,
    )
    found.save(output)
    typer.echo(f"wrote {output}: {found.solver.name}, relative residual {found.residual:.1e}")
    if likelihood or found.solver.name != Gradients.name:
        evidence = found.log_marginal_likelihood()
        typer.echo(f"log marginal likelihood {evidence.value:.6g} +- {evidence.error:.1g}")


@app.command()
@reporting
def predict(
    target: NetworkTarget,
    path: StorePath,
    data: Annotated[Path, typer.Argument(help="New inputs, as for kernel.", metavar="DATA")],
    model: Annotated[Path, typer.Option(help="What `netsor fit` wrote.")] = Path("model.npz"),
    memory: Memory = "1GB",
    nngp: Nngp = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Means and standard deviations.")] = Path(
        "predictions.npz"
    ),
) -> None:
    """Predictions at new inputs. The network is that of the store, which holds no code."""
    from netsor.gp.stores.identity import options_of
    from netsor.gp.stores.model import load_stored
    from netsor.gp.stores.store import Store
    from netsor.limits import KernelFn
    from netsor.limits.kernel import TangentKernelFn

    net, facts = load_network(target), Store(path).identity
    if facts["kind"] == TangentKernelFn.__name__:
        kernel: KernelFn = TangentKernelFn(tangent(net), options_of(facts))
    else:
        kernel = KernelFn(net, options_of(facts))
    held = Store(path, kernel, nngp=nngp)
    found = load_stored(model, held, _bytes(memory)).predict(load_inputs(data)[0])
    write_npz(output, {"mean": found.mean, "std": found.std})
    typer.echo(f"wrote {output}: mean {found.mean.shape}, largest std {found.std.max():.3g}")
