"""Models that have no Gaussian process at infinite width, or none that a Netsor program can say."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_models import IMAGE, SEQUENCE, VECTOR, Case


class Body(nn.Module):
    """A layer from data, something in the middle, a readout."""

    def __init__(self, n, middle):
        super().__init__()
        self.embed, self.middle, self.head = nn.Linear(5, n), middle(n), nn.Linear(n, 1)

    def forward(self, x):
        return self.head(self.middle(self.embed(x)))


class Layer(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n, self.hidden = n, nn.Linear(n, n)


class SoftmaxOverWidth(Layer):
    def forward(self, h):
        return torch.softmax(h, -1)


class MaxOverWidth(Layer):
    def forward(self, h):
        return h / h.amax(-1, keepdim=True)


class SortedWidth(Layer):
    def forward(self, h):
        return torch.sort(h, -1).values


class DropoutOfScores(Layer):
    def forward(self, h):
        scores = torch.softmax(h @ h.transpose(-1, -2) / self.n, -1)
        return F.dropout(scores, 0.1, training=True) @ h


class DropoutOfData(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.embed, self.head = nn.Linear(5, n), nn.Linear(n, 1)

    def forward(self, x):
        return self.head(torch.relu(self.embed(F.dropout(x, 0.1, training=True))))


class RecurrentDropout(Layer):
    def __init__(self, n):
        super().__init__(n)
        self.rnn = nn.GRU(n, n, num_layers=2, dropout=0.1, batch_first=True)

    def forward(self, h):
        return self.rnn(h)[0]


class Noise(Layer):
    def forward(self, h):
        return h + torch.randn_like(h)


class Bottleneck(Layer):
    def __init__(self, n):
        super().__init__(n)
        self.down, self.up = nn.Linear(n, 3), nn.Linear(3, n)

    def forward(self, h):
        return self.up(torch.relu(self.down(h)))


class FunctionOfOutput(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.embed, self.head = nn.Linear(5, n), nn.Linear(n, 10)

    def forward(self, x):
        return torch.sigmoid(self.head(self.embed(x)))


class SoftmaxOfOutput(FunctionOfOutput):
    def forward(self, x):
        return F.log_softmax(self.head(self.embed(x)), -1)


class TokenMixer(Layer):
    def __init__(self, n):
        super().__init__(n)
        self.mix = nn.Linear(3, 3, bias=False)

    def forward(self, h):
        return self.mix(h.transpose(1, 2)).transpose(1, 2)


class MixedReshape(Layer):
    def forward(self, h):
        return h.transpose(1, 2).reshape(1, 3, -1)


class OutOfOrder(Layer):
    """Half of the width and the other half, one by one."""

    def forward(self, h):
        return h + h.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


class OddSlice(Layer):
    def forward(self, h):
        return self.hidden(h)[..., :10].sum(-1, keepdim=True) * h


class Tied(Layer):
    def forward(self, h):
        return F.linear(torch.relu(self.hidden(h)), self.hidden.weight.T)


class OuterProduct(Layer):
    def forward(self, h):
        return (h[..., :, None] * h[..., None, :]).sum(-1)


class WideReadout(FunctionOfOutput):
    def __init__(self, n):
        super().__init__(n)
        nn.init.normal_(self.head.weight, std=1.0)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)))


class Branch(Layer):
    def forward(self, h):
        return torch.relu(h) if h.sum() > 0 else torch.tanh(h)


class LargestToken(Layer):
    def forward(self, h):
        return torch.gather(h, 1, h.argmax(1, keepdim=True))


class Ramps(Layer):
    """Fixed positions that differ from coordinate to coordinate."""

    def forward(self, h):
        return h + torch.arange(3.0)[:, None] * torch.arange(float(self.n))


class MatrixWithMean(Layer):
    def __init__(self, n):
        super().__init__(n)
        nn.init.normal_(self.hidden.weight, mean=0.1, std=n**-0.5)

    def forward(self, h):
        return self.hidden(h)


class GainWithoutWidth(Layer):
    def __init__(self, n):
        super().__init__(n)
        self.gain = nn.Parameter(torch.randn(3, 1))

    def forward(self, h):
        return self.gain * h


class NoReadout(FunctionOfOutput):
    def forward(self, x):
        return torch.relu(self.embed(x))


class FixedWidth(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.layers(x)


class UnknownOperation(Layer):
    def forward(self, h):
        return torch.special.bessel_j0(h)


class PixelShuffle(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4 * n, 1), nn.Conv2d(n, 1, 1)

    def forward(self, x):
        return self.head(F.pixel_shuffle(self.conv(x), 2))


class Attend(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.q, self.k = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)

    def forward(self, h):
        return F.scaled_dot_product_attention(self.q(h), self.k(h), h)


class Vanishing(Layer):
    def forward(self, h):
        return torch.relu(self.hidden(h))


def within(middle, x=VECTOR):
    return Case(lambda n: Body(n, middle), x)


REFUSED = {
    "softmax over the width": within(SoftmaxOverWidth),
    "maximum over the width": within(MaxOverWidth),
    "sorted width": within(SortedWidth),
    "dropout of scores": within(DropoutOfScores, SEQUENCE),
    "dropout of data": Case(DropoutOfData, VECTOR),
    "dropout inside a recurrent module": Case(lambda n: Body(n, RecurrentDropout), SEQUENCE, {"train": True}),
    "noise": within(Noise),
    "bottleneck": within(Bottleneck),
    "function of an output": Case(FunctionOfOutput, VECTOR),
    "softmax of an output": Case(SoftmaxOfOutput, VECTOR),
    "token mixing by a finite matrix": within(TokenMixer, SEQUENCE),
    "reshape that mixes tokens and width": within(MixedReshape, SEQUENCE),
    "width in another order": within(OutOfOrder),
    "slice of fixed length": within(OddSlice),
    "matrix and its transpose": within(Tied),
    "outer product": within(OuterProduct),
    "readout that does not shrink": Case(WideReadout, VECTOR),
    "branch on values": within(Branch),
    "position of the largest token": within(LargestToken, SEQUENCE),
    "numbers that grow along the width": within(Ramps, SEQUENCE),
    "matrix with a mean": within(MatrixWithMean),
    "random gain without a width": within(GainWithoutWidth, SEQUENCE),
    "no readout": Case(NoReadout, VECTOR),
    "model of fixed width": Case(FixedWidth, VECTOR),
    "unknown operation": within(UnknownOperation),
    "pixel shuffle": Case(PixelShuffle, IMAGE),
    "attention scaled by 1/sqrt(d)": Case(
        lambda n: nn.Sequential(nn.Linear(5, n, bias=False), Attend(n), nn.Linear(n, 1, bias=False)),
        SEQUENCE,
    ),
    "bias that vanishes, strictly": Case(lambda n: Body(n, Vanishing), VECTOR, {"scales": "strict"}),
}
