"""Sample points.

| where         | what                                                                              |
| ------------- | --------------------------------------------------------------------------------- |
| `sobol.py`    | scrambled Sobol points in the unit cube                                           |
| `normal.py`   | standard normal points, handed out dimension by dimension                         |
| `gaussian.py` | factors of a covariance that grows                                                |
| `axes.py`     | which directions get the first dimensions                                         |
| `loadings.py` | joint Gaussian variables at the points: the one way to draw them                  |
"""
