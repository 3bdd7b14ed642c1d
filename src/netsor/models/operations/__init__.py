"""Array operations of models, on values whose axes are products of finite and infinite factors.

| file | what it holds |
| --- | --- |
| elementwise, functions, masks | sums, products, coordinatewise functions, dropout |
| products | products of values with parameters, and with each other |
| windows | convolution and pooling |
| reductions | sums, means, softmax, normalisations |
| shapes, nodes | transposes, reshapes, slices, concatenations |
| parameters, codes | parameters as matrices and vectors; numbers that vary along a width |
| outputs | sums of readouts, and the results of a model |
"""
