"""Pictures of networks and their limits. Needs the extra `plots` (matplotlib).

| file | what it holds |
| --- | --- |
| `maps` | `kernel_map`, and what is computed from a kernel matrix before it is drawn |
| `curves` | `spectrum`, `angle`, `correlation_map`, `convergence` |
| `phases` | `phase_diagram`, `sensitivity` |
| `processes` | `samples`, `training` |
| `style`, `pictures.mplstyle` | colours, sizes and `Picture` |

Each returns a `Picture`, which a notebook shows and `save` writes. Its caption says what is drawn, in which
units; colours are told apart by colour-blind readers.
"""

from netsor.plots.curves import angle, convergence, correlation_map, spectrum
from netsor.plots.maps import kernel_map
from netsor.plots.phases import phase_diagram, sensitivity
from netsor.plots.processes import samples, training
from netsor.plots.style import Picture

__all__ = [
    "Picture",
    "angle",
    "convergence",
    "correlation_map",
    "kernel_map",
    "phase_diagram",
    "samples",
    "sensitivity",
    "spectrum",
    "training",
]
