"""Closed forms of E[f(x) g(y)] and E[f(x)] for jointly Gaussian x, y.

| file                   | what it holds                                                               |
| ---------------------- | --------------------------------------------------------------------------- |
| `registry.py`          | start here: `find` and `find_mean`, the closed form of a pair and of a mean |
| `erf.py`               | erf at any means                                                            |
| `recognition.py`       | `recognised`: sums and products of functions that have closed forms         |
| `arc_cosine.py`        | zero means, one kink at 0: arc-cosine and arcsine kernels, gelu             |
| `trigonometric.py`     | sin, cos, gabor and their derivatives, by the characteristic function       |
| `polynomials.py`       | polynomials, alone and under a Gaussian bell: Mehler's series, which ends   |
| `exp_polynomials.py`   | sums of terms p(x) exp(a x - b x^2) 1[x > k] (`lang.exp_terms`), at any means   |
| `truncated_moments.py` | moments on the plane, a half plane and a quadrant, by Stein's lemma         |
| `bivariate_normal.py`  | P(u > h, v > k), accurate in the tails                                      |
| `special_functions.py` | erfcx, the Faddeeva function, Gaussian tails                                |
| `gauss_legendre.py`    | Gauss-Legendre quadrature with fixed nodes                                  |
| `arrays.py`            | an exact determinant; divisions and roots that are safe at zero             |
"""
