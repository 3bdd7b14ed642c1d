"""scikit-learn's interfaces to infinite-width networks. Needs the extra `sklearn`.

`NNGPRegressor`, `NNGPClassifier`  estimators by exact Gaussian-process inference
`NTKRegressor`                     the ensemble of networks under gradient descent
`NNGPKernel`                       a kernel for `sklearn.gaussian_process`, for `SVC` and `KernelRidge`
`NNGPGram`                         a transformer: the kernel matrix for estimators with "precomputed" kernels
`Architecture`                     a network as a parameter: it can be cloned, searched over and pickled

All of them treat the rows of X as single inputs, so they refuse networks with batchnorm over a batch.
"""

from netsor.sklearn.architecture import Architecture
from netsor.sklearn.estimators import NNGPClassifier, NNGPRegressor
from netsor.sklearn.gram import NNGPGram
from netsor.sklearn.kernels import NNGPKernel
from netsor.sklearn.trained import NTKRegressor

__all__ = ["Architecture", "NNGPClassifier", "NNGPGram", "NNGPKernel", "NNGPRegressor", "NTKRegressor"]
