"""PyTorch models as networks.

| file | what it holds |
| --- | --- |
| `from_torch` | start here: a model is exported at two widths and read |
| `graph` | exports a model and walks its graph |
| `laws` | the laws of its parameters |
| `layers` | rules for calls of layers that are read whole |
| `operations` | rules for operations of the graph |
"""

from netsor.models.pytorch.from_torch import from_torch

__all__ = ["from_torch"]
