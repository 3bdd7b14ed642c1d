"""PyTorch models as their library ships them, and some written by hand; `make(n)` builds one at width n."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A model, an input, and the options of from_torch."""

    make: Callable[[int], Any]
    x: Any
    options: dict[str, Any] = field(default_factory=dict)


class Read(nn.Module):
    """Tokens embedded, a module, a readout for every token."""

    def __init__(self, n: int, module: nn.Module, out: int | None = None) -> None:
        super().__init__()
        self.embed, self.module, self.head = nn.Linear(5, n), module, nn.Linear(out or n, 1)

    def forward(self, x):
        return self.head(self.module(self.embed(x)))


class Recurrent(nn.Module):
    def __init__(self, n: int, kind: Any, **options: Any) -> None:
        super().__init__()
        self.rnn = kind(5, n, batch_first=True, **options)
        self.head = nn.Linear(n * (2 if options.get("bidirectional") else 1), 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class CrossAttention(nn.Module):
    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.head = nn.Linear(5, n), nn.Linear(5, n), nn.Linear(n, 1)
        self.attention = nn.MultiheadAttention(n, heads, batch_first=True)

    def forward(self, x):
        keys = self.k(x)
        return self.head(self.attention(self.q(x), keys, keys, need_weights=False)[0])


class Bag(nn.Module):
    """Tokens with positions, normalised, averaged; token 0 is padding."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, n, padding_idx=0)
        self.position = nn.Parameter(torch.randn(4, n) * 0.5)
        self.norm, self.hidden, self.head = nn.LayerNorm(n), nn.Linear(n, n), nn.Linear(n, 1)

    def forward(self, tokens):
        h = self.norm(self.embed(tokens) + self.position[: tokens.shape[1]])
        return self.head(nn.functional.silu(self.hidden(h)).mean(1))


class Gated(nn.Module):
    """RMSNorm and a gated unit whose two halves are one matrix; three outputs."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(5, n), nn.RMSNorm(n, eps=1e-6)
        self.gate, self.out, self.head = nn.Linear(n, 2 * n), nn.Linear(n, n), nn.Linear(n, 3)

    def forward(self, x):
        h = self.embed(x)
        a, b = self.gate(self.norm(h)).chunk(2, -1)
        return self.head(h + self.out(nn.functional.silu(a) * b))


class SqueezeExcite(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, n, 3, padding=1), nn.GroupNorm(4, n)
        self.squeeze, self.excite, self.head = nn.Linear(n, n // 4), nn.Linear(n // 4, n), nn.Linear(n, 1)

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x)))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(h.mean((2, 3))))))
        return self.head((h * gate[:, :, None, None]).mean((2, 3)))


class GraphNetwork(nn.Module):
    """Two graph convolutions; the input is (features, adjacency)."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, n), nn.Linear(n, n), nn.Linear(n, 1)

    def forward(self, features, adjacency):
        h = torch.relu(adjacency @ self.first(features))
        return self.head(torch.relu(adjacency @ self.second(h)))


class UNet(nn.Module):
    """One level: down by a pool, up by a transposed convolution, joined with what was there before."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, n, 3, padding=1)
        self.middle = nn.Conv2d(n, 2 * n, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * n, n, 2, stride=2)
        self.join, self.head = nn.Conv2d(2 * n, n, 3, padding=1), nn.Conv2d(n, 2, 1)

    def forward(self, x):
        a = torch.relu(self.down(x))
        b = torch.relu(self.middle(nn.functional.max_pool2d(a, 2)))
        return self.head(torch.relu(self.join(torch.cat([a, self.up(b)], 1))))


