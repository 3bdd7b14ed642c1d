"""Kernel matrices for estimators that take a precomputed kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from netsor.limits.inputs import InputSet
from netsor.sklearn.architecture import NetworkLike, check_pairwise, checked_by_sklearn, kernel_of, reshaped


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
        self.X_fit_ = self._table(X, True)
        check_pairwise(kernel_of(self.network, None).net, reshaped(self.X_fit_[:1], self.input_shape)[0])
        self._n_features_out = len(self.X_fit_)
        return self

    def transform(self, X: InputSet) -> np.ndarray:
        """Compute the kernel between X and the training inputs, (rows, training rows)."""
        check_is_fitted(self, "X_fit_")
        x, trained = (reshaped(table, self.input_shape) for table in (self._table(X, False), self.X_fit_))
        kernel = kernel_of(self.network, self.kernel_options)
        return kernel(x) if np.array_equal(x, trained) else kernel(x, trained)

    def _table(self, X: Any, reset: bool) -> np.ndarray:
        with checked_by_sklearn():
            return np.asarray(validate_data(self, X, reset=reset, allow_nd=True), np.float64)
