"""The paper's figures from our own engine, with the numbers beside them. Needs the extra `plots`.

| file | what it holds |
| --- | --- |
| `studies` | the networks of the figures with their inputs |
| `experiment` | `Experiment`: simulations that survive an interruption, and the files of a figure |
| `rnn` | the figure of the simple RNN |
| `kernel_figures` | distances of random networks to their limit, the fit of their slope, and the figures |
"""

from netsor.reproduce.experiment import Experiment
from netsor.reproduce.kernel_figures import kernels_figure, zoo_figure
from netsor.reproduce.rnn import rnn_figure

__all__ = ["Experiment", "kernels_figure", "rnn_figure", "zoo_figure"]
