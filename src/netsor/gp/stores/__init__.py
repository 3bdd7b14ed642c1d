"""Kernel matrices on disk: computed tile by tile, by anyone, in any order, and never lost.

| idea | where |
| --- | --- |
| `ns.gp.store`: who computes the tiles (this process, several, Dask, an array job) | tiles, worker |
| solves: blocks of a Cholesky factor, conjugate gradients, predictions | cholesky, gradients, model |
| the matrix as Zarr arrays: which tiles are there, reading and writing them | store |
| every file with its checksum; what is damaged is refused | checksums, checked |
| which rows and inputs a tile has | grid |
| inputs of any shapes in a Zarr group | inputs |
| what decides every number of a store, and how another kernel is refused | identity |
| kernels that are sampled: parts with the landmarks of a store | landmarks |
| clusters of Dask | dask |
| one writer, or several that have divided the work | lock |
"""
