"""GPT-2 at infinite width, and 400 real GPT-2s: the kernel of two sentences of 8 tokens each.

Writes a picture to the file that is given, or models.png.
"""

from __future__ import annotations

import sys
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from transformers import GPT2Config, GPT2Model

import netsor as ns

WIDTH, MODELS = 64, 400
SENTENCES = (
    ["the", "quick", "brown", "fox", "jumps", "over", "the", "dog"],
    ["the", "red", "cat", "sleeps", "by", "the", "brown", "dog"],
)
WORDS = sorted({word for sentence in SENTENCES for word in sentence})


class Headed(nn.Module):
    """GPT-2's hidden states, and a readout."""

    def __init__(self, n: int) -> None:
        super().__init__()
        sizes = {"n_layer": 2, "n_embd": n, "n_head": 2, "vocab_size": len(WORDS), "n_positions": 8}
        self.body = GPT2Model(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0))
        self.head = nn.Linear(n, 1, bias=False)

    def forward(self, tokens):
        return self.head(self.body(tokens).last_hidden_state)[..., 0]


def real_kernel(tokens: np.ndarray) -> np.ndarray:
    """The second moments of the outputs of many models."""
    outputs = []
    with torch.no_grad():
        for seed in range(MODELS):
            torch.manual_seed(seed)
            outputs.append(Headed(WIDTH).eval()(torch.as_tensor(tokens)).reshape(-1).double().numpy())
    o = np.array(outputs)
    return o.T @ o / MODELS


def main(file: str = "models.png") -> None:
    tokens = np.array([[WORDS.index(word) for word in sentence] for sentence in SENTENCES])
    start = perf_counter()
    net = ns.from_torch(Headed, width=WIDTH, tokens=True, scales="width", laws={"body.*": "width"})
    ns.program(net, tokens[0])
    read = perf_counter()
    limit = ns.kernel(net)(tokens)
    print(f"read in {read - start:.1f} s, its kernel took {perf_counter() - read:.1f} s")
    print(ns.check_import(net, tokens[0]))
    real = real_kernel(tokens)
    size, diagonal = np.linalg.norm(limit), np.diag(limit)
    noise = np.sqrt((np.outer(diagonal, diagonal) + limit**2).sum() / MODELS)
    distance = np.linalg.norm(real - limit)
    print(f"relative distance {distance / size:.3f}, of which sampling explains {noise / size:.3f}")
    labels = [word for sentence in SENTENCES for word in sentence]
    figure, panels = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
    titles = ("GPT-2 at infinite width", f"{MODELS} GPT-2s of width {WIDTH}")
    for panel, kernel, title in zip(panels, (limit, real), titles, strict=True):
        image = panel.imshow(kernel, vmin=0, vmax=limit.max(), cmap="viridis")
        panel.set_title(title)
        panel.set_xticks(range(len(labels)), labels, rotation=90)
        panel.set_yticks(range(len(labels)), labels)
    figure.colorbar(image, ax=panels, shrink=0.8, label="covariance of the outputs")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
