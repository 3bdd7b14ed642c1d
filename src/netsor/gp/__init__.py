"""Gaussian-process inference with the kernels of any network: fit, predict, tune, train, classify, save.

>>> import numpy as np, netsor as ns
>>> x = np.linspace(-1, 1, 5)[:, None]
>>> model = ns.gp.fit(ns.kernel(ns.zoo.mlp(2)), x, np.sin(3 * x[:, 0]), noise=1e-4)
>>> found = model.predict([[0.25]])
>>> found.mean.shape, found.std.shape
((1,), (1,))
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
