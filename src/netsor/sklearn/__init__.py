"""scikit-learn's interfaces to infinite-width networks. Needs the extra `sklearn`.

| file | what it holds |
| --- | --- |
| estimators | `NNGPRegressor`, `NNGPClassifier`: exact Gaussian-process inference |
| trained | `NTKRegressor`: the ensemble of networks under gradient descent |
| kernels | `NNGPKernel`: a kernel for `sklearn.gaussian_process`, for `SVC` and `KernelRidge` |
| gram | `NNGPGram`: the kernel matrix for estimators with "precomputed" kernels |
| architecture | `Architecture`: a network as a parameter that can be cloned, searched over and pickled |

All of them treat each row of X as one input, so they refuse networks with batchnorm over a batch.
"""

from netsor.sklearn.architecture import Architecture
from netsor.sklearn.estimators import NNGPClassifier, NNGPRegressor
from netsor.sklearn.gram import NNGPGram
from netsor.sklearn.kernels import NNGPKernel
from netsor.sklearn.trained import NTKRegressor

__all__ = ["Architecture", "NNGPClassifier", "NNGPGram", "NNGPKernel", "NNGPRegressor", "NTKRegressor"]
