"""The data that ships with the package: word vectors of the paper's two sentences, and small images.

Sources: GloVe 6B, 100 dimensions (Pennington, Socher & Manning 2014), Public Domain Dedication and
License 1.0; "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak 1998), CC BY 4.0. The files
`glove_sentences.json` and `digits.json` say how they were obtained. `cifar10` reads files of your own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from netsor.data.cifar import cifar10

__all__ = ["Digits", "Sentence", "cifar10", "digits", "sentences"]


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence and their vectors, shape (words, 100)."""

    words: tuple[str, ...]
    vectors: np.ndarray


@dataclass(frozen=True)
class Digits:
    """Images of shape (64, 8, 8) with values in [0, 1], and the digits that they show."""

    images: np.ndarray
    labels: np.ndarray


def sentences() -> list[Sentence]:
    """The paper's two sentences: "the brown fox jumps over the dog", "the quick brown fox ... lazy dog".

    >>> [s.vectors.shape for s in sentences()]
    [(7, 100), (9, 100)]
    """
    stored = json.loads(files("netsor.data").joinpath("glove_sentences.json").read_text())
    made = []
    for text in stored["sentences"]:
        words = tuple(text.split())
        made.append(Sentence(words, np.array([stored["vectors"][w] for w in words])))
    return made


def digits() -> Digits:
    """64 handwritten digits.

    >>> digits().images.shape
    (64, 8, 8)
    """
    stored = json.loads(files("netsor.data").joinpath("digits.json").read_text())
    images = np.array(stored["images"], float).reshape(-1, 8, 8) / 16
    return Digits(images, np.array(stored["labels"]))
