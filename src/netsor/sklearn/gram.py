"""Kernel matrices for estimators that take a precomputed kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from netsor.sklearn.architecture import check_pairwise, checked_by_sklearn, kernel_of, reshaped

__all__ = ["NNGPGram"]


class NNGPGram(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Turns X into K(X, X_train), for `SVC(kernel="precomputed")` or `KernelRidge(kernel="precomputed")`.

    Parameters as for `NNGPRegressor`. In a pipeline, cross-validation cuts X before the kernel is made.
    """

    def __init__(
        self,
        network: Any = None,
        input_shape: tuple[int, ...] | None = None,
        kernel_options: dict[str, Any] | None = None,
    ) -> None:
        self.network = network
        self.input_shape = input_shape
        self.kernel_options = kernel_options

    def fit(self, X: Any, y: Any = None) -> NNGPGram:
        """Remember the training inputs."""
        self.X_fit_ = self._table(X, True)
        check_pairwise(kernel_of(self.network, None).net, reshaped(self.X_fit_[:1], self.input_shape)[0])
        self._n_features_out = len(self.X_fit_)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The kernel between X and the training inputs."""
        check_is_fitted(self, "X_fit_")
        x, trained = (reshaped(table, self.input_shape) for table in (self._table(X, False), self.X_fit_))
        kernel = kernel_of(self.network, self.kernel_options)
        return kernel(x) if np.array_equal(x, trained) else kernel(x, trained)

    def _table(self, X: Any, reset: bool) -> np.ndarray:
        with checked_by_sklearn():
            return np.asarray(validate_data(self, X, reset=reset, allow_nd=True), np.float64)
