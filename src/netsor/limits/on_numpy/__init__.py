"""Kernels on NumPy, with loops compiled by Numba (the extra `fast`) where they pay.

| file | what it holds |
| --- | --- |
| `recording` | the recorded computation of a kernel: a tape for single inputs, a tape for each kind of tile |
| `kernel` | runs a recording: single inputs first, then the tiles on all cores |
| `prepared` | runs a tape: its steps layer by layer, each array dropped after its last use |
| `fused` | elementwise steps of a layer as the source of one loop |
| `compiled_loops` | compiles the source of a loop and keeps its machine code on disk; exp and atan2 |
"""
