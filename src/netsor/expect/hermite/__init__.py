"""E[f(x) g(y)] for any f, g of one variable, by Hermite (Mehler) series.

| file                        | what it holds                                                               |
| --------------------------- | --------------------------------------------------------------------------- |
| `expansion.py`              | start here: the coefficients of a function at each input, with error bounds |
| `mehler.py`                 | `pair_sum`: E[f(x) g(y)] by Mehler's formula, with its error                |
| `singularities.py`          | the singular part of a function with kinks or jumps, in closed form         |
| `two_variables.py`          | functions of two variables each: rules in the plane, and series             |
| `variance_interpolation.py` | series at many variances, by interpolation between a few                    |
"""
