"""Pairs of inputs that are nearly equal, where functions are steep: gaps in place of covariances.

| file | what |
| --- | --- |
| `gaps` | the rules: Var(e - f) of forms, E[(h - h')^2] of vectors |
| `search` | which outputs of which inputs depend on nearly equal data |
| `twins` | the kernel of such pairs, from a program of both inputs |
"""
