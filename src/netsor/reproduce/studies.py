"""The networks of the figures, each with its inputs and the words on its axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from netsor import zoo
from netsor.build import Network, normalized_adjacency
from netsor.data import digits, sentences


@dataclass(frozen=True)
class Study:
    """A network on a set of inputs. `labels` name the rows; `breaks` are where a new input begins."""

    name: str
    title: str
    net: Network
    inputs: list[Any]
    labels: tuple[str, ...] = ()
    breaks: tuple[int, ...] = ()


def paper_studies(images: np.ndarray | None = None) -> list[Study]:
    """The four networks of the paper's figure, two batches being 64 `images`, by default digits."""
    batches = list((digits().images if images is None else images)[:64].reshape(2, 32, -1))
    return [
        _sentences("simple_rnn", "simple RNN", zoo.simple_rnn()),
        _sentences("gru", "GRU", zoo.gru()),
        _sentences("transformer", "transformer", zoo.transformer()),
        Study("batchnorm_mlp", "batchnorm + relu", zoo.batchnorm_mlp(2), batches, breaks=(32,)),
    ]


def zoo_studies(images: np.ndarray | None = None) -> list[Study]:
    """Every network of the zoo."""
    # Ten images show the slope as well as more do, and the CNNs have a kernel for each pair of positions.
    pictures = digits().images[:10, :, :, None]
    vectors = list(pictures.reshape(len(pictures), -1))
    words = [sentence.vectors for sentence in sentences()]
    return [
        Study("mlp", "MLP", zoo.mlp(3), vectors),
        Study("resnet", "resnet", zoo.resnet(3), vectors),
        Study("densenet", "densenet", zoo.densenet(3), vectors),
        Study("layernorm_mlp", "layernorm MLP", zoo.layernorm_mlp(3), vectors),
        Study("cnn", "CNN, average pooling", zoo.cnn(2), list(pictures)),
        Study("cnn_max", "CNN, max pooling", zoo.cnn(2, pool="max"), list(pictures)),
        Study("graph_conv", "graph convolution", zoo.graph_conv(2), [_path_graph(x) for x in words]),
        _sentences("lstm", "LSTM", zoo.lstm()),
        *paper_studies(images),
    ]


def tangent_studies() -> list[Study]:
    """Every network of the zoo on fewer inputs, because gradients are large; the figure's networks last."""
    small = []
    for study in zoo_studies():
        if study.name == "batchnorm_mlp":
            inputs = [batch[:8] for batch in study.inputs]
        elif study.name == "graph_conv":
            inputs = [_path_graph(x[:4]) for x, _ in study.inputs]
        else:
            inputs = [x[:4] for x in study.inputs] if study.labels else study.inputs[:5]
        small.append(replace(study, inputs=inputs, labels=(), breaks=()))
    return small


def _sentences(name: str, title: str, net: Network) -> Study:
    first, second = sentences()
    words = (*first.words, *second.words)
    return Study(name, title, net, [first.vectors, second.vectors], words, (len(first.words),))


def _path_graph(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The words of a sentence as nodes, each joined to its neighbours."""
    edges = np.eye(len(x), k=1) + np.eye(len(x), k=-1)
    return x, normalized_adjacency(edges)
