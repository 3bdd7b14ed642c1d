"""Gaussian expectations, each with a bound on its error.

| file                       | what it holds                                                            |
| -------------------------- | ------------------------------------------------------------------------ |
| `closed/`                  | E[f(x) g(y)] and E[f(x)] by formulas, for functions of the language      |
| `hermite/`                 | the same for any function of one variable: Hermite series                |
| `quadrature/`              | rules on a line and in the plane; searches for kinks of functions        |
| `batchnorm/`               | batchnorm followed by a homogeneous function, and its derivative         |
| `orthant_probabilities.py` | P(all x_i > 0), for products of erf gates                                |
| `points/`                  | scrambled Sobol points, and Gaussian vectors that grow, for sampling     |

`hermite` and `quadrature` do not know the functions of the language. `hermite` takes bivariate normal
probabilities from `closed`, which uses no other folder.
"""
