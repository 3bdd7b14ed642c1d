"""The paper's figures from our own engine, with the numbers beside them. Needs the extra `plots`.

| file | what it holds |
| --- | --- |
| `studies` | the networks of the figures with their inputs |
| `experiment` | `Experiment`: simulations that survive an interruption, and the files of a figure |
| `convergence` | distances of random networks to their limit, and the fit of their slope |
| `rnn`, `kernel_figures` | the figures |
"""

from netsor.reproduce.convergence import Convergence, Fit, fit_slope, measure
from netsor.reproduce.experiment import Experiment
from netsor.reproduce.kernel_figures import kernels_figure, ntk_figure, zoo_figure
from netsor.reproduce.rnn import rnn_figure
from netsor.reproduce.studies import Study, paper_studies, tangent_studies, zoo_studies

__all__ = [
    "Convergence",
    "Experiment",
    "Fit",
    "Study",
    "fit_slope",
    "kernels_figure",
    "measure",
    "ntk_figure",
    "paper_studies",
    "rnn_figure",
    "tangent_studies",
    "zoo_figure",
    "zoo_studies",
]
