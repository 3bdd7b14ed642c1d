"""The architectures of the paper. Each is a function that reads like the paper's program.

| file | what it holds |
| --- | --- |
| fully_connected | plain, with skip connections, densely connected, with batchnorm and with layernorm |
| convolutional | convolutions of images and of graphs |
| recurrent_networks | simple RNN, GRU, LSTM |
| transformer | self-attention with layernorm |
| per_layer | variances per layer, and checks of arguments |
"""

from netsor.zoo.convolutional import cnn, graph_conv
from netsor.zoo.fully_connected import batchnorm_mlp, densenet, layernorm_mlp, mlp, resnet
from netsor.zoo.recurrent_networks import gru, lstm, simple_rnn
from netsor.zoo.transformer import transformer

__all__ = ["batchnorm_mlp", "cnn", "densenet", "graph_conv", "gru", "layernorm_mlp", "lstm", "mlp"]
__all__ += ["resnet", "simple_rnn", "transformer"]
