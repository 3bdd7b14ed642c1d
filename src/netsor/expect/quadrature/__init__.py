"""Integrals against Gaussian densities, on a line and in up to four dimensions.

| where       | what                                                                                |
| ----------- | ----------------------------------------------------------------------------------- |
| `line.py`   | a function of one variable times Hermite polynomials: trapezoid rule, panels        |
| `splits.py` | panels that hold a kink                                                             |
| `cells.py`  | a function of which nothing is known, as polynomials on cells                       |
| `nodes.py`  | nodes of the rules on a line, Hermite functions at them                             |
| `kinks.py`  | `find_kinks`: where a function of one variable is not smooth                        |
| `space.py`  | `gaussian_expectation`: any function of up to four variables                        |
| `frames.py` | tensor rules in a ball, cut at planes                                               |
| `planes.py` | `find_planes`: where a function of a few variables is not smooth                    |
"""
