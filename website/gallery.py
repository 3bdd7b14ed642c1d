"""Draw the gallery, the kernels of every architecture, and write its page: `python website/gallery.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import netsor as ns
from netsor.data import digits, sentences
from netsor.plots import Picture

__all__ = ["ENTRIES", "Entry", "draw", "page"]

FOLDER = Path(__file__).parents[1] / "docs" / "figures" / "gallery"


@dataclass(frozen=True)
class Entry:
    """A picture: its file, its title, the code of its network, and what is drawn of it."""

    file: str
    title: str
    code: str
    told: str
    picture: Callable[[ns.Network], Picture]


def _words(net: ns.Network) -> Picture:
    texts = sentences()
    found = ns.kernel(net).evaluate([s.vectors for s in texts])
    words = [word for s in texts for word in s.words]
    return ns.plots.kernel_map(found, words, breaks=[len(texts[0].words)], correlation=True)


def _images(net: ns.Network) -> Picture:
    data = digits()
    order = np.argsort(data.labels[:40], kind="stable")
    found = ns.kernel(net).evaluate(data.images[order][..., None])
    return ns.plots.kernel_map(found, [str(d) for d in data.labels[order]], correlation=True)


def _batch(net: ns.Network) -> Picture:
    data = digits()
    order = np.argsort(data.labels[:32], kind="stable")
    found = ns.kernel(net).evaluate([data.images[order].reshape(32, -1)])
    return ns.plots.kernel_map(found, [str(d) for d in data.labels[order]], correlation=True)


def _nodes(net: ns.Network) -> Picture:
    """Words along a path: each is connected with the next."""
    text = sentences()[1]
    count = len(text.words)
    path = ns.normalized_adjacency(np.eye(count, k=1) + np.eye(count, k=-1))
    found = ns.kernel(net).evaluate([(text.vectors, path)])
    return ns.plots.kernel_map(found, text.words, correlation=True)


def _depths(make: Callable[[int], ns.Network]) -> Callable[[ns.Network], Picture]:
    def drawn(_: ns.Network) -> Picture:
        return ns.plots.correlation_map({f"depth {d}": make(d) for d in (1, 4, 16)})

    return drawn


WORDS = "Correlations of the outputs after each word of two sentences."
DEPTHS = "What becomes of the correlation of two inputs at three depths."
ENTRIES = (
    Entry(
        "mlp",
        "MLP, relu",
        "ns.zoo.mlp(depth=4, var_w=2.0, var_b=0.0)",
        DEPTHS,
        _depths(lambda d: ns.zoo.mlp(d, var_w=2.0, var_b=0.0)),
    ),
    Entry(
        "mlp_erf",
        "MLP, erf, chaotic",
        "ns.zoo.mlp(depth=4, phi=ns.erf, var_w=8.0, var_b=0.01)",
        DEPTHS,
        _depths(lambda d: ns.zoo.mlp(d, ns.erf, var_w=8.0, var_b=0.01)),
    ),
    Entry("resnet", "Residual network", "ns.zoo.resnet(depth=4)", DEPTHS, _depths(ns.zoo.resnet)),
    Entry("densenet", "DenseNet", "ns.zoo.densenet(depth=4)", DEPTHS, _depths(ns.zoo.densenet)),
    Entry(
        "layernorm",
        "MLP with layernorm",
        "ns.zoo.layernorm_mlp(depth=4, var_b=0.0)",
        DEPTHS,
        _depths(lambda d: ns.zoo.layernorm_mlp(d, var_b=0.0)),
    ),
    Entry(
        "batchnorm",
        "MLP with batchnorm",
        "ns.zoo.batchnorm_mlp(depth=2)",
        "One batch of 32 digits, in order of their labels.",
        _batch,
    ),
    Entry(
        "cnn",
        "CNN, average pooling",
        "ns.zoo.cnn(depth=3, var_w=2.0, var_b=0.0)",
        "40 handwritten digits, in order of their labels.",
        _images,
    ),
    Entry(
        "cnn_flat",
        "CNN, flattened",
        'ns.zoo.cnn(depth=3, readout="flatten", var_w=2.0, var_b=0.0)',
        "The same digits; without pooling, equal digits are told by their pixels.",
        _images,
    ),
    Entry(
        "graph_conv",
        "Graph convolution",
        "ns.zoo.graph_conv(depth=2)",
        "The words of a sentence as nodes of a path.",
        _nodes,
    ),
    Entry("simple_rnn", "Simple RNN", "ns.zoo.simple_rnn()", WORDS, _words),
    Entry("gru", "GRU", "ns.zoo.gru()", WORDS, _words),
    Entry("lstm", "LSTM", "ns.zoo.lstm()", WORDS, _words),
    Entry("transformer", "Transformer", "ns.zoo.transformer(depth=2)", WORDS, _words),
)


def draw(folder: Path, entries: tuple[Entry, ...] = ENTRIES) -> list[Path]:
    """Draw the pictures into a folder; the same numbers give the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for entry in entries:
        net: Any = eval(entry.code, {"ns": ns})
        made.append(entry.picture(net).save(folder / f"{entry.file}.png"))
    return made


def page() -> str:
    """The text of docs/gallery.md."""
    lines = [
        "# Gallery",
        "",
        "What the Gaussian processes of architectures look like. `python website/gallery.py` draws these",
        "pictures; each is one call of [`ns.plots`](reference/plots.md). The page of each",
        "[architecture](architectures/README.md) derives its kernel.",
        "",
    ]
    for entry in ENTRIES:
        lines += [
            f"## {entry.title}",
            "",
            "```python",
            "import netsor as ns",
            "",
            f"K = ns.kernel({entry.code})",
        ]
        lines += ["```", "", f"![{entry.title}](figures/gallery/{entry.file}.png)", "", entry.told, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    for path in draw(FOLDER):
        print(path.name, f"{path.stat().st_size / 1000:.0f} KB")
    (FOLDER.parents[1] / "gallery.md").write_text(page())
    sys.exit(0)
