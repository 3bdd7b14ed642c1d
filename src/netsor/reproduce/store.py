"""Simulations that survive an interruption: finished samples stay in the output folder.

One file holds the samples of one network at one width. They are drawn in chunks; a chunk depends on the
seed, the network's name, the width and its own number alone, so a run that was interrupted, or that now
asks for more samples, goes on where it stopped and gives the same numbers as one that ran through.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np

from netsor.build.network import Network, as_inputs, joint
from netsor.files import DAMAGED, write_npz
from netsor.gp.stores.identity import functions_of
from netsor.progress import bar
from netsor.threads import one_blas_thread

__all__ = ["Run", "fingerprint"]

SAVE_SECONDS = 5.0
Draw = Callable[[int, np.random.SeedSequence], np.ndarray]


def fingerprint(net: Network, inputs: object) -> str:
    """A digest of a network's program on its inputs: statements, variances, data, the user's functions."""
    made = joint(net, as_inputs(inputs))
    digest = hashlib.sha256(made.program.show().encode())
    if made.program.user_operations:
        digest.update(json.dumps(functions_of(made.program)).encode())
    for name in sorted(made.data):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(made.data[name], float).tobytes())
    return digest.hexdigest()


@dataclass
class Run:
    """The folder of a run, its seed, and how many samples were drawn or found there."""

    folder: Path
    seed: int = 0
    drawn: int = field(default=0, init=False)
    reused: int = field(default=0, init=False)

    def samples(self, name: str, mark: str, width: int, count: int, draw: Draw, *, chunk: int) -> np.ndarray:
        """`count` samples of a network at one width: stored ones, then new ones from `draw(k, seed)`."""
        path = self.folder / "samples" / f"{name}_{width}.npz"
        key = f"{mark} seed={self.seed} width={width} chunk={chunk}"
        done = _load(path, key)
        self.reused += min(len(done), count)
        chunks = [done] if len(done) else []
        first, last = len(done) // chunk, -(-count // chunk)
        saved, unsaved = monotonic(), False
        title = f"drawing {name}, width {width}"
        with one_blas_thread(), bar(None, max(last - first, 0), title) as advance:
            try:
                for c in range(first, last):
                    seeds = np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()), width, c))
                    chunks.append(draw(chunk, seeds))
                    self.drawn += chunk
                    unsaved = True
                    advance()
                    if monotonic() - saved > SAVE_SECONDS:
                        chunks = [_save(path, key, chunks)]
                        saved, unsaved = monotonic(), False
            finally:
                if unsaved:
                    chunks = [_save(path, key, chunks)]
        return chunks[0][:count]


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
    except DAMAGED:
        pass
    return np.empty(0)
