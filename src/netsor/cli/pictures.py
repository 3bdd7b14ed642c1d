"""`netsor plot`: every picture of `ns.plots`; `netsor report`: one page of HTML about a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import netsor as ns
from netsor.cli.app import app
from netsor.cli.kernel_commands import labels_of, tangent_if
from netsor.cli.loading import data_files, inputs_of, load_function, load_network, load_npz
from netsor.cli.shared_options import NetworkTarget, Ntk, OldInput, Seed, listed, output_option, widths_of
from netsor.errors import DataError
from netsor.files import write_text
from netsor.limits import Result

if TYPE_CHECKING:
    from netsor.plots import Picture

Tied = Annotated[
    list[str] | None,
    typer.Option(
        help="Names or patterns of the variances that var_w moves, separated by commas. Give the option "
        "again for those that var_b moves: --tied 'W*,U*' --tied 'b*'.",
        show_default="hidden matrices and biases",
    ),
]


PlotTarget = Annotated[
    str,
    typer.Argument(
        help="A file that `netsor kernel -o` or `netsor train -o` has written; or a network in a Python "
        "file; for phase, a function from the depth to a network.",
        metavar="K.npz|FILE.py:NETWORK",
    ),
]
PlotData = Annotated[
    Path | None,
    typer.Argument(
        help="The inputs of a network, as for kernel. With targets y as well, samples are drawn from the "
        "posterior.",
        metavar="DATA",
    ),
]


@app.command()
def plot(
    target: PlotTarget,
    data: PlotData = None,
    kind: Annotated[
        str, typer.Option(help="map, spectrum, samples, convergence, angle, correlation, phase or training.")
    ] = "map",
    output: Annotated[
        Path | None, output_option(help="The picture: .png, .pdf or .svg.", show_default="K.png")
    ] = None,
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Divide a kernel by the standard deviations.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the picture.")] = "",
    words: Annotated[str, typer.Option(help="A word for each row, separated by spaces.")] = "",
    noise: Annotated[float, typer.Option(help="Variance of the noise on y, for samples.", min=0)] = 0.0,
    widths: Annotated[str, typer.Option(help="Widths of convergence.")] = "64,128,256,512",
    var_w: Annotated[str, typer.Option(help="Range of var_w in a phase diagram.")] = "0.25,4",
    var_b: Annotated[str, typer.Option(help="Range of var_b in a phase diagram.")] = "0,1",
    depth: Annotated[int, typer.Option(help="Depth of a phase diagram.", min=2)] = 12,
    tied: Tied = None,
    seed: Seed = 0,
    ntk: Ntk = False,
) -> None:
    """Draw a stored kernel, stored training, or a picture of a network."""
    from netsor.plots.processes import draw_training

    stored = target.endswith(".npz")
    stem = Path(target).stem if stored else target.rpartition(":")[2]
    title = title or stem
    if kind == "phase":
        across, up = _grid("--var-w", var_w, 13), _grid("--var-b", var_b, 9)
        groups = [group.split(",") for group in tied] if tied else None
        picture = ns.plots.phase_diagram(load_function(target), across, up, title, depth=depth, tied=groups)
    elif stored and "curve_loss" in (training := load_npz(Path(target))):
        picture = draw_training(training, title)
    elif stored or kind in ("map", "spectrum"):
        K, labels, starts = _stored(target, kind) if stored else _computed(target, data, seed, ntk)
        if kind == "spectrum":
            picture = ns.plots.spectrum(K, title)
        else:
            # Lines between inputs, if some have several rows.
            breaks = starts[1:] if len(starts) < len(K.value if isinstance(K, Result) else K) else []
            looks = {"breaks": breaks, "correlation": correlation}
            picture = ns.plots.kernel_map(K, words.split() or labels, title, **looks)
    else:
        net = tangent_if(ntk, "ntk", load_network(target))
        picture = _of_network(net, kind, data, title, noise, widths, seed)
    default = Path(target).with_suffix(".png") if stored else Path(f"{stem}.png")
    typer.echo(f"wrote {picture.save(output or default)}")


def _stored(path: str, kind: str) -> tuple[np.ndarray, list[str], list[int]]:
    """A kernel that `netsor kernel` wrote, and the labels and starts of its rows."""
    arrays = load_npz(Path(path))
    if "K" not in arrays or arrays["K"].ndim != 2:
        raise DataError(f"{path} holds no kernel", remedy="Make one with `netsor kernel ... -o K.npz`.")
    if kind not in ("map", "spectrum"):
        raise DataError(f"--kind {kind} of a stored kernel", remedy="Give the network: FILE.py:NETWORK DATA.")
    return arrays["K"], [str(label) for label in arrays.get("labels", ())], list(arrays.get("starts", ()))


def _computed(target: str, data: Path | None, seed: int, ntk: bool) -> tuple[Result, list[str], list[int]]:
    """The kernel of a network, and the labels and starts of its rows."""
    net, (x, _, names) = tangent_if(ntk, "ntk", load_network(target)), inputs_of(data)
    result = ns.kernel(net, seed=seed).evaluate(x)
    return result, *labels_of(net, x, names, len(result.value))


def _of_network(
    net: ns.Network, kind: str, data: Path | None, title: str, noise: float, widths: str, seed: int
) -> Picture:
    match kind:
        case "samples" | "training":  # on inputs x and targets y; without targets, samples of the prior
            K = ns.kernel(net, seed=seed)
            arrays = load_npz(data) if data is not None and data.suffix == ".npz" else {}
            if {"x", "y"} <= set(arrays):
                x, y, new = _column(arrays["x"]), arrays["y"], arrays.get("new", _around(arrays["x"]))
                if kind == "samples":
                    return ns.plots.samples(ns.gp.fit(K, x, y, noise=noise), new, title, seed=seed)
                return ns.plots.training(ns.gp.train(K.net, x, y, noise=noise), _column(new), title)
            if kind == "training":
                raise DataError("training takes inputs x and targets y", remedy="Give a .npz file with both.")
            return ns.plots.samples(K, np.asarray(inputs_of(data)[0]), title, seed=seed)
        case "convergence":
            verification = ns.verify(net, inputs_of(data)[0], widths_of(widths), seed=seed)
            return ns.plots.convergence(verification, title)
        case "angle":
            return ns.plots.angle(net, title)
        case "correlation":
            return ns.plots.correlation_map(net, title)
    raise DataError(f"--kind {kind}", remedy="See `netsor plot --help` for the kinds.")


def _column(x: np.ndarray) -> np.ndarray:
    return x[:, None] if x.ndim == 1 else x


def _around(x: np.ndarray) -> np.ndarray:
    """Inputs between and around those of the data, if they are numbers."""
    if x.ndim > 1 and x[0].size > 1:
        return x
    low, high = float(x.min()), float(x.max())
    return np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), 121)


def _grid(option: str, text: str, points: int) -> np.ndarray:
    remedy = "Give two variances, the smaller one first, as in 0.25,4."
    low, high = listed(option, text, float, lambda r: len(r) == 2 and 0 <= r[0] < r[1], remedy)
    return np.linspace(low, high, points)


@app.command()
def report(
    target: NetworkTarget,
    data: Annotated[Path | None, typer.Argument(help="The inputs, as for kernel.", metavar="DATA")] = None,
    inputs: OldInput = None,
    output: Annotated[Path, output_option(help="The page.")] = Path("report.html"),
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
