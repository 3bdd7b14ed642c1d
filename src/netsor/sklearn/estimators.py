"""Regression and classification with infinitely wide networks, as scikit-learn estimators."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from netsor import arguments, gp
from netsor.build.network import Network
from netsor.gp.classification import one_hot
from netsor.limits import ntk
from netsor.limits.inputs import InputSet
from netsor.limits.kernel import KernelFn
from netsor.sklearn.architecture import (
    NetworkLike,
    TableError,
    check_pairwise,
    checked_by_sklearn,
    kernel_of,
    reshaped,
)


def _are_sequences(X: Any) -> bool:
    """Whether X is a list of arrays with two or more axes."""
    return isinstance(X, list) and bool(X) and all(isinstance(x, np.ndarray) and x.ndim > 1 for x in X)


class NNGPEstimator(BaseEstimator):
    """The common part of the estimators: checks, fitting and pickling."""

    network: NetworkLike
    noise: float
    tune: bool
    tune_options: dict[str, Any] | None
    input_shape: tuple[int, ...] | None
    kernel_options: dict[str, Any] | None
    normalize_y: bool
    network_: Any
    model_: Any
    kernels: ClassVar[tuple[str, ...]] = ("kernel",)  # attributes of `model_` that contain code

    def _inputs(self, X: Any, reset: bool, y: Any = "no_validation", **checks: Any) -> Any:
        """Check X (and y) by scikit-learn's rules, and reshape X for the network; sequences are passed on."""
        without = isinstance(y, str)
        if _are_sequences(X):
            return X if without else (X, np.asarray(y))
        with checked_by_sklearn():
            checked: Any = validate_data(self, X, y, reset=reset, allow_nd=True, dtype="numeric", **checks)
        shaped = reshaped(checked if without else checked[0], self.input_shape)
        return shaped if without else (shaped, checked[1])

    def _kernel_for(self, x: Any) -> KernelFn:
        """The kernel of the network, which must have one output at each of the inputs x."""
        # A later change of the parameter `network` must not change the fitted model.
        self.network_ = clone(self.network, safe=False)
        kernel = kernel_of(self.network_, self.kernel_options)
        check_pairwise(kernel.net, np.asarray(x[0]))
        return kernel

    def _fit(self, x: Any, y: np.ndarray) -> gp.GP:
        kernel = self._kernel_for(x)
        if not arguments.flag("tune", self.tune):
            model = gp.fit(kernel, x, y, noise=self.noise)
        else:
            options = arguments.mapping("tune_options", self.tune_options, '{"steps": 50}')
            model = gp.tune(kernel, x, y, **{"noise": self.noise, "progress": False, **options}).model
        self.params_, self.noise_ = {**kernel.params, **model.params}, model.noise
        self.log_marginal_likelihood_value_ = model.log_marginal_likelihood()
        return model

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**super().__getstate__()}  # type: ignore[dict-item]
        if isinstance(state.get("network"), Network) or isinstance(state.get("network_"), Network):
            raise pickle.PicklingError(
                "a network is code and is not pickled: give network=Architecture(...) or the function that "
                "builds the network"
            )
        if "model_" in state:  # a kernel contains code; `__setstate__` rebuilds it from the parameters
            state["model_"] = replace(state["model_"], **dict.fromkeys(self.kernels))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "model_"):
            self.model_ = replace(self.model_, **self._rebuilt())

    def _rebuilt(self) -> dict[str, KernelFn]:
        """The kernels of the fitted model by attribute."""
        return {"kernel": kernel_of(self.network_, self.kernel_options)}


class WideRegressor(RegressorMixin, NNGPEstimator):
    """The common part of the regressors, which accept several target columns."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _standardised(self, X: InputSet, y: ArrayLike) -> tuple[Any, np.ndarray]:
        """Check X and y, (rows,) or (rows, d), store mean and scale of y, and return X and standardised y."""
        x, y = self._inputs(X, True, y, multi_output=True, y_numeric=True)
        targets = np.asarray(y, np.float64)
        self._mean, self._scale = np.zeros(targets.shape[1:]), np.ones(targets.shape[1:])
        if arguments.flag("normalize_y", self.normalize_y):
            spread = targets.std(axis=0)
            self._mean, self._scale = targets.mean(axis=0), np.where(spread > 0, spread, 1.0)
        return x, (targets - self._mean) / self._scale


@dataclass(eq=False, repr=False)
class NNGPRegressor(WideRegressor):
    """Regression with the Gaussian process of an infinitely wide network.

    X may also be a list of arrays with several axes, such as sequences of different lengths.

    Parameters
    ----------
    network
        An Architecture, the name of a network in the zoo, a function that returns a network, or a
        network; by default an MLP with two hidden layers.
    noise
        Variance of the noise, in units of the (normalised) targets.
    normalize_y
        Whether to subtract the mean of the targets and divide by their standard deviation.
    tune
        Whether to maximise the marginal likelihood over the variances and the noise, see `ns.gp.tune`.
    tune_options
        Options of `ns.gp.tune`, e.g. {"tied": [["W1", "W2"]]}.
    input_shape
        The shape of one input, e.g. (8, 8, 1), if the rows of X are flattened.
    kernel_options
        Options of `ns.kernel`, e.g. {"points": 2**10}.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-2, 2, 20)[:, None]
    >>> model = NNGPRegressor(noise=1e-4).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[0.5]])[0] - np.sin(0.5)) < 0.01)
    True
    """

    network: NetworkLike = None
    noise: float = 1e-2
    normalize_y: bool = True
    tune: bool = False
    tune_options: dict[str, Any] | None = None
    input_shape: tuple[int, ...] | None = None
    kernel_options: dict[str, Any] | None = None

    def fit(self, X: InputSet, y: ArrayLike) -> NNGPRegressor:
        """Fit the model."""
        self.model_ = self._fit(*self._standardised(X, y))
        return self

    def predict(self, X: InputSet, return_std: bool = False, return_cov: bool = False) -> Any:
        """Return the mean, and on request standard deviation or covariance of the noiseless function."""
        check_is_fitted(self, "model_")
        x = self._inputs(X, False)
        if not (return_std or return_cov):
            return self.model_.mean(x) * self._scale + self._mean
        posterior = self.model_.predict(x, cov=return_cov)
        mean = posterior.mean * self._scale + self._mean
        if return_cov:
            assert posterior.cov is not None
            return mean, np.multiply.outer(posterior.cov, self._scale**2)
        return mean, np.multiply.outer(posterior.std, self._scale)

    def sample_y(
        self, X: InputSet, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Draw functions from the posterior at X: (rows, n_samples), or (rows, d, n_samples)."""
        check_is_fitted(self, "model_")
        seed = check_random_state(random_state).randint(2**31 - 1)
        drawn = self.model_.sample(self._inputs(X, False), n_samples, seed) * self._scale + self._mean
        return np.moveaxis(drawn, 0, -1)


