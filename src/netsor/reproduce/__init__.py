"""The paper's figures from our own engine, with the numbers beside them. Needs the extra `plots`."""

from netsor.reproduce.convergence import Convergence, Fit, fit_slope, measure
from netsor.reproduce.kernels import kernels_figure
from netsor.reproduce.rnn import rnn_figure
from netsor.reproduce.store import Run
from netsor.reproduce.studies import Study, paper_studies, tangent_studies, zoo_studies
from netsor.reproduce.zoo import ntk_figure, zoo_figure

__all__ = [
    "Convergence",
    "Fit",
    "Run",
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
