"""Simulations that survive an interruption: finished samples stay in the output folder.

One file holds the samples of one network at one width. They are drawn in chunks. A chunk depends only on the
seed, the name of the network, the width and its own number. So a run that was interrupted, or that asks for
more samples, resumes and gives the same numbers as one that ran through.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from netsor.build.network import Network
from netsor.files import DAMAGED, write_csv, write_npz, write_text
from netsor.gp.stores.identity import of_each_shape, of_kernel
from netsor.gp.stores.input_sets import digest
from netsor.limits import kernel
from netsor.plots.style import Picture
from netsor.progress import bar
from netsor.threads import one_blas_thread

Draw = Callable[[int, np.random.SeedSequence], np.ndarray]  # draws some samples from a seed


def fingerprint(net: Network, inputs: list[Any] | np.ndarray) -> str:
    """Digests of the programs of a network (statements, variances, functions), and of its inputs."""
    return f"{of_kernel(kernel(net), of_each_shape(inputs))['programs']} {digest(inputs)}"


@dataclass
class Experiment:
    """A folder for figures and for samples (in its folder `samples`), and the seed of the samples."""

    folder: Path
    seed: int = 0
    drawn: int = field(default=0, init=False)  # samples
    reused: int = field(default=0, init=False)  # samples that were in the folder already

    def samples(self, name: str, mark: str, width: int, count: int, draw: Draw, *, chunk: int) -> np.ndarray:
        """Samples of a network at one width: stored ones, then new ones in chunks.

        The seeds and the file depend on the name; `mark` is a digest of what is drawn. Stored samples with
        another mark are drawn again.
        """
        path = self.folder / "samples" / f"{name}_{width}.npz"
        key = f"{mark} seed={self.seed} width={width} chunk={chunk}"
        parts = _load(path, key)
        stored = sum(map(len, parts))
        self.reused += min(stored, count)
        # Only whole chunks are kept, so that chunk c always has the same seed.
        chunks = range(stored // chunk, -(-count // chunk))
        saved, unsaved = monotonic(), 0
        with one_blas_thread(), bar(None, len(chunks), f"drawing {name}, width {width}") as advance:
            try:
                for c in chunks:
                    seeds = np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()), width, c))
                    parts.append(draw(chunk, seeds))
                    self.drawn, unsaved = self.drawn + chunk, unsaved + chunk
                    advance()
                    if monotonic() - saved > 5.0:  # seconds that an end without a signal may lose
                        write_npz(path, {"key": key, "samples": np.concatenate(parts)})
                        saved, unsaved = monotonic(), 0
            finally:  # also after an interrupt: what is drawn is kept
                if unsaved:
                    write_npz(path, {"key": key, "samples": np.concatenate(parts)})
        return np.concatenate(parts)[:count]

    def write_matrix(self, stem: str, names: Sequence[str], matrix: np.ndarray) -> None:
        """Write a matrix as a table, with the names of its rows and columns."""
        rows = [[name, *row] for name, row in zip(names, matrix, strict=True)]
        write_csv(self.folder / f"{stem}.csv", ["", *names], rows)

    def write(self, stem: str, picture: Picture) -> str:
        """Write a figure as PNG and PDF, and its caption as text; returns the paths."""
        paths = [picture.save(self.folder / f"{stem}{suffix}") for suffix in (".png", ".pdf")]
        caption = self.folder / f"{stem}_caption.txt"
        write_text(caption, picture.caption + "\n")
        return ", ".join(str(path) for path in (*paths, caption))


def _load(path: Path, key: str) -> list[np.ndarray]:
    """The stored samples, or none where the file is missing, damaged or of another run."""
    with suppress(*DAMAGED), path.open("rb") as file, np.load(file) as stored:
        if str(stored["key"]) == key:
            return [stored["samples"]]
    return []
