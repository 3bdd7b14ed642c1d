"""`netsor plot`: every picture of `ns.plots`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from netsor.build.network import Network
from netsor.build.tangent_network import tangent
from netsor.cli.app import app, reporting
from netsor.cli.kernel_commands import labels_of
from netsor.cli.loading import inputs_of, load_function, load_network, load_npz
from netsor.cli.shared_options import Ntk, Seed, listed, widths_of
from netsor.errors import DataError

if TYPE_CHECKING:
    from netsor.limits import Result
    from netsor.plots import Picture

Tied = Annotated[
    list[str] | None,
    typer.Option(
        help="Names or patterns of the variances that var_w moves, separated by commas. Give the option "
        "again for those that var_b moves: --tied 'W*,U*' --tied 'b*'.",
        show_default="hidden matrices and biases",
    ),
]


@app.command()
@reporting
def plot(
    target: Annotated[
        str,
        typer.Argument(
            help="A file that `netsor kernel -o` or `netsor train -o` has written; or a network in a Python "
            "file; for phase, a function from the depth to a network.",
            metavar="K.npz|FILE.py:NETWORK",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="The inputs of a network, as for kernel. With targets y as well, samples are drawn from the "
            "posterior.",
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
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Divide a kernel by the standard deviations.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the picture.", show_default=False)] = "",
    words: Annotated[
        str, typer.Option(help="A word for each row, separated by spaces.", show_default=False)
    ] = "",
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
    stored = target.endswith(".npz")
    stem = Path(target).stem if stored else target.rpartition(":")[2]
    text = _Texts(title or stem, words, correlation)
    if kind == "phase":
        picture = _phases(target, text.title, var_w, var_b, depth, tied)
    elif stored:
        picture = _of_stored(Path(target), kind, text)
    else:
        net = load_network(target)
        drawing = _Drawing(tangent(net) if ntk else net, data, text, noise, widths, seed)
        kinds = ("map", "spectrum", "samples", "convergence", "angle", "correlation", "training")
        if kind not in kinds:
            raise DataError(f"--kind {kind}", remedy="See `netsor plot --help` for the kinds.")
        picture = getattr(drawing, kind)()
    default = Path(target).with_suffix(".png") if stored else Path(f"{stem}.png")
    typer.echo(f"wrote {picture.save(output or default)}")


@dataclass(frozen=True)
class _Texts:
    """What stands on a picture, and whether a kernel is drawn as correlations."""

    title: str
    words: str
    correlation: bool

    def kernel_map(self, K: Result | np.ndarray, labels: list[str], starts: list[int]) -> Picture:
        """A heat map with lines between inputs, if some have several rows."""
        from netsor.plots import kernel_map, maps

        breaks = starts[1:] if len(starts) < len(maps.values_of(K)) else []
        words = self.words.split() or labels
        return kernel_map(K, words, self.title, breaks=breaks, correlation=self.correlation)


def _phases(target: str, title: str, var_w: str, var_b: str, depth: int, tied: list[str] | None) -> Picture:
    from netsor.plots import phase_diagram

    across, up = _grid("--var-w", var_w, 13), _grid("--var-b", var_b, 9)
    groups = [group.split(",") for group in tied] if tied else None
    return phase_diagram(load_function(target), across, up, title, depth=depth, tied=groups)


def _of_stored(path: Path, kind: str, text: _Texts) -> Picture:
    """A picture of a file."""
    from netsor.plots import spectrum
    from netsor.plots.processes import draw_training

    stored = load_npz(path)
    # Files of `netsor train` and of `netsor kernel` are told apart by their arrays.
    if "curve_loss" in stored:
        return draw_training(stored, text.title)
    if "K" not in stored or stored["K"].ndim != 2:
        raise DataError(f"{path} holds no kernel", remedy="Make one with `netsor kernel ... -o K.npz`.")
    if kind == "spectrum":
        return spectrum(stored["K"], text.title)
    if kind != "map":
        raise DataError(f"--kind {kind} of a stored kernel", remedy="Give the network: FILE.py:NETWORK DATA.")
    labels = [str(label) for label in stored.get("labels", ())]
    return text.kernel_map(stored["K"], labels, [int(row) for row in stored.get("starts", ())])


@dataclass(frozen=True)
class _Drawing:
    """What a picture of a network is drawn from; one method for each kind."""

    net: Network
    data: Path | None
    text: _Texts
    noise: float
    widths: str
    seed: int

    def _kernel(self) -> Result:
        from netsor.limits import kernel

        return kernel(self.net, seed=self.seed).evaluate(inputs_of(self.data)[0])

    def map(self) -> Picture:
        K, (x, _, names) = self._kernel(), inputs_of(self.data)
        return self.text.kernel_map(K, *labels_of(self.net, x, names, len(K.value)))

    def spectrum(self) -> Picture:
        from netsor.plots import spectrum

        return spectrum(self._kernel(), self.text.title)

    def samples(self) -> Picture:
        from netsor import gp
        from netsor.limits import kernel
        from netsor.plots import samples

        K = kernel(self.net, seed=self.seed)
        arrays = load_npz(self.data) if self.data is not None and self.data.suffix == ".npz" else {}
        if not {"x", "y"} <= set(arrays):
            return samples(K, np.asarray(inputs_of(self.data)[0]), self.text.title, seed=self.seed)
        model = gp.fit(K, _column(arrays["x"]), arrays["y"], noise=self.noise)
        return samples(model, arrays.get("new", _around(arrays["x"])), self.text.title, seed=self.seed)

    def training(self) -> Picture:
        from netsor import gp, plots

        arrays = load_npz(self.data) if self.data is not None else {}
        if not {"x", "y"} <= set(arrays):
            raise DataError("training takes inputs x and targets y", remedy="Give a .npz file with both.")
        model = gp.train(self.net, _column(arrays["x"]), arrays["y"], noise=self.noise)
        return plots.training(model, _column(arrays.get("new", _around(arrays["x"]))), self.text.title)

    def convergence(self) -> Picture:
        from netsor.plots import convergence
        from netsor.verify import verify

        x, widths = inputs_of(self.data)[0], widths_of(self.widths)
        return convergence(verify(self.net, x, widths, seed=self.seed), self.text.title)

    def angle(self) -> Picture:
        from netsor.plots import angle

        return angle(self.net, self.text.title)

    def correlation(self) -> Picture:
        from netsor.plots import correlation_map

        return correlation_map(self.net, self.text.title)


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
