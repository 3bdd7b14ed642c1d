"""Gaussian-process inference with the kernels of any network: fit, predict, tune, train, classify, save.

>>> import numpy as np, netsor as ns
>>> x = np.linspace(-1, 1, 5)[:, None]
>>> model = ns.gp.fit(ns.kernel(ns.zoo.mlp(2)), x, np.sin(3 * x[:, 0]), noise=1e-4)
>>> prediction = model.predict([[0.25]])
>>> prediction.mean.shape, prediction.std.shape
((1,), (1,))

| file | what it holds |
| --- | --- |
| regression | `fit`, `GP`, `Prediction`, `sample` |
| classification | `classify`: regression on one-hot labels, calibrated probabilities |
| training | `train`: the ensemble of networks under gradient descent |
| tuning | `tune`: variances and noise that maximise the marginal likelihood, by SciPy's optimisers |
| objective | the marginal likelihood as a function of the variances, and its gradient |
| gradient | `kernel_gradient`: derivatives of a kernel with respect to its variances; tied variances |
| factor | Cholesky factors; the policy for noise and jitter |
| targets | a kernel with its data: inputs, targets as (rows, columns); refusal of networks that change |
| saved | `save`, `load`: models in .npz files |
| stores/ | kernels on disk, and solves with them |
"""

from netsor.gp.classification import Classifier, classify
from netsor.gp.factor import InferenceError
from netsor.gp.gradient import kernel_gradient
from netsor.gp.regression import GP, Prediction, fit, sample
from netsor.gp.saved import load, save
from netsor.gp.stores.model import StoredGP
from netsor.gp.stores.store import Store
from netsor.gp.stores.tiles import store
from netsor.gp.training import Trained, train
from netsor.gp.tuning import Tuned, tune

__all__ = [
    "GP",
    "Classifier",
    "InferenceError",
    "Prediction",
    "Store",
    "StoredGP",
    "Trained",
    "Tuned",
    "classify",
    "fit",
    "kernel_gradient",
    "load",
    "sample",
    "save",
    "store",
    "train",
    "tune",
]