class Upsampled(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv, self.mix, self.head = nn.Conv2d(3, n, 3, padding=1), nn.Conv2d(n, n, 1), nn.Linear(n, 1)

    def forward(self, x):
        h = nn.functional.avg_pool2d(torch.tanh(self.conv(x)), 2)
        h = nn.functional.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(torch.relu(self.mix(h)).amax((2, 3)))


class Einsum(nn.Module):
    """Heads by einsum with a parameter of three axes, and rotary positions."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, n), nn.Linear(n, 1)
        self.q, self.v = (nn.Parameter(torch.randn(2, n // 2, n) / n**0.5) for _ in range(2))

    def forward(self, x):
        h = self.embed(x)
        q, v = (torch.einsum("btn,hdn->bhtd", h, w) for w in (self.q, self.v))
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        a, b = q.chunk(2, -1)
        q = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        scores = torch.einsum("bhtd,bhsd->bhts", q, q) / q.shape[-1]
        mixed = torch.einsum("bhts,bhsd->bthd", scores.softmax(-1), v)
        return self.head(mixed.flatten(2))


class Stacked(nn.Module):
    """Two recurrent layers, both directions, with dropout between them."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.first = nn.GRU(5, n, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(2 * n, n, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(2 * n, 1)

    def forward(self, x):
        return self.head(self.second(self.drop(self.first(x)[0]))[0])


class Positions(nn.Module):
    """Codes of sines and cosines are data: a matrix takes them to the width."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(5, n), nn.Linear(6, n, bias=False)
        self.hidden, self.head = nn.Linear(n, n), nn.Linear(n, 1)

    def forward(self, x):
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 10 ** torch.arange(3, dtype=x.dtype)
        h = self.embed(x) + self.place(torch.cat([angle.sin(), angle.cos()], -1))
        return self.head(torch.relu(self.hidden(torch.relu(h))))


class Sinusoids(nn.Module):
    """Attention Is All You Need: sines and cosines along the width, added to the embedding."""

    def __init__(self, n: int, length: int = 8) -> None:
        super().__init__()
        angle = torch.arange(float(length))[:, None] / 10000 ** (torch.arange(0.0, n, 2) / n)
        codes = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
        self.register_buffer("codes", codes.to(torch.get_default_dtype()))
        self.embed, self.norm = nn.Embedding(11, n), nn.LayerNorm(n)
        self.hidden, self.head = nn.Linear(n, n), nn.Linear(n, 1)

    def forward(self, tokens):
        h = self.embed(tokens) + self.codes[: tokens.shape[1]]
        return self.head(torch.relu(self.hidden(self.norm(h))))


class Rotary(nn.Module):
    """Queries, which are keys too, turn in pairs of coordinates, by angles that differ along the head."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.embed, self.head = n, nn.Linear(5, n), nn.Linear(n, 1)
        self.q = nn.Parameter(2 * torch.randn(n, n) / n**0.5)

    def turned(self, q, places):
        half = self.n // 2
        angle = places[:, None] / 100 ** (torch.arange(half, dtype=q.dtype) / half)
        cos, sin = (torch.cat([f(angle), f(angle)], -1) for f in (torch.cos, torch.sin))
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x):
        h = self.embed(x)
        places = torch.arange(x.shape[1], dtype=x.dtype)
        q = self.turned(h @ self.q, places)
        return self.head(torch.softmax(q @ q.transpose(-1, -2) / self.n, -1) @ h)


class Joined(nn.Module):
    """One matrix for queries, keys and values, taken apart by split, unbind and slices."""

    def __init__(self, n: int, how: str) -> None:
        super().__init__()
        self.n, self.how = n, how
        self.embed, self.qkv, self.head = nn.Linear(5, n), nn.Linear(n, 3 * n), nn.Linear(n, 1)

    def parts(self, h):
        n = self.n
        match self.how:
            case "split":
                return h.split(n, -1)
            case "split with sizes":
                return h.split([n, n, n], -1)
            case "slices":
                return h[..., :n], h[..., n : 2 * n], h[..., 2 * n :]
            case "unflatten":
                return h.unflatten(-1, (3, n)).unbind(-2)
            case "rearranged":
                return h.reshape(*h.shape[:-1], 3, n).permute(2, 0, 1, 3)
            case "tensor_split":
                return h.tensor_split(3, -1)
            case "tensor_split at places":
                return h.tensor_split((n, 2 * n), -1)
        return h.chunk(3, -1)

    def forward(self, x):
        q, k, v = self.parts(self.qkv(self.embed(x)))
        weights = torch.softmax(q @ k.transpose(-1, -2) / self.n, -1)
        return self.head(weights @ v)


HOW = (
    "chunk",
    "split",
    "split with sizes",
    "slices",
    "unflatten",
    "rearranged",
    "tensor_split",
    "tensor_split at places",
)


def dropping(n: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(5, n), nn.ReLU(), nn.Dropout(0.3), nn.Linear(n, n), nn.Tanh(), nn.Dropout(0.1)),
        nn.Linear(n, 2),
    )


