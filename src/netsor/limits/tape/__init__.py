"""Recording: computations as lists of steps on arrays that have shapes but no values.

| file | what it holds |
| --- | --- |
| `tape` | a tape: steps in order, what they read, merging of equal steps |
| `traced` | arrays without values, and the functions of the array API on them |
| `formulas` | the operations inside a closed form, recorded once for all its uses |
| `graph` | tapes as one graph whose nodes are sorted by operation, for libraries that run it as a whole |
| `batches` | the schedule of a graph: equal operations as a batch, repeated ones as a loop |
"""
