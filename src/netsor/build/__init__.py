"""The front end: networks as Python functions, layers, and tracing of networks to programs.

| file | what it holds |
| --- | --- |
| `network` | `Network`, `ns.network` and `ns.program`; repeated runs on traced values must agree |
| `joint_program` | one program for a set of inputs; inputs of one shape share its statements |
| `trace` | the nodes of one run, in order, and matrix products |
| `graph_nodes` | traced values: `Node`, its operators, and its behaviour in NumPy |
| `readouts` | outputs `v @ h` and their linear combinations |
| `indexing` | checks of `h[...]` and shapes |
| `graph_to_program` | from traced values to statements of the language |
| `parameters` | `ns.Matrix` and `ns.Vector` |
| `array_functions` | `ns.stack`, `ns.mean`, `ns.softmax`, `ns.nonlin` and other functions of blocks |
| `activations` | activation functions with the names of neural-tangents |
| `layers` | layers, each with its parameters |
| `user_functions` | functions of the user, and tests that they must pass |
| `dependencies` | all objects that a function depends on, to detect changes |
| `source_lines` | errors that point at the user's line |
| `tangent_network` | `ns.tangent`, the derivative of a network |
| `network_html` | a network in a notebook |
"""

from netsor.build import activations, array_functions, layers
from netsor.build.activations import *  # noqa: F403
from netsor.build.array_functions import *  # noqa: F403
from netsor.build.array_functions import max as max
from netsor.build.array_functions import min as min
from netsor.build.array_functions import sum as sum
from netsor.build.layers import *  # noqa: F403
from netsor.build.network import Network, network, program
from netsor.build.parameters import Matrix, Vector
from netsor.build.tangent_network import tangent
from netsor.lang import functions
from netsor.lang.functions import *  # noqa: F403
from netsor.lang.functions import abs_ as abs  # noqa: F401

# Without abs, max, min and sum: `from netsor import *` must not replace those of Python.
__all__ = ["Matrix", "Network", "Vector", "network", "program", "tangent"]
__all__ += functions.__all__
__all__ += activations.__all__
__all__ += array_functions.__all__
__all__ += layers.__all__
