"""The kernel of a network for `sklearn.gaussian_process`, and for estimators with precomputed kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from netsor.build.joint_program import as_inputs
from netsor.errors import DataError
from netsor.gp.gradient import central_differences, free_groups, scaled
from netsor.gp.targets import reals
from netsor.limits.inputs import InputSet
from netsor.limits.kernel import KernelFn
from netsor.limits.kernel_tiles import of_params
from netsor.sklearn.architecture import (
    NetworkLike,
    check_pairwise,
    checked_by_sklearn,
    kernel_of,
    reshaped,
)


@dataclass(eq=False, repr=False)
class NNGPKernel(Kernel):
    """The covariance of an infinitely wide network, with its variances as hyperparameters.

    `theta` holds the logarithms of the variances. Gradients are central differences in theta with an error of
    about 1e-9 of the entries. `ns.gp.tune` has compiled gradients.

    Parameters
    ----------
    network, input_shape, kernel_options
        As for `NNGPRegressor`.
    variances
        One per group, in the order of `names`; by default the network's own.
    variances_bounds
        A pair, or "fixed".
    tied
        Groups of names, or of patterns such as `W*`, that change by a common factor. Each other name is a
        group.

    Examples
    --------
    >>> k = NNGPKernel("mlp")
    >>> [names[0] for names in k.names], k.theta
    (['W1', 'b1', 'v'], array([0., 0., 0.]))
    """

    network: NetworkLike = None
    variances: Sequence[float] | np.ndarray | None = None
    variances_bounds: Any = (1e-5, 1e5)
    tied: Sequence[Sequence[str]] = ()
    input_shape: tuple[int, ...] | None = None
    kernel_options: dict[str, Any] | None = None

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The groups of variances, one per hyperparameter; variances of 0 stay 0."""
        return free_groups(self._kernel().params, self.tied)

    @property
    def params(self) -> dict[str, float]:
        """All variances of the network by name, as `ns.kernel(net)(x, params=...)` takes them."""
        return scaled(self._kernel().params, self.names, self._values().tolist())

    @property
    def hyperparameter_variances(self) -> Hyperparameter:
        """Name, bounds and number of hyperparameters; scikit-learn finds it by its prefix."""
        return Hyperparameter("variances", "numeric", self.variances_bounds, len(self.names))

    @property
    def theta(self) -> np.ndarray:
        """The logarithms of the free variances."""
        return np.zeros(0) if self.hyperparameter_variances.fixed else np.log(self._values())

    @theta.setter
    def theta(self, theta: np.ndarray) -> None:
        if not self.hyperparameter_variances.fixed:
            self.variances = np.exp(np.asarray(theta, np.float64))

    def __call__(self, X: InputSet, Y: InputSet | None = None, eval_gradient: bool = False) -> Any:
        """Return K(X, Y), and on request its gradient in theta, (rows, rows, k), for Y=None only."""
        x = self._inputs(X)
        kernel, params = self._kernel(), self.params
        check_pairwise(kernel.net, x[0])
        if not eval_gradient:
            return kernel(x, None if Y is None else self._inputs(Y), params=params)
        if Y is not None:
            raise ValueError("Gradient can only be evaluated when Y is None.")
        if self.hyperparameter_variances.fixed:
            return kernel(x, params=params), np.zeros((len(x), len(x), 0))
        matrix_of, groups = of_params(kernel, as_inputs(x)), self.names
        value = matrix_of(params)
        return value, central_differences(
            lambda theta: matrix_of(scaled(params, groups, np.exp(theta))), self.theta
        )

    def diag(self, X: InputSet) -> Any:
        """Return the diagonal of K(X, X), (rows,)."""
        return self._kernel().diag(self._inputs(X), params=self.params)

    def is_stationary(self) -> Any:
        """Return False: the kernel depends on more than differences of inputs."""
        return False

    def _kernel(self) -> KernelFn:
        return kernel_of(self.network, self.kernel_options)

    def _values(self) -> np.ndarray:
        start, names = self._kernel().params, self.names
        if self.variances is None:
            return np.array([start[group[0]] for group in names])
        values = np.atleast_1d(reals(self.variances, "the variances"))
        if values.shape != (len(names),) or not np.all(np.isfinite(values) & (values > 0)):
            raise DataError(
                f"variances={self.variances!r}", remedy=f"Give {len(names)} positive numbers, for {names}."
            )
        return values

    def _inputs(self, X: Any) -> np.ndarray:
        with checked_by_sklearn():
            return reshaped(check_array(np.atleast_2d(X), allow_nd=True), self.input_shape)


@dataclass(eq=False, repr=False)
class NNGPGram(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Maps X to K(X, X_train), for `SVC(kernel="precomputed")` or `KernelRidge(kernel="precomputed")`.

    Parameters are those of `NNGPRegressor`. Use it in a pipeline: cross-validation then splits X, not K.
    """

    network: NetworkLike = None
    input_shape: tuple[int, ...] | None = None
    kernel_options: dict[str, Any] | None = None

    def fit(self, X: InputSet, y: ArrayLike | None = None) -> NNGPGram:
        """Store the training inputs."""
        self.X_fit_ = self._inputs(X, True)
        check_pairwise(kernel_of(self.network, self.kernel_options).net, self.X_fit_[0])
        self._n_features_out = len(self.X_fit_)
        return self

    def transform(self, X: InputSet) -> np.ndarray:
        """Compute the kernel between X and the training inputs, (rows, training rows)."""
        check_is_fitted(self, "X_fit_")
        x, kernel = self._inputs(X, False), kernel_of(self.network, self.kernel_options)
        return kernel(x) if np.array_equal(x, self.X_fit_) else kernel(x, self.X_fit_)

    def _inputs(self, X: Any, reset: bool) -> np.ndarray:
        with checked_by_sklearn():
            return reshaped(validate_data(self, X, reset=reset, allow_nd=True), self.input_shape)
