"""Pictures of networks and their limits. Needs the extra `plots` (matplotlib).

| picture | of |
| --- | --- |
| `kernel_map` | a kernel matrix, with a label for each row: tokens, inputs, pixels |
| `spectrum` | its eigenvalues |
| `angle` | the kernel of vectors over their angle |
| `correlation_map` | what becomes of a correlation, layer by layer |
| `phase_diagram` | order and chaos: where nearby inputs come together, and where they part |
| `samples` | functions drawn from a prior or posterior: bands over a line, images over a plane |
| `training` | an ensemble in training: predictions and loss over time |
| `convergence` | distances of finite networks to the limit |

| file | what it holds |
| --- | --- |
| `curves`, `maps`, `phases`, `processes` | the pictures |
| `moving` | which variances a phase diagram moves |
| `panels` | pieces that several pictures and the paper's figures share |
| `style` | colours, sizes and `Picture` |

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
