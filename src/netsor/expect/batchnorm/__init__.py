"""Batchnorm followed by a positively homogeneous function, and its derivative.

| file                | what it holds                                                     |
| ------------------- | ----------------------------------------------------------------- |
| `second_moments.py` | start here: second moments within a batch and across batches      |
| `tangents.py`       | the same for derivatives of batchnorm, which tangent kernels need |
| `batch_law.py`      | a batch, and rules for 1/|y|^2 and 1/|y| that fit its law         |
"""
