"""E[f(x) g(y)] for any f, g of one variable, by Hermite (Mehler) series.

| where         | what                                                                              |
| ------------- | --------------------------------------------------------------------------------- |
| `series.py`   | start here: the coefficients of one function at each input, with error bounds     |
| `pairs.py`    | `pair_sum`: E[f(x) g(y)] of two series, with its error                            |
| `jumps.py`    | the singular part of a function with kinks or jumps, in closed form               |
| `planar.py`   | the same for functions of two variables each                                      |
| `many.py`     | series at many variances, by interpolation between a few                          |
| `compiled.py` | the sum over all pairs as a compiled loop                                         |
"""
