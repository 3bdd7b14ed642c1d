"""PyTorch modules that write into tensors: through views, under several names, into constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_models import SEQUENCE

X = SEQUENCE  # three tokens
EQUAL: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {}
REFUSED: dict[str, tuple[str, Callable[[Any, torch.Tensor], torch.Tensor]]] = {}


class Body(nn.Module):
    """A layer from data, something in the middle, a hidden layer, a readout; all laws are normal."""

    def __init__(self, n: int, middle: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.n, self.middle = n, middle
        self.embed, self.head = nn.Linear(5, n, bias=False), nn.Linear(n, 1, bias=False)
        self.hidden, self.gate = nn.Linear(n, n, bias=False), nn.Parameter(torch.randn(n))
        for layer in (self.embed, self.hidden, self.head):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.register_buffer("weights", torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, x):
        h = self.middle(self, self.embed(x))
        return self.head(torch.relu(self.hidden(h)))


def equal(fn):
    EQUAL[fn.__name__] = fn
    return fn


def refused(match: str):
    def enter(fn):
        REFUSED[fn.__name__] = match, fn
        return fn

    return enter


# Writes through views of tokens


@equal
def add_to_a_token(_, h):
    h[:, 0] += 1
    return h


@equal
def zero_a_token(_, h):
    h[:, 0] = 0
    return h


@equal
def scale_tokens(_, h):
    h[:, :2].mul_(3)
    return h


@equal
def zero_a_chunk_of_tokens(_, h):
    a, _ = h.chunk(2, 1)
    a.zero_()
    return h


@equal
def write_tokens_into_zeros(_, h):
    z = torch.zeros_like(h)
    z[:, 1:3] = h[:, :2]
    return z


@equal
def fill_tokens(_, h):
    h[:, 1:].fill_(0.5)
    return h


@equal
def every_second_token(_, h):
    h[:, ::2] = 1.0
    return h


@equal
def swap_tokens(_, h):
    first = h[:, 0].clone()
    h[:, 0] = h[:, 1]
    h[:, 1] = first
    return h


@equal
def swap_tokens_without_a_copy(_, h):
    first = h[:, 0]
    h[:, 0] = h[:, 1]
    h[:, 1] = first
    return h


@equal
def running_sum(_, h):
    for t in range(1, 3):
        h[:, t] += h[:, t - 1]
    return h


@equal
def recurrence_into_zeros(_, h):
    out = torch.zeros_like(h)
    for t in range(3):
        out[:, t] = torch.tanh(h[:, t] + (out[:, t - 1] if t else 0))
    return out


@equal
def add_to_an_unbound_token(_, h):
    a, b, _ = h.unbind(1)
    b.add_(a)
    return h


@equal
def copy_into_a_split(_, h):
    a, b = h.split([1, 2], 1)
    b.copy_(a)
    return h


@equal
def write_through_a_transpose(_, h):
    h.transpose(1, 2)[:, :, 0].mul_(2)
    return h


@equal
def write_without_gradients(_, h):
    with torch.no_grad():
        h[:, 0] = 1.0
    return h


@equal
def tokens_by_number(_, h):
    h[:, [2, 0]] = h[:, [0, 1]] * 2
    return h


@equal
def tokens_by_condition(_, h):
    h[:, torch.tensor([True, False, True])] = 0.25
    return h


@equal
def tokens_by_index_fill(_, h):
    return h.index_fill_(1, torch.tensor([1]), 0.3)


@equal
def tokens_by_index_copy(_, h):
    h.index_copy_(1, torch.tensor([1]), h[:, :1] * 3)
    return h


@equal
def masked_tokens(_, h):
    h.masked_fill_(torch.tensor([True, False, False])[:, None], 0.3)
    return h


# Writes through views of the width


@equal
def zero_half_of_the_width(_, h):
    a, _ = h.chunk(2, -1)
    a.zero_()
    return h


@equal
def fill_half_of_the_width(self, h):
    h[..., self.n // 2 :].fill_(0.5)
    return h


@equal
def write_a_view_of_halves(_, h):
    h.view(1, 3, 2, -1)[:, :, 0] = 1.0
    return h


@equal
def halves_into_empty(self, h):
    z, k = torch.empty_like(h), self.n // 2
    z[..., :k] = -h[..., k:]
    z[..., k:] = h[..., :k]
    return z


@equal
def every_second_coordinate(_, h):
    h[..., ::2] = 0.5
    return h


@equal
def rotate_every_two(_, h):
    a, b = h[..., ::2], h[..., 1::2]
    return h + torch.stack([-b, a], -1).flatten(-2)


@equal
def empty_tail_of_the_width(self, h):
    return torch.cat([torch.tanh(h[..., : self.n]), h[..., self.n :]], -1)


# Functions in place, and other names of one tensor


@equal
def relu_of_an_alias(_, h):
    other = h
    F.relu(other, inplace=True)
    return h


@equal
def both_names_after_a_relu(_, h):
    a = h * 2
    b = a.relu_()
    return a + b


@equal
def negative_coordinates(_, h):
    h[h < 0] = 0.1
    return h


@equal
def clamped(_, h):
    h.clamp_(-0.5, 1)
    return h


@equal
def result_into_empty(_, h):
    z = torch.empty_like(h)
    torch.mul(h, 2.0, out=z)
    return z


@equal
def broadcast_copy(_, h):
    z = torch.zeros_like(h)
    z.copy_(h[:, :1])
    return z


def parameter_in_part(self, h):
    with torch.no_grad():
        self.gate[: self.n // 2] = 0.5
    return h * self.gate


@equal
def buffer_scaled(self, h):
    self.weights.mul_(2)
    return h * self.weights[:, None]


@equal
def buffer_in_part(self, h):
    self.weights[1] = 3.0
    return h * self.weights[:, None]


@equal
def dropout_in_place(self, h):
    return self.drop(h)  # of evaluation mode: nothing


# Constants


@equal
def ones_like(_, h):
    return h + torch.ones_like(h)


@equal
def new_ones(self, h):
    return h + h.new_ones(1, 1, self.n)


@equal
def full_like(_, h):
    return h * torch.full_like(h, -0.5) + h.new_full((3, 1), 2.0) + h.new_zeros(1)


@equal
def full_of_the_width(self, h):
    return h * torch.full_like(h, 1 / self.n) * self.n


@equal
def new_tensor(_, h):
    return h * h.new_tensor([1.0, 2.0, 3.0])[:, None]


@equal
def ranges(_, h):
    return h * torch.arange(3.0)[:, None] + torch.linspace(0, 1, 3)[:, None] + torch.scalar_tensor(2.0)


@equal
def identity_with_a_diagonal(_, h):
    m = torch.eye(3)
    m.fill_diagonal_(2.0)
    m[0, 1] = 1
    return m.tril_() @ h


@equal
def empty_that_is_filled(_, h):
    e = torch.empty(3, 1)
    e.fill_(2.0)
    return h * e


# What has no limit, or no rule


@refused("cuts a width")
def one_coordinate(_, h):
    h[..., 0] = 1.0
    return h


@refused("cuts a width")
def every_third_coordinate(self, h):
    return h[..., ::3].sum(-1, keepdim=True) / self.n + h


@refused("twice at one position")
def a_token_twice(_, h):
    h[:, [0, 0]] = h[:, [0, 1]] * 2
    return h


@refused("several axes at once")
def two_axes_by_number(_, h):
    return h.index_put_((torch.tensor([0]), torch.tensor([1])), h[0, 0], accumulate=True)


@refused("not finite")
def memory_that_was_never_written(_, h):
    e = torch.empty_like(h)
    e[:, 0] = 1.0
    return h * e


@refused("not finite")
def constants_that_were_never_written(_, h):
    e = torch.empty(3, 1)
    e[0] = 1.0
    return h * e


@refused("draws random numbers")
def random_constants(self, h):
    return h + torch.randn(self.n)


@refused("draws random numbers")
def random_fill(_, h):
    return h + torch.empty_like(h).normal_()


@refused("running statistics")
def running_statistics(self, h):
    mean, var = torch.zeros(self.n), torch.ones(self.n)
    F.batch_norm(h[0], mean, var, training=True)
    return h + mean


@refused("has no rule")
def overlapping_memory(_, h):
    h.as_strided((1,), (1,)).zero_()
    return h


@refused("has no rule")
def fourier_modes(_, h):
    modes = torch.fft.rfft(h, dim=1)
    kept = torch.zeros_like(modes)
    kept[:, :1] = modes[:, :1]
    return torch.fft.irfft(kept, n=3, dim=1)