@dataclass(eq=False, repr=False)
class NTKRegressor(WideRegressor):
    """Regression with the ensemble of infinitely wide networks under gradient flow, see `ns.gp.train`.

    Parameters
    ----------
    network, normalize_y, input_shape, kernel_options
        As for `NNGPRegressor`.
    rate, time, rates
        As for `ns.gp.train`; by default infinite time.
    noise
        The ridge, in units of the (normalised) targets.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-2, 2, 20)[:, None]
    >>> NTKRegressor(noise=1e-4).fit(X, np.sin(X[:, 0])).predict([[0.5]]).round(2)
    array([0.48])
    """

    network: NetworkLike = None
    rate: float = 1.0
    time: float = inf
    noise: float = 1e-2
    rates: Any = None
    normalize_y: bool = True
    input_shape: tuple[int, ...] | None = None
    kernel_options: dict[str, Any] | None = None
    kernels: ClassVar[tuple[str, ...]] = ("kernel", "tangent")

    def fit(self, X: InputSet, y: ArrayLike) -> NTKRegressor:
        """Train the ensemble."""
        x, targets = self._standardised(X, y)
        net, options = self._kernel_for(x).net, self.kernel_options or {}
        training = {"rate": self.rate, "time": self.time, "noise": self.noise, "rates": self.rates}
        self.model_ = gp.train(net, x, targets, **training, **options)
        return self

    def _rebuilt(self) -> dict[str, KernelFn]:
        plain = super()._rebuilt()
        return {**plain, "tangent": ntk(plain["kernel"].net, self.rates, **(self.kernel_options or {}))}

    def predict(self, X: InputSet, return_std: bool = False) -> Any:
        """Return the mean of the ensemble, and on request its standard deviation."""
        check_is_fitted(self, "model_")
        prediction = self.model_.predict(self._inputs(X, False))
        mean = prediction.mean * self._scale + self._mean
        return (mean, np.multiply.outer(prediction.std, self._scale)) if return_std else mean


@dataclass(eq=False, repr=False)
class NNGPClassifier(ClassifierMixin, NNGPEstimator):
    """Classification by regression on centred one-hot labels; parameters as for `NNGPRegressor`.

    Probabilities are calibrated on leave-one-out predictions, see `ns.gp.Classifier.probabilities`.
    """

    network: NetworkLike = None
    noise: float = 1e-2
    tune: bool = False
    tune_options: dict[str, Any] | None = None
    input_shape: tuple[int, ...] | None = None
    kernel_options: dict[str, Any] | None = None

    def fit(self, X: InputSet, y: ArrayLike) -> NNGPClassifier:
        """Fit the model."""
        x, y = self._inputs(X, True, y)
        with checked_by_sklearn():
            check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise TableError(f"the labels are of one class, {self.classes_[0]!r}", remedy="Give two or more.")
        _, table = one_hot(np.searchsorted(self.classes_, y))
        self.model_ = self._fit(x, table)
        self.slope_ = gp.Classifier(self.model_, self.classes_).slope
        return self

    def decision_function(self, X: InputSet) -> np.ndarray:
        """Return posterior means: (rows, classes), or (rows,) of the second class if there are two."""
        check_is_fitted(self, "model_")
        means = self.model_.mean(self._inputs(X, False))
        return means[:, 1] if len(self.classes_) == 2 else means

    def predict(self, X: InputSet) -> np.ndarray:
        """Return the class with the largest posterior mean, (rows,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)]

    def predict_proba(self, X: InputSet) -> np.ndarray:
        """Return calibrated probabilities, (rows, classes)."""
        check_is_fitted(self, "model_")
        return softmax(self.slope_ * self.model_.mean(self._inputs(X, False)), axis=1)
