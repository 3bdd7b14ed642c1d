"""The rules of the paper (Section 5): how means and covariances of a program's vectors follow.

| file             | what it holds                                                             |
| ---------------- | ------------------------------------------------------------------------- |
| `input`          | mean and covariance of inputs and embedded data                           |
| `lincomb`        | mean, covariance and variance of affine combinations of G-vars            |
| `matmul`         | covariance of products with a matrix, convolutions included               |
| `nonlin`         | E[e] and E[e f] of arbitrary expressions                                  |
| `moment`         | limits of C-vars                                                          |
| `output`         | second moments of outputs                                                 |
| `decomposition`  | how E[e f] decomposes into simpler expectations; `nonlin` records it      |
| `rewriting`      | the equations between expressions that `decomposition` uses               |
| `setting`        | a program, the shapes of its inputs, and what is sampled                  |
| `recorder`       | how rules ask for each other, and record the steps on a tape              |
| `pairs`          | arrays over inputs and over pairs of inputs                               |
| `affine`         | which expressions are affine in G-vars, and their terms                   |
| `families`       | which G-vars depend on each other                                         |
| `atoms`          | functions of Gaussian forms, and products of them                         |
| `forms`          | expressions as sums of products of atoms                                  |
| `questions`      | questions about expressions, each answered only once                      |
"""
