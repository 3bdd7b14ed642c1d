"""Joint Gaussian variables at quasi-random sample points.

| file                   | what it holds                                                                 |
| ---------------------- | ----------------------------------------------------------------------------- |
| `sobol.py`             | scrambled Sobol points, uniform and normal; any dimensions of any points      |
| `pivoted_cholesky.py`  | the factor of a covariance matrix that grows by rows                          |
| `principal_axes.py`    | which directions of the noise use the first, most even dimensions             |
| `loadings.py`          | variables as linear combinations of the coordinates of points                 |
| `landmark_loadings.py` | the same for inputs drawn given a few landmarks, whatever the other inputs    |

Variables of covariance C are z = M u, where u are the coordinates (*dimensions*) of the points, and the
loadings M, with M M^T = C, are a pivoted Cholesky factor times a rotation to principal axes.
"""
