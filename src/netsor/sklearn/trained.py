"""Regression by infinitely wide networks under gradient descent, as a scikit-learn estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from netsor import arguments, gp
from netsor.limits import ntk
from netsor.limits.inputs import InputSet
from netsor.sklearn.architecture import NetworkLike, check_pairwise, resolve
from netsor.sklearn.estimators import WideRegressor


@dataclass(eq=False, repr=False)
class NTKRegressor(WideRegressor):
    """Regression with the ensemble of infinitely wide networks under gradient flow, see `ns.gp.train`.

    Parameters
    ----------
    network
        As for `NNGPRegressor`.
    rate, time
        Learning rate and time of training; by default infinite time.
    noise
        The ridge, in units of the (normalised) targets.
    rates
        Learning rates by parameter name, or a convention, as for `ns.tangent`.
    normalize_y
        Whether to subtract the mean of the targets and divide by their standard deviation.
    input_shape
        The shape of one input, e.g. (8, 8, 1), if the rows of X are flattened.
    kernel_options
        Options of `ns.kernel`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-2, 2, 20)[:, None]
    >>> model = NTKRegressor(noise=1e-4).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[0.5]])[0] - np.sin(0.5)) < 0.02)
    True
    """

    network: NetworkLike = None
    rate: float = 1.0
    time: float = inf
    noise: float = 1e-2
    rates: Any = None
    normalize_y: bool = True
    input_shape: tuple[int, ...] | None = None
    kernel_options: dict[str, Any] | None = None

    def fit(self, X: InputSet, y: ArrayLike) -> NTKRegressor:
        """Train the ensemble."""
        x, y = self._inputs(X, True, y, multi_output=True, y_numeric=True)
        y = np.asarray(y, np.float64)
        self._standardise(y)
        self.network_ = clone(self.network, safe=False)
        net = resolve(self.network_)
        check_pairwise(net, np.asarray(x[0]))
        options = arguments.mapping("kernel_options", self.kernel_options, '{"points": 2**10}')
        training = {"rate": self.rate, "time": self.time, "noise": self.noise, "rates": self.rates}
        self.model_ = gp.train(net, x, (y - self._mean) / self._scale, **training, **options)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "model_" in state:
            state["model_"] = replace(state["model_"], tangent=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "model_"):
            moving = ntk(self.model_.kernel.net, self.rates, **(self.kernel_options or {}))
            self.model_ = replace(self.model_, tangent=moving)

    def predict(self, X: InputSet, return_std: bool = False) -> Any:
        """Return the mean of the ensemble, and on request its standard deviation."""
        check_is_fitted(self, "model_")
        prediction = self.model_.predict(self._inputs(X, False))
        mean = prediction.mean * self._scale + self._mean
        return (mean, np.multiply.outer(prediction.std, self._scale)) if return_std else mean
