"""Simulations that survive an interruption: finished samples stay in the output folder.

One file holds the samples of one network at one width. They are drawn in chunks; a chunk depends on the
seed, the network's name, the width and its own number alone, so a run that was interrupted, or that now
asks for more samples, goes on where it stopped and gives the same numbers as one that ran through.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from netsor.build.network import Network, as_inputs, joint
from netsor.files import write_npz
from netsor.threads import one_blas_thread

__all__ = ["Run", "fingerprint"]

SAVE_SECONDS = 5.0
Draw = Callable[[int, np.random.SeedSequence], np.ndarray]


def fingerprint(net: Network, inputs: object) -> str:
    """A digest of a network's program on its inputs: statements, variances and data."""
    made = joint(net, as_inputs(inputs))
    digest = hashlib.sha256(made.program.show().encode())
    for name in sorted(made.data):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(made.data[name], float).tobytes())
    return digest.hexdigest()


@dataclass
class Run:
    """The folder of a run, its seed, and the bar that shows how far it is."""

    folder: Path
    seed: int = 0
    progress: Progress | None = None
    drawn: int = field(default=0, init=False)
    reused: int = field(default=0, init=False)

    @contextmanager
    def showing(self) -> Iterator[Run]:
        """With a bar on the error stream, if that is a terminal, and with one BLAS thread."""
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with (
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
            one_blas_thread(),
        ):
            self.progress = bar
            try:
                yield self
            finally:
                self.progress = None

    def samples(self, name: str, mark: str, width: int, count: int, draw: Draw, *, chunk: int) -> np.ndarray:
        """`count` samples of a network at one width: stored ones, then new ones from `draw(k, seed)`."""
        path = self.folder / "samples" / f"{name}_{width}.npz"
        key = f"{mark} seed={self.seed} width={width} chunk={chunk}"
        done = _load(path, key)
        self.reused += min(len(done), count)
        chunks = [done] if len(done) else []
        first, last = len(done) // chunk, -(-count // chunk)
        saved, unsaved = monotonic(), False
        task = self._task(f"{name}, width {width}", count, min(len(done), count))
        try:
            for c in range(first, last):
                seeds = np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()), width, c))
                chunks.append(draw(chunk, seeds))
                self.drawn += chunk
                unsaved = True
                self._advance(task, min((c + 1) * chunk, count))
                if monotonic() - saved > SAVE_SECONDS:
                    chunks = [_save(path, key, chunks)]
                    saved, unsaved = monotonic(), False
        finally:
            if unsaved:
                chunks = [_save(path, key, chunks)]
            self._remove(task)
        return chunks[0][:count]

    def _task(self, title: str, total: int, done: int):
        return None if self.progress is None else self.progress.add_task(title, total=total, completed=done)

    def _advance(self, task, done: int) -> None:
        if self.progress is not None and task is not None:
            self.progress.update(task, completed=done)

    def _remove(self, task) -> None:
        if self.progress is not None and task is not None:
            self.progress.remove_task(task)


def _save(path: Path, key: str, chunks: list[np.ndarray]) -> np.ndarray:
    samples = np.concatenate(chunks)
    write_npz(path, {"key": key, "samples": samples})
    return samples


def _load(path: Path, key: str) -> np.ndarray:
    """The stored samples, or none where the file is missing, damaged or of another run."""
    try:
        with path.open("rb") as file, np.load(file) as stored:
            if str(stored["key"]) == key:
                return stored["samples"]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        pass
    return np.empty(0)
