"""Batchnorm followed by a positively homogeneous function, and its derivative.

| where          | what                                                                             |
| -------------- | -------------------------------------------------------------------------------- |
| `integrals.py` | start here: second moments within a batch and across batches                     |
| `tangents.py`  | the same for derivatives of batchnorm, which tangent kernels need                |
| `rules.py`     | the law of a batch, and sums of exponentials for 1/q and q^(-1/2) that suit it    |
"""
