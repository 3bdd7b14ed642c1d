"""The data that ships with the package: word vectors of the paper's two sentences.

Source: GloVe 6B, 100 dimensions (Pennington, Socher & Manning 2014), Public Domain Dedication and
License 1.0; the file `glove_sentences.json` says how it was obtained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

__all__ = ["Sentence", "sentences"]


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence and their vectors, shape (words, 100)."""

    words: tuple[str, ...]
    vectors: np.ndarray


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
