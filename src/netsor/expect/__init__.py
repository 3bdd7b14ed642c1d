"""Gaussian expectations, each with an error that can be believed.

| where         | what                                                                               |
| ------------- | ---------------------------------------------------------------------------------- |
| `closed/`     | E[f(x) g(y)] and E[f(x)] by formulas, for functions of the language                |
| `hermite/`    | the same for any function of one variable: Hermite series with a Parseval bound    |
| `quadrature/` | rules on a line (for Hermite series) and in up to four dimensions; finding kinks    |
| `batchnorm/`  | batchnorm followed by a homogeneous function: integrals of one and two dimensions   |
| `orthants.py` | orthant probabilities, for products of erf gates                                   |
| `gaps.py`     | E[(f(x) - f(y))^2] of nearly equal x and y, without cancellation                    |
| `points/`     | scrambled Sobol points, and Gaussian vectors that grow, for sampling                |

`hermite` and `quadrature` know nothing of the language's functions, `closed` nothing of the others.
"""
