"""Models of JAX, Flax, Equinox and Keras as networks.

| file | what it holds |
| --- | --- |
| `from_jax` | start here: a model is traced to a jaxpr at two widths and read |
| `graph` | traces a model and walks its jaxpr |
| `laws` | the laws of its parameters |
| `operations` | rules for primitives of the jaxpr |
"""

from netsor.models.jaxpr.from_jax import from_equinox, from_flax, from_jax, from_keras

__all__ = ["from_equinox", "from_flax", "from_jax", "from_keras"]
