"""Sample points.

| where         | what                                                                              |
| ------------- | --------------------------------------------------------------------------------- |
| `sobol.py`    | scrambled Sobol points in the unit cube                                           |
| `normal.py`   | standard normal points, handed out dimension by dimension                         |
| `gaussian.py` | factors of a covariance that grows, and samples with that covariance              |
"""
