"""The architectures of the paper. Each is a page of code that reads like the paper's program.

| file | what it holds |
| --- | --- |
| mlp, resnet, densenet | fully connected networks: plain, with skip connections, densely connected |
| cnn, graph_conv | convolutions of images and of graphs |
| recurrent_networks | simple RNN, GRU, LSTM |
| batchnorm_mlp, layernorm_mlp | fully connected networks with normalization |
| transformer | self-attention with layernorm |
| per_layer | variances per layer, and checks of arguments |
"""

from netsor.zoo.batchnorm_mlp import batchnorm_mlp
from netsor.zoo.cnn import cnn
from netsor.zoo.densenet import densenet
from netsor.zoo.graph_conv import graph_conv
from netsor.zoo.layernorm_mlp import layernorm_mlp
from netsor.zoo.mlp import mlp
from netsor.zoo.recurrent_networks import gru, lstm, simple_rnn
from netsor.zoo.resnet import resnet
from netsor.zoo.transformer import transformer

__all__ = [
    "batchnorm_mlp",
    "cnn",
    "densenet",
    "graph_conv",
    "gru",
    "layernorm_mlp",
    "lstm",
    "mlp",
    "resnet",
    "simple_rnn",
    "transformer",
]
