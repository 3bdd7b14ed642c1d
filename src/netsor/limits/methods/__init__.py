"""How an expectation of a product of atoms is computed, one method a file.

| file | what it holds |
| --- | --- |
| `ladder` | the order in which methods are tried |
| `component` | the product whose expectation is asked for, and what is known of its functions |
| `closed` | closed forms, as the arc-cosine kernel |
| `near_parallel` | steep functions of inputs that are equal up to rounding |
| `isserlis` | products of Gaussian variables |
| `series` | Hermite series of any function of one variable |
| `batchnorm` | the paper's integrals for batchnorm, and their derivatives |
| `orthants` | orthant probabilities for products of erf gates |
| `quadrature` | functions of up to four variables |
"""