def dropping_channels(n: int) -> nn.Module:
    """Masks of whole channels, then of pixels."""
    return nn.Sequential(
        *(nn.Conv2d(3, n, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.3)),
        *(nn.Conv2d(n, n, 3), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 1)),
    )


def convolutional(n: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(n, n, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 1)),
    )


def grouped(n: int) -> nn.Module:
    """An unusual padding, four groups, one group for each channel, and a flattened readout."""
    return nn.Sequential(
        *(nn.Conv2d(3, n, 3, padding=2), nn.ReLU(), nn.Conv2d(n, n, 3, groups=4), nn.ReLU()),
        *(nn.Conv2d(n, n, 3, groups=n, padding=1), nn.Flatten(2), nn.AdaptiveAvgPool1d(2)),
        *(nn.Flatten(), nn.Linear(2 * n, 1)),
    )


def encoder(n: int, **options: Any) -> nn.Module:
    return Read(n, nn.TransformerEncoderLayer(n, 2, 4 * n, batch_first=True, **options))


VECTOR, SEQUENCE = rng.standard_normal(5), rng.standard_normal((3, 5))
IMAGE = rng.standard_normal((3, 8, 8))
GRAPH = np.array([[0.5, 0.5, 0.0], [0.3, 0.4, 0.3], [0.0, 0.5, 0.5]])

AT_WIDTH = {"scales": "width"}  # attention scores q.k/sqrt(d)

CASES: dict[str, Case] = {
    "sequential mlp": Case(
        lambda n: nn.Sequential(nn.Linear(5, n), nn.ReLU(), nn.Linear(n, n), nn.GELU(), nn.Linear(n, 2)),
        VECTOR,
    ),
    "cnn with batchnorm": Case(convolutional, IMAGE),
    "cnn with batchnorm in training mode": Case(
        convolutional, rng.standard_normal((3, 3, 8, 8)), {"batch": False, "train": True}
    ),
    "flattened cnn": Case(
        lambda n: nn.Sequential(
            *(nn.Conv2d(3, n, 3), nn.LeakyReLU(0.1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(9 * n, 3))
        ),
        IMAGE,
    ),
    "grouped convolutions": Case(grouped, IMAGE),
    "squeeze and excitation": Case(SqueezeExcite, IMAGE),
    "upsampling": Case(Upsampled, IMAGE),
    "encoder layer, norm last": Case(encoder, SEQUENCE, AT_WIDTH),
    "encoder layer, norm first": Case(
        lambda n: encoder(n, norm_first=True, activation="gelu"), SEQUENCE, AT_WIDTH
    ),
    "multihead attention": Case(lambda n: CrossAttention(n, 2), SEQUENCE, AT_WIDTH),
    "attention whose heads grow in number": Case(lambda n: CrossAttention(n, n // 2), SEQUENCE),
    "heads by einsum": Case(Einsum, SEQUENCE),
    "rnn": Case(lambda n: Recurrent(n, nn.RNN, num_layers=2), SEQUENCE),
    "lstm": Case(lambda n: Recurrent(n, nn.LSTM), SEQUENCE),
    "gru, two layers, bidirectional": Case(
        lambda n: Recurrent(n, nn.GRU, num_layers=2, bidirectional=True), SEQUENCE
    ),
    "embedding": Case(Bag, np.array([1, 0, 3]), {"tokens": True}),
    "gated unit": Case(Gated, VECTOR),
    "graph network": Case(GraphNetwork, (SEQUENCE, GRAPH), {"batch": False}),
    "unet": Case(UNet, IMAGE),
    "sines and cosines of positions": Case(Positions, SEQUENCE),
    "rotary positions along a head that grows": Case(Rotary, SEQUENCE),
    "sines and cosines along the width": Case(Sinusoids, np.array([1, 5, 1]), {"tokens": True}),
    **{f"joined matrices, {how}": Case(lambda n, how=how: Joined(n, how), SEQUENCE) for how in HOW},
    "stacked gru and lstm, bidirectional, dropout": Case(Stacked, SEQUENCE, {"train": True}),
    "dropout": Case(dropping, VECTOR, {"train": True}),
    "dropout of channels": Case(dropping_channels, IMAGE, {"train": True}),
    "encoder layer with dropout, heads that grow in number": Case(
        lambda n: Read(n, nn.TransformerEncoderLayer(n, n // 2, 2 * n, dropout=0.2, batch_first=True)),
        SEQUENCE,
        {"train": True},
    ),
}
