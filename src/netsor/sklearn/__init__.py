"""scikit-learn's interfaces to infinite-width networks. Needs the extra `sklearn`.

| file | what it holds |
| --- | --- |
| estimators | `NNGPRegressor`, `NNGPClassifier`: exact inference; `NTKRegressor`: trained networks |
| kernels | `NNGPKernel`: a kernel for `sklearn.gaussian_process`; `NNGPGram`: a precomputed one |
| architecture | `Architecture`: a network as a parameter that can be cloned, searched over and pickled |

All of them treat each row of X as one input, so they refuse networks with batchnorm over a batch.
"""

from netsor.sklearn.architecture import Architecture
from netsor.sklearn.estimators import NNGPClassifier, NNGPRegressor, NTKRegressor
from netsor.sklearn.kernels import NNGPGram, NNGPKernel

__all__ = ["Architecture", "NNGPClassifier", "NNGPGram", "NNGPKernel", "NNGPRegressor", "NTKRegressor"]
