"""`netsor plot`: every picture of `ns.plots`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from netsor.build.network import Network
from netsor.build.tangent import tangent
from netsor.cli.app import app, reporting
from netsor.cli.kernels import Ntk, Seed, inputs_of, labels_of, widths_of
from netsor.cli.loading import load_function, load_network, load_npz
from netsor.errors import DataError

__all__ = ["plot"]


@app.command()
@reporting
def plot(
    target: Annotated[
        str,
        typer.Argument(
            help="What `netsor kernel -o` or `netsor train -o` has stored; or a network in a Python file; "
            "for phase, a function from the depth to a network.",
            metavar="K.npz|FILE.py:NETWORK",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="The inputs of a network, as for kernel; samples with y as well are of the posterior.",
            metavar="DATA",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="map, spectrum, samples, convergence, angle, correlation, phase or training.")
    ] = "map",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The picture: .png, .pdf or .svg.", show_default="K.png"),
    ] = None,
    correlation: Annotated[bool, typer.Option("--correlation", help="Divide by the deviations.")] = False,
    title: Annotated[str, typer.Option(help="Title of the picture.", show_default=False)] = "",
    words: Annotated[
        str, typer.Option(help="A word for each row, divided by spaces.", show_default=False)
    ] = "",
    noise: Annotated[float, typer.Option(help="Variance of the noise on y, for samples.", min=0)] = 0.0,
    widths: Annotated[str, typer.Option(help="Widths of convergence.")] = "64,128,256,512",
    var_w: Annotated[str, typer.Option(help="Range of var_w in a phase diagram.")] = "0.25,4",
    var_b: Annotated[str, typer.Option(help="Range of var_b in a phase diagram.")] = "0,1",
    depth: Annotated[int, typer.Option(help="Depth of a phase diagram.", min=2)] = 12,
    tied: Annotated[
        list[str] | None,
        typer.Option(
            help="Names or patterns of the variances that var_w moves, divided by commas; given again, those "
            "that var_b moves: --tied 'W*,U*' --tied 'b*'.",
            show_default="hidden matrices and biases",
        ),
    ] = None,
    seed: Seed = 0,
    ntk: Ntk = False,
) -> None:
    """A picture of a stored kernel, of what `netsor train` has stored, or of a network."""
    from netsor import plots

    stored = target.endswith(".npz")
    name = title or (Path(target).stem if stored else target.rpartition(":")[2])
    if kind == "phase":
        grid = np.linspace(*_range(var_w), 13), np.linspace(*_range(var_b), 9)
        groups = [group.split(",") for group in tied] if tied else None
        made = plots.phase_diagram(load_function(target), *grid, name, depth=depth, tied=groups)
    elif stored:
        made = _of_stored(load_npz(Path(target)), Path(target), kind, name, words, correlation)
    else:
        net = load_network(target)
        net = tangent(net) if ntk else net
        draw = _kinds(net, data, name, words, correlation, noise, widths, seed).get(kind)
        if draw is None:
            raise DataError(f"--kind {kind}", remedy="See `netsor plot --help` for the kinds.")
        made = draw()
    default = Path(target).with_suffix(".png") if stored else Path(f"{target.rpartition(':')[2]}.png")
    typer.echo(f"wrote {made.save(output or default)}")


def _of_stored(
    stored: dict[str, Any], path: Path, kind: str, title: str, words: str, correlation: bool
) -> Any:
    """A picture of a file."""
    from netsor.plots import kernel_map, spectrum
    from netsor.plots.functions import draw_training

    if "curve_loss" in stored:
        return draw_training(stored, title)
    if "K" not in stored or stored["K"].ndim != 2:
        raise DataError(f"{path} holds no kernel", remedy="Make one with `netsor kernel ... -o K.npz`.")
    if kind == "spectrum":
        return spectrum(stored["K"], title)
    if kind != "map":
        raise DataError(f"--kind {kind} of a stored kernel", remedy="Give the network: FILE.py:NETWORK DATA.")
    labels = [str(label) for label in stored.get("labels", ())]
    starts = [int(row) for row in stored.get("starts", ())]
    breaks = _breaks(starts, len(stored["K"]))
    return kernel_map(stored["K"], words.split() or labels, title, breaks=breaks, correlation=correlation)


def _breaks(starts: list[int], rows: int) -> list[int]:
    """Lines between inputs, if some have several rows."""
    return starts[1:] if len(starts) < rows else []


def _kinds(
    net: Network,
    data: Path | None,
    title: str,
    words: str,
    correlation: bool,
    noise: float,
    widths: str,
    seed: int,
) -> dict[str, Callable[[], Any]]:
    """What can be drawn of a network."""
    from netsor import gp, plots
    from netsor.limits import kernel
    from netsor.verify import verify

    def kernel_map() -> Any:
        x, _, names = inputs_of(data)
        found = kernel(net, seed=seed).evaluate(x)
        labels, starts = labels_of(net, x, names, len(found.value))
        breaks = _breaks(starts, len(found.value))
        return plots.kernel_map(found, words.split() or labels, title, breaks=breaks, correlation=correlation)

    def samples() -> Any:
        given = load_npz(data) if data is not None and data.suffix == ".npz" else {}
        if "y" in given and "x" in given:
            model = gp.fit(kernel(net, seed=seed), _column(given["x"]), given["y"], noise=noise)
            reach = given.get("new", _around(given["x"]))
            return plots.samples(model, reach, title, seed=seed)
        return plots.samples(kernel(net, seed=seed), np.asarray(inputs_of(data)[0]), title, seed=seed)

    def training() -> Any:
        given = load_npz(data) if data is not None else {}
        if not {"x", "y"} <= set(given):
            raise DataError("training takes inputs x and targets y", remedy="Give a .npz file with both.")
        model = gp.train(net, _column(given["x"]), given["y"], noise=noise)
        return plots.training(model, _column(given.get("new", _around(given["x"]))), title)

    return {
        "map": kernel_map,
        "spectrum": lambda: plots.spectrum(kernel(net, seed=seed).evaluate(inputs_of(data)[0]), title),
        "samples": samples,
        "convergence": lambda: plots.convergence(
            verify(net, inputs_of(data)[0], widths_of(widths), seed=seed), title
        ),
        "angle": lambda: plots.angle(net, title),
        "correlation": lambda: plots.correlation_map(net, title),
        "training": training,
    }


def _column(x: np.ndarray) -> np.ndarray:
    return x[:, None] if x.ndim == 1 else x


def _around(x: np.ndarray) -> np.ndarray:
    """Inputs between and around those of the data, if they are numbers."""
    if x.ndim > 1 and x[0].size > 1:
        return x
    low, high = float(x.min()), float(x.max())
    return np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), 121)


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise DataError(f"`{text}` is no range", remedy="Give two numbers, as in 0.25,4.") from None
    if not 0 <= low < high:
        raise DataError(f"`{text}` is no range", remedy="Variances grow from a number >= 0.")
    return low, high
