"""Closed forms of E[f(x) g(y)] and E[f(x)] for jointly Gaussian x, y.

| where          | what                                                                             |
| -------------- | -------------------------------------------------------------------------------- |
| `forms.py`     | start here: `find` and `find_mean`, the rule of a pair and of a mean             |
| `folded.py`    | zero means, one kink at 0: arc-cosine and arcsine kernels and their relatives    |
| `terms.py`     | functions as sums of terms p(x) exp(rate x) 1[u > knot]                           |
| `master.py`    | E of a product of two such sums, at any means                                    |
| `laws.py`      | moments on the plane, a half plane and a quadrant, by Stein's lemma              |
| `bivariate.py` | P(u > h, v > k), accurate in the tails                                           |
| `special.py`   | erfcx, the Faddeeva function, Gaussian tails                                     |
| `legendre.py`  | Gauss-Legendre quadrature with fixed nodes                                       |
| `arrays.py`    | an exact determinant; divisions and roots that are safe at zero                  |
"""
