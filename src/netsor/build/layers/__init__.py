"""Layers. A layer owns its parameters; two calls of one layer share them.

| file | what it holds |
| --- | --- |
| `dense` | `Dense`, biases, checks of arguments |
| `convolution` | `Conv1d`, `Conv2d`, `Conv3d` |
| `pool` | pooling, resizing |
| `norm` | `batchnorm`, `layernorm`, `rmsnorm` |
| `attention` | `attention` and `Attention` |
| `recurrent` | `RNNCell`, `GRUCell`, `LSTMCell` |
| `embedding` | discrete tokens |
| `dropout` | `Dropout`: a new random mask for each input and call |
| `graph_convolution` | `GraphConv` |
| `spatial_axes` | the convention for spatial axes and batch axes |
"""

from netsor.build.layers import pool
from netsor.build.layers.attention import Attention, attention
from netsor.build.layers.convolution import Conv1d, Conv2d, Conv3d
from netsor.build.layers.dense import Dense
from netsor.build.layers.dropout import Dropout
from netsor.build.layers.embedding import Embedding
from netsor.build.layers.graph_convolution import GraphConv, normalized_adjacency
from netsor.build.layers.norm import batchnorm, layernorm, rmsnorm
from netsor.build.layers.pool import *  # noqa: F403
from netsor.build.layers.recurrent import GRUCell, LSTMCell, RNNCell

__all__ = ["Attention", "Conv1d", "Conv2d", "Conv3d", "Dense", "Dropout", "Embedding", "GRUCell", "GraphConv"]
__all__ += ["LSTMCell", "RNNCell", "attention", "batchnorm", "layernorm", "normalized_adjacency", "rmsnorm"]
__all__ += pool.__all__
