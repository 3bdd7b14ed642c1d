"""Kernel matrices on disk, computed tile by tile in any order by any number of processes.

| file | what it holds |
| --- | --- |
| tiles | `ns.gp.store`: divide the matrix into tiles, compute the missing ones |
| engines | compute tiles in this process, in several, or on a Dask cluster; sampled ones given landmarks |
| store | `Store`: the matrix as Zarr arrays; read and write tiles; one writer, or several with divided work |
| grid | rows and inputs of each tile |
| input_sets | inputs of any shapes in a Zarr group |
| identity | the facts that determine all numbers of a store; refusal of another kernel |
| checked | a checksum for every file; refusal of damaged files |
| model | `StoredGP`: predictions and likelihoods from a store |
| cholesky | a Cholesky factor of the matrix, block by block, in the store |
| conjugate_gradients | solves and determinants by products with the matrix |
"""
