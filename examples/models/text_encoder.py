"""The Gaussian process of a PyTorch text model: which of four descriptions does a line come from?

The texts are the descriptions that come with scikit-learn's data sets, with words as tokens. The model is an
embedding with positions, one nn.TransformerEncoderLayer, a mean over tokens, and a readout.
"""

from __future__ import annotations

import re

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from torch import nn

import netsor as ns

LENGTH, LINES = 6, 20


class Encoder(nn.Module):
    def __init__(self, n: int, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, n)
        self.position = nn.Parameter(0.3 * torch.randn(LENGTH, n))
        self.layer = nn.TransformerEncoderLayer(n, 2, 4 * n, batch_first=True, norm_first=True)
        self.head = nn.Linear(n, 1, bias=False)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens) + self.position).mean(1))


def lines() -> tuple[np.ndarray, np.ndarray, int]:
    """Lines of LENGTH tokens, where each comes from, and the number of words."""
    loaders = (load_iris, load_wine, load_breast_cancer, load_diabetes)
    texts = [re.findall(r"[a-z]+", load().DESCR.lower()) for load in loaders]
    words = {word: k for k, word in enumerate(sorted({w for text in texts for w in text}))}
    found, labels = [], []
    for label, text in enumerate(texts):
        for k in range(LINES):
            found.append([words[w] for w in text[k * LENGTH : (k + 1) * LENGTH]])
            labels.append(label)
    return np.array(found), np.array(labels), len(words)


def main() -> None:
    tokens, labels, words = lines()
    net = ns.from_torch(lambda n: Encoder(n, words), width=64, tokens=True, scales="width")
    print(ns.check_import(net, tokens[0]))
    K = ns.kernel(net)(tokens)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    targets = np.eye(4)[labels[train]] - 0.25
    gram = K[np.ix_(train, train)]
    weights = np.linalg.solve(gram + 1e-2 * np.trace(gram) / len(gram) * np.eye(len(gram)), targets)
    predicted = (K[np.ix_(test, train)] @ weights).argmax(1)
    accuracy = (predicted == labels[test]).mean()
    print(f"{len(labels)} lines of {LENGTH} words; accuracy on {len(test)}: {accuracy:.2f}")


if __name__ == "__main__":
    main()
