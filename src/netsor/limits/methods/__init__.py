"""How an expectation of a product of atoms is computed, one method a file.

| file | what it holds |
| --- | --- |
| `ladder` | the order in which methods are tried: that of the files below |
| `component` | the product whose expectation is asked for, and what is known of its functions |
| `near_parallel` | steep functions of inputs that are equal up to rounding |
| `closed` | one or two atoms with a formula, as the arc-cosine kernel |
| `isserlis` | up to six Gaussian variables |
| `series` | any one or two functions of one form each: Hermite series |
| `batchnorm` | batchnorm with a homogeneous activation: the paper's integrals, and their derivatives |
| `orthants` | up to four erf gates of mean zero: orthant probabilities |
| `quadrature` | two variables a side, of a few inputs: rules and series in the plane |
"""
