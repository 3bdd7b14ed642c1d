"""Every PyTorch operation that has a rule, inside a small model: its own weights give its own output."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch_models import SEQUENCE  # noqa: E402

import netsor as ns  # noqa: E402

FUNCTIONS = {
    "abs": torch.abs,
    "celu": lambda h: F.elu(h, 0.7),
    "clamp": lambda h: torch.clamp(h, -0.2, 0.3),
    "clamp_min": lambda h: torch.clamp_min(h, 0.0),
    "comparison": lambda h: torch.where(h > 0.1, h, -2 * h) + torch.where(h < 0, 1.0, 2.0),
    "cos": torch.cos,
    "div": lambda h: 1.0 / (2.0 + h * h),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "gelu": F.gelu,
    "gelu tanh": lambda h: F.gelu(h, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": lambda h: F.hardtanh(h, -0.5, 0.4),
    "leaky_relu": lambda h: F.leaky_relu(h, 0.2),
    "log": lambda h: torch.log(1.5 + torch.sin(h)),
    "log1p": lambda h: torch.log1p(h * h),
    "logsigmoid": F.logsigmoid,
    "maximum": lambda h: torch.maximum(h, h.flip(1)),
    "minimum": lambda h: torch.minimum(h, h.flip(1)),
    "mish": F.mish,
    "neg": torch.neg,
    "pow": lambda h: h**3 + (1 + h * h) ** 0.5 + (1 + h * h) ** -0.5,
    "pow of a fraction": lambda h: (1 + h * h) ** 1.5,
    "reciprocal": lambda h: torch.reciprocal(2 + h.sin()),
    "relu6": F.relu6,
    "rsub": lambda h: torch.rsub(h, 1.0),
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "softplus": lambda h: F.softplus(h, beta=2.0),
    "square": torch.square,
    "sub with alpha": lambda h: torch.sub(h, h.flip(1), alpha=0.3) + torch.add(h, h, alpha=2),
    "tanh": torch.tanh,
}
SHAPES = {  # h has shape (1, 3, n): a batch of one, three tokens
    "amax": lambda h: h.amax(1, keepdim=True) + h,
    "amin": lambda h: h.amin(1, keepdim=True) + h,
    "cat of halves": lambda h: torch.cat([h.chunk(2, -1)[1], h.chunk(2, -1)[0]], -1),
    "cat of tokens": lambda h: torch.cat([h, torch.zeros_like(h[:, :1]), 2 * h], 1),
    "chunk": lambda h: h.chunk(2, -1)[0].repeat(1, 1, 1) * h.chunk(2, -1)[1],
    "constant": lambda h: h + torch.tensor([[0.5], [1.0], [2.0]]),
    "expand": lambda h: h[:, :1].expand(1, 3, h.shape[-1]) * h,
    "flip": lambda h: h.flip(1),
    "fixed matrix": lambda h: torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.0, 1.0]], dtype=h.dtype) @ h,
    "glu": lambda h: F.glu(h, -1),
    "index": lambda h: h[:, torch.tensor([2, 0, 0, 1])],
    "layer norm of tokens and width": lambda h: F.layer_norm(h, h.shape[1:]),
    "masked_fill": lambda h: h.masked_fill(torch.tensor([[True], [False], [False]]), 0.7),
    "max": lambda h: h.max(1, keepdim=True).values + h,
    "mean": lambda h: h - h.mean(1, keepdim=True) + h.mean(-1, keepdim=True),
    "movedim": lambda h: h.movedim(1, 0).movedim(0, 1),
    "narrow": lambda h: h.narrow(1, 1, 2),
    "outer tokens": lambda h: (h[:, :, None] * h[:, None]).sum(2),
    "pad": lambda h: F.pad(h, (0, 0, 1, 2)),
    "permute": lambda h: h.permute(1, 0, 2).permute(1, 0, 2),
    "repeat": lambda h: h.repeat(1, 2, 1),
    "repeat_interleave": lambda h: h.repeat_interleave(2, 1),
    "roll": lambda h: h.roll(1, 1),
    "scores": lambda h: torch.softmax(h @ h.transpose(1, 2) / h.shape[-1], -1) @ h,
    "select": lambda h: h[:, -1:] + h[:, 0, None],
    "split": lambda h: torch.cat(h.split([1, 2], 1)[::-1], 1),
    "stack": lambda h: torch.stack([h, -h], 2).sum(2) + torch.stack([h, h * h], 1).mean(1),
    "std of the width": lambda h: h / h.std(-1, keepdim=True),
    "sum": lambda h: h.sum(1, keepdim=True) * h,
    "unbind": lambda h: torch.stack(h.unbind(1)[::-1], 1),
    "unflatten": lambda h: h.unflatten(-1, (2, -1)).flip(-2).flatten(-2),
    "variance of tokens": lambda h: h * h.var(1, keepdim=True, unbiased=False),
    "view": lambda h: h.view(3, -1)[None].squeeze(0).unsqueeze(0),
    "where": lambda h: torch.where(torch.tensor([[True], [False], [True]]), h, -h),
}


class Model(nn.Module):
    """A gated unit halves the width, so the size of the next layer is found by running the function."""

    def __init__(self, n, fn):
        super().__init__()
        width = fn(torch.ones(1, 3, n)).shape[-1]
        self.fn, self.embed = fn, nn.Linear(5, n)
        self.hidden, self.head = nn.Linear(width, n), nn.Linear(n, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(self.fn(self.embed(x)))))


@pytest.mark.parametrize("name", [*FUNCTIONS, *SHAPES])
def test_operation(name):
    fn = {**FUNCTIONS, **SHAPES}[name]
    net = ns.from_torch(lambda n: Model(n, fn).double(), width=8)
    check = ns.check_import(net, SEQUENCE, tolerance=1e-6)
    assert check.difference < 1e-6
    assert np.abs(check.outputs).max() > 0
