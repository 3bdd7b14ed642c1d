"""The Gaussian process of a PyTorch CNN, on handwritten digits.

`make(n)` is an ordinary model, with a residual block as torchvision's ResNet has them. Its kernel at infinite
width predicts digits without any training of weights.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import netsor as ns

TRAIN, TEST = 400, 400


class Residual(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(n, n, 3, padding=1), nn.Conv2d(n, n, 3, padding=1)

    def forward(self, x):
        return x + self.second(nn.functional.relu(self.first(x)))


def make(n: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, n, 2, stride=2), nn.BatchNorm2d(n), nn.ReLU(), Residual(n)),
        *(nn.Flatten(), nn.Linear(16 * n, 1)),
    )


def main() -> None:
    digits = load_digits()
    x = (digits.images / 8 - 1)[:, None]  # (image, channel, height, width)
    train, test = slice(0, TRAIN), slice(TRAIN, TRAIN + TEST)
    net = ns.from_torch(make, width=64)
    print(ns.check_import(net, x[0]))
    print(ns.report_laws(net))
    K = ns.kernel(net)
    targets = np.eye(10)[digits.target[train]] - 0.1
    gram = K(x[train])
    scale = np.trace(gram) / len(gram)
    weights = np.linalg.solve(gram + 1e-3 * scale * np.eye(len(gram)), targets)
    predicted = (K(x[test], x[train]) @ weights).argmax(1)
    print(f"accuracy on {TEST} digits after {TRAIN}: {(predicted == digits.target[test]).mean():.2f}")


if __name__ == "__main__":
    main()
