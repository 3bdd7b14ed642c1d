"""Kernels on JAX: traced, compiled and differentiated.

| file | what it holds |
| --- | --- |
| `kernel` | a kernel matrix under `jax.jit`, `jax.grad` and `jax.vmap`, in tiles if it is large |
| `rolled` | the values of a recorded graph: equal steps as one batch, repeated ones as one `jax.lax.scan` |
| `differences` | kernels that JAX cannot trace: callbacks to NumPy, with derivatives by differences |
"""
