"""The data that ships with the package, and readers of image files of your own.

| file | what it holds |
| --- | --- |
| `__init__` | word vectors of the paper's two sentences, and small images of digits |
| `labelled` | images with labels: the idx format of MNIST, and CIFAR-10 |

Sources: GloVe 6B, 100 dimensions (Pennington, Socher & Manning 2014), Public Domain Dedication and
License 1.0; "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak 1998), CC BY 4.0. The files
`glove_sentences.json` and `digits.json` say how they were obtained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from netsor.data.labelled import Labelled, cifar10

__all__ = ["Digits", "Sentence", "cifar10", "digits", "sentences"]


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence and their vectors, shape (words, 100)."""

    words: tuple[str, ...]
    vectors: np.ndarray


@dataclass(frozen=True)
class Digits(Labelled):
    """Images of shape (64, 8, 8) with values in [0, 1], and the digits that they show."""


def sentences() -> list[Sentence]:
    """Load the paper's two sentences with their word vectors.

    Returns
    -------
    list of Sentence
        "the brown fox jumps over the dog" and "the quick brown fox jumps over the lazy dog".

    Examples
    --------
    >>> [s.vectors.shape for s in sentences()]
    [(7, 100), (9, 100)]
    """
    stored = _stored("glove_sentences.json")
    texts = [tuple(text.split()) for text in stored["sentences"]]
    return [Sentence(words, np.array([stored["vectors"][word] for word in words])) for words in texts]


def digits() -> Digits:
    """Load 64 handwritten digits.

    Returns
    -------
    Digits
        The images and their labels.

    Examples
    --------
    >>> digits().images.shape
    (64, 8, 8)
    """
    stored = _stored("digits.json")
    images = np.array(stored["images"], float).reshape(-1, 8, 8) / 16  # stored as integers from 0 to 16
    return Digits(images, np.array(stored["labels"]))


def _stored(name: str) -> dict:
    return json.loads(files("netsor.data").joinpath(name).read_text())
