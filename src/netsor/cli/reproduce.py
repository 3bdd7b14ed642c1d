"""`netsor reproduce rnn | kernels | zoo | ntk`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from netsor.cli.app import complain, reproduce_app

Out = Annotated[
    Path, typer.Option(help="Folder for the figure, tables and finished samples.", file_okay=False)
]
Seed = Annotated[int, typer.Option(help="Seed of the simulation.", min=0)]
Samples = Annotated[int, typer.Option(help="Random networks at each width.", min=2)]
MaxWidth = Annotated[int, typer.Option(help="Widths are 32, 64, ... up to this.", min=64, max=2**15)]
Images = Annotated[
    Path | None,
    typer.Option(
        help="CIFAR-10 files for the batches (data_batch_1, data_batch_1.bin, their folder, or .npy); "
        "by default 64 digits that ship with netsor."
    ),
]
FullWidths = Annotated[bool, typer.Option("--full", help="Take widths up to 8192, as in the paper.")]


def _report(out: Path, seed: int, figure: str, *args: Any, **options: Any) -> None:
    """Print the results of a function of `netsor.reproduce`; after an interrupt say what is kept."""
    reproduce = import_module("netsor.reproduce")
    experiment = reproduce.Experiment(out, seed)
    try:
        for line in getattr(reproduce, figure)(experiment, *args, **options):
            typer.echo(line)
    except KeyboardInterrupt:
        complain(
            f"interrupted; {experiment.drawn} new samples are kept in {out / 'samples'}: run it again", 130
        )
    if experiment.reused:
        typer.echo(f"{experiment.reused} samples of an earlier run in {out / 'samples'} were used again")


@reproduce_app.command()
def rnn(
    out: Out = Path("out"),
    full: Annotated[
        bool, typer.Option("--full", help="Take 100,000 networks in panel E, as in the paper.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Networks in panel E, without --full.", min=100)] = 2000,
    width: Annotated[int, typer.Option(help="Width of the simulated networks.", min=1)] = 1000,
    seed: Seed = 0,
) -> None:
    """Draw the paper's first figure: infinite-width theory predicts the simple RNN."""
    _report(out, seed, "rnn_figure", samples=100_000 if full else samples, width=width)


def _add_command(name: str, help_: str) -> None:
    """Add the command of a figure that compares kernels of networks, among them batches of images."""

    @reproduce_app.command(name, help=help_)
    def figure(
        out: Out = Path("out"),
        full: FullWidths = False,
        max_width: MaxWidth = 1024,
        samples: Samples = 100,
        seed: Seed = 0,
        images: Images = None,
    ) -> None:
        from netsor.data import cifar10

        batches = None if images is None else cifar10(images)
        _report(out, seed, f"{name}_figure", widths_up_to(8192 if full else max_width), samples, batches)


_add_command(
    "kernels", "Draw the kernels of simple RNN, GRU, transformer and batchnorm, and their finite networks."
)
_add_command("zoo", "Draw how finite networks approach the limit, for every network of the zoo.")


@reproduce_app.command()
def ntk(out: Out = Path("out"), max_width: MaxWidth = 512, samples: Samples = 100, seed: Seed = 0) -> None:
    """Draw how tangent kernels approach the limit: the figure of Tensor Programs II."""
    _report(out, seed, "zoo_figure", widths_up_to(max_width), samples, tangent=True)


def widths_up_to(largest: int) -> tuple[int, ...]:
    """Powers of two from 32 to the largest."""
    return tuple(2**k for k in range(5, largest.bit_length()))
