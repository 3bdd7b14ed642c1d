"""The command line.

| file | what it holds |
| --- | --- |
| `app` | the application object, and how errors reach the user |
| `shared_options` | arguments and options that several commands have |
| `loading` | programs, networks and data from files |
| `programs` | `netsor show`, `check`, `tangent`, `limit` |
| `kernel_commands` | `netsor kernel`, `plan`, `simulate`, `verify`, `train` |
| `stores` | `netsor status`, `fit`, `predict` |
| `pictures` | `netsor plot`, `report` |
| `reproduce` | `netsor reproduce rnn`, `kernels`, `zoo`, `ntk` |

Exit codes: 0 done; 1 an error, which is printed without a traceback; 2 wrong usage; 3 `verify` found that
the network does not agree with its limit; 130 interrupted.
"""

from netsor.cli import kernel_commands, pictures, programs, reproduce, stores
from netsor.cli.app import app

__all__ = ["app", "kernel_commands", "pictures", "programs", "reproduce", "stores"]
