"""Closed forms of E[f(x) g(y)] and E[f(x)] for jointly Gaussian x, y.

| where          | what                                                                             |
| -------------- | -------------------------------------------------------------------------------- |
| `forms.py`     | start here: `find` and `find_mean`, the rule of a pair and of a mean             |
| `bodies.py`    | `recognised`: expressions made of functions with closed forms                     |
| `folded.py`    | zero means, one kink at 0: arc-cosine and arcsine kernels and their relatives    |
| `master.py`    | E of a product of two sums of terms (`lang.terms`), at any means                 |
| `laws.py`      | moments on the plane, a half plane and a quadrant, by Stein's lemma              |
| `bivariate.py` | P(u > h, v > k), accurate in the tails                                           |
| `special.py`   | erfcx, the Faddeeva function, Gaussian tails                                     |
| `legendre.py`  | Gauss-Legendre quadrature with fixed nodes                                       |
| `arrays.py`    | an exact determinant; divisions and roots that are safe at zero                  |
"""
