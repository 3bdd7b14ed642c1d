"""The paper's figures from our own engine, with the numbers beside them. Needs the extra `plots`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from netsor.data import sentences
from netsor.limits import kernel
from netsor.plots import heat_map, joint_histogram, save, style
from netsor.simulation import empirical_kernel, simulate
from netsor.zoo import simple_rnn

__all__ = ["rnn_figure"]


def rnn_figure(folder: Path, *, samples: int, width: int, seed: int) -> Iterator[str]:
    """Panels A to E of "Infinite-width theory is highly predictive for simple RNN"; yields what it found."""
    first, second = sentences()
    tokens = [first.vectors, second.vectors]
    words, split = [*first.words, *second.words], len(first.words)
    vectors = np.concatenate(tokens)
    norms = np.linalg.norm(vectors, axis=1)
    cosines = vectors @ vectors.T / np.outer(norms, norms)
    net = simple_rnn()
    K = kernel(net)(tokens)
    deviation = np.sqrt(np.diag(K))
    correlation = K / np.outer(deviation, deviation)
    yield f"kernel of {len(words)} outputs; K(dog, dog) = {K[split - 1, -1]:.6f}"
    kernels = empirical_kernel(net, tokens, width, 100, np.random.SeedSequence([seed, 1]))
    spread = np.sqrt(((kernels - K) ** 2).mean(0))
    yield f"100 networks of width {width}: median entrywise deviation / limit = {np.median(spread / K):.4f}"
    last = [split - 1, len(words) - 1]
    seeds = np.random.SeedSequence([seed, 2])
    outputs = simulate(net, tokens, width, samples, seeds, dtype=np.float32)[:, last].astype(float)
    predicted, measured = K[np.ix_(last, last)], outputs.T @ outputs / samples
    yield f"last outputs of {samples} networks, covariance: limit {predicted.round(4).tolist()}"
    yield f"  simulated {measured.round(4).tolist()}"
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"A_cosines": cosines, "B_correlation": correlation, "C_covariance": K, "D_deviation": spread}
    for name, table in tables.items():
        np.savetxt(folder / f"rnn_{name}.csv", table, delimiter=",", header=",".join(words), comments="")
    pyplot = style()
    figure, axes = pyplot.subplot_mosaic("AABBCC\nDDEEEE", figsize=(13, 8.4), layout="constrained")
    heat_map(axes["A"], cosines, words, "A  cosines of the word vectors", split=split)
    heat_map(axes["B"], correlation, words, "B  correlation of the limit", split=split)
    heat_map(axes["C"], K, words, "C  covariance of the limit", split=split)
    heat_map(axes["D"], spread, words, f"D  deviation of 100 networks of width {width}", split=split)
    labels = ("output after sentence 1", "output after sentence 2")
    joint_histogram(
        axes["E"], outputs, predicted, labels, f"E  {samples:,} networks and the limit's level curves"
    )
    names = save(figure, str(folder / "rnn"))
    yield f"wrote {', '.join(names)} and {len(tables)} tables in {folder}"
