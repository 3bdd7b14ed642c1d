"""`netsor reproduce rnn | kernels | zoo | ntk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netsor.cli.app import complain, reporting, reproduce_app

if TYPE_CHECKING:
    from netsor.reproduce import Run

__all__ = ["kernels", "ntk", "rnn", "zoo"]

Out = Annotated[Path, typer.Option(help="Folder for figure, tables and finished samples.", file_okay=False)]
Seed = Annotated[int, typer.Option(help="Seed of the simulation.", min=0)]
Samples = Annotated[int, typer.Option(help="Random networks at each width.", min=2)]
MaxWidth = Annotated[int, typer.Option(help="Widths are 32, 64, ... up to this.", min=64, max=2**15)]
Images = Annotated[
    Path | None,
    typer.Option(
        help="CIFAR-10 files for the batches (data_batch_1, data_batch_1.bin, their folder, or .npy); "
        "by default 64 digits that ship with netsor.",
        show_default=False,
    ),
]
FullWidths = Annotated[bool, typer.Option("--full", help="Widths up to 8192, as in the paper.")]


def _report(out: Path, seed: int, figure: Callable[[Run], Iterator[str]]) -> None:
    """Print what a figure finds; after an interruption say what is kept."""
    from netsor.reproduce import Run

    run = Run(out, seed)
    try:
        for line in figure(run):
            typer.echo(line)
    except KeyboardInterrupt:
        complain(f"interrupted; {run.drawn} new samples are kept in {out / 'samples'}: run it again", 130)
    if run.reused:
        typer.echo(f"{run.reused} samples of an earlier run in {out / 'samples'} were used again")


@reproduce_app.command()
@reporting
def rnn(
    out: Out = Path("out"),
    full: Annotated[
        bool, typer.Option("--full", help="100,000 networks in panel E, as in the paper.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Networks in panel E (without --full).", min=100)] = 2000,
    width: Annotated[int, typer.Option(help="Width of the simulated networks.", min=1)] = 1000,
    seed: Seed = 0,
) -> None:
    """Infinite-width theory is highly predictive for the simple RNN: the paper's first figure."""
    from netsor.reproduce import rnn_figure

    count = 100_000 if full else samples
    _report(out, seed, lambda run: rnn_figure(run, samples=count, width=width))


@reproduce_app.command()
@reporting
def kernels(
    out: Out = Path("out"),
    full: FullWidths = False,
    max_width: MaxWidth = 1024,
    samples: Samples = 100,
    seed: Seed = 0,
    images: Images = None,
) -> None:
    """The kernels of simple RNN, GRU, transformer and batchnorm, and how finite networks approach them."""
    from netsor.reproduce import kernels_figure

    _convergence(kernels_figure, out, 8192 if full else max_width, samples, seed, images)


@reproduce_app.command()
@reporting
def zoo(
    out: Out = Path("out"),
    full: FullWidths = False,
    max_width: MaxWidth = 1024,
    samples: Samples = 100,
    seed: Seed = 0,
    images: Images = None,
) -> None:
    """How finite networks approach the limit, for every network of the zoo."""
    from netsor.reproduce import zoo_figure

    _convergence(zoo_figure, out, 8192 if full else max_width, samples, seed, images)


@reproduce_app.command()
@reporting
def ntk(out: Out = Path("out"), max_width: MaxWidth = 512, samples: Samples = 100, seed: Seed = 0) -> None:
    """How the tangent kernels of finite networks approach the limit: the figure of Tensor Programs II."""
    from netsor.reproduce import ntk_figure
    from netsor.reproduce.convergence import widths_up_to

    _report(out, seed, lambda run: ntk_figure(run, widths_up_to(max_width), samples))


def _convergence(
    figure: Callable[..., Any], out: Path, max_width: int, samples: int, seed: int, images: Path | None
) -> None:
    """A figure of distances to the limit at growing widths."""
    from netsor.data import cifar10
    from netsor.reproduce.convergence import widths_up_to

    pictures = None if images is None else cifar10(images)
    _report(out, seed, lambda run: figure(run, widths_up_to(max_width), samples, pictures))
