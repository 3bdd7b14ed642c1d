"""Batchnorm followed by a positively homogeneous function, and its derivative.

| file                | what it holds                                                     |
| ------------------- | ----------------------------------------------------------------- |
| `second_moments.py` | start here: second moments within a batch and across batches      |
| `tangents.py`       | the same for derivatives of batchnorm, which tangent kernels need |
| `batch_law.py`      | the law of a batch, and rules for q^-1 and q^(-1/2) that fit it   |
"""
