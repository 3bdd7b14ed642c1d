"""`netsor status`, `netsor fit`, `netsor predict`: kernels in stores, and Gaussian processes from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import netsor as ns
from netsor.cli.app import app
from netsor.cli.loading import load_array, load_inputs, load_network
from netsor.cli.shared_options import NetworkTarget, bytes_of, output_option
from netsor.errors import DataError
from netsor.files import write_npz
from netsor.limits.kernel import KernelFn, TangentKernelFn

MODEL = Path("model.npz")
StorePath = Annotated[
    Path, typer.Argument(help="A store, made by `netsor kernel -o K.zarr`.", metavar="K.zarr")
]
Memory = Annotated[str, typer.Option(help="Memory to use at most: 500MB, 4GB.")]
Nngp = Annotated[
    bool, typer.Option("--nngp", help="Of a tangent kernel's store, take the network's own kernel.")
]


@app.command()
def status(path: StorePath) -> None:
    """Print the progress of a store: tiles, time left, largest error. Others may write it meanwhile."""
    store = ns.gp.Store(path)
    rows, columns = store.shape
    typer.echo(f"{path}: kernel of {store.identity['network']}, {rows} x {columns}")
    typer.echo(str(store.status()))


@app.command()
def fit(
    path: StorePath,
    data: Annotated[
        Path | None,
        typer.Argument(help="The targets, .npy: one row per row of the kernel.", metavar="TARGETS"),
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
            "--likelihood", help="Compute the log marginal likelihood with pcg, too. It takes 40 more passes."
        ),
    ] = False,
    output: Annotated[Path, output_option(help="Write weights and targets, for `netsor predict`.")] = MODEL,
) -> None:
    """Condition the Gaussian process of a stored kernel on targets, without loading the matrix."""
    from netsor.gp.stores.model import fit_store

    files = [file for file in (data, labels) if file is not None]
    if len(files) != 1:
        raise DataError(f"{len(files)} files of targets", remedy="Give one .npy file after the store.")
    options: dict[str, Any] = {"noise": noise, "solver": solver, "memory": bytes_of(memory), "tol": tol}
    model = fit_store(ns.gp.Store(path, nngp=nngp), load_array(files[0]), **options)
    model.save(output)
    typer.echo(f"wrote {output}: {model.solver.name}, relative residual {model.residual:.1e}")
    if likelihood or model.solver.name != "pcg":
        evidence = model.log_marginal_likelihood()
        typer.echo(f"log marginal likelihood {evidence.value:.6g} +- {evidence.error:.1g}")


@app.command()
def predict(
    target: NetworkTarget,
    path: StorePath,
    data: Annotated[Path, typer.Argument(help="New inputs, as for kernel.", metavar="DATA")],
    model: Annotated[Path, typer.Option(help="The file that `netsor fit` wrote.")] = MODEL,
    memory: Memory = "1GB",
    nngp: Nngp = False,
    output: Annotated[Path, output_option(help="Write means and standard deviations.")] = Path(
        "predictions.npz"
    ),
) -> None:
    """Predict at new inputs. The network must be that of the store, which holds no code."""
    from netsor.gp.stores.identity import options_of
    from netsor.gp.stores.model import load_stored

    net, facts = load_network(target), ns.gp.Store(path).identity
    options, tangent = options_of(facts), facts["kind"] == TangentKernelFn.__name__
    kernel = TangentKernelFn(ns.tangent(net), options) if tangent else KernelFn(net, options)
    fitted = load_stored(model, ns.gp.Store(path, kernel, nngp=nngp), bytes_of(memory))
    prediction = fitted.predict(load_inputs(data)[0])
    write_npz(output, {"mean": prediction.mean, "std": prediction.std})
    typer.echo(f"wrote {output}: mean {prediction.mean.shape}, largest std {prediction.std.max():.3g}")
