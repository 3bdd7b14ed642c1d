"""Integrals against normal densities, on a line and in the plane.

| file                   | what it holds                                                                  |
| ---------------------- | ------------------------------------------------------------------------------ |
| `trapezoid.py`         | a function of one variable times Hermite polynomials: trapezoid rule, panels   |
| `adaptive_cells.py`    | any function of one variable as polynomials on cells, halved where it is rough |
| `hermite_functions.py` | integrands, nodes of the rules on a line, Hermite functions at them            |
| `kinks.py`             | `find_kinks`: where a function of one variable is not smooth                   |
| `plane_rules.py`       | `plane_rule`: rules in the plane, split at lines                               |
| `kink_lines.py`        | `find_lines`: where a function of two variables is not smooth                  |
"""
