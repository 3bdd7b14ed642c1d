"""Kernels that sample some families of variables at scrambled Sobol points.

| file                | what it holds                                                                    |
| ------------------- | -------------------------------------------------------------------------------- |
| `vectors.py`        | from a program to the vectors that matrices multiply, as sums of products        |
| `recursions.py`     | which of these are linear recursions, and the compiled loop over them            |
| `schedule.py`       | from vectors to a schedule: in which order second moments become known           |
| `records.py`        | what a schedule is made of                                                       |
| `numbers.py`        | what a schedule takes from the inputs: means, data, variances                    |
| `chunks.py`         | how many repeats and points to compute at once; the values at a chunk of points  |
| `moments.py`        | fill the tables of second moments, stage by stage                                |
| `tables.py`         | the tables as one step of the tape, after a pilot run; blocks read from them     |
| `drawing.py`        | samples as steps of the tape, and the state that the runs of a call share        |
| `repeats.py`        | recordings with an axis of repeats, run within memory                            |
| `standard_error.py` | the average of repeats, its standard error, and an error for unseen events       |
| `kernel.py`         | the sampled kernel: more points until the tolerance is reached                   |

                        program, and the families to sample
                                       |
              vectors without index axes       everything else
                         |                             |
                vectors -> schedule                    |
                         |                             |
       numbers -> moments (in chunks)          samples on the tape
                         |                     (drawing)
                      tables                           |
                         +-------------+---------------+
                                       |
                     one recording, with an axis of repeats
                                       |
                     repeats -> standard_error -> kernel

There are two samplers. A schedule fills tables of all second moments of a loop over tokens at once. One step
of the tape for each pair of vectors would take far longer than the arithmetic. But the rows of these tables
are vectors without index axes. Vectors of images or of batchnorm have index axes, and are drawn by steps of
the tape. Both samplers draw from the same points (`netsor.expect.points`) and note heavy points in the same
place.

Glossary
--------
family          Gaussian variables that depend on each other; a family is *drawn* (sampled) or *exact*
form, atom      an affine expression of variables; a function of one or of several forms
vector          what a matrix multiplies or an output reads
part            a product in a vector: constants, sampled atoms, and at most one exact atom of each family
piece           the parts of a vector that are odd in the same families, as a core times factors
core, factor    a sum of parts; an exact atom that all parts of a piece have in common
group           cores that have second moments with each other, in one table
pool            the values of sampled products at the points, which the parts of some groups refer to
step, stage     what becomes known with one vector; steps that do not need each other
recursion       cores that are each a sampled factor times the core before, plus new parts; a *chain* is a
                sequence of these, and *states* are the numbers that its loop keeps at each point
repeat          an independent randomisation of the points; the spread of repeats is the standard error
chunk           repeats, or points of one repeat, that one thread works on
loadings        M in z = M u, where u are the coordinates of the points and z the variables
pilot run       a small run that finds the principal axes, which get the most even dimensions
landmarks       inputs given which all others are drawn, so that the tiles of a matrix are consistent
fixed choices   pivots and axes that later calls reuse, so that a kernel is smooth in its variances
heavy point     a point that contributes much of a second moment: a rare event, or a heavy tail

A GRU from program to number
----------------------------
`ns.kernel(ns.zoo.gru())([sentence_1, sentence_2])`, with T tokens in each sentence:

1. The state is h_t = z_t h_(t-1) + (1 - z_t) e_t. No exact method applies to products of five update
   gates z, so `kernel.SampledKernel` samples their family; the candidates e and the reset gates r stay exact.
2. `vectors.Vectors` finds what the matrices multiply: h_t and r_t h_(t-1), for all t. Multiplied out, h_t is
   a sum of t parts, such as z_3 z_2 (1 - z_1) e_1: sampled atoms times one exact atom.
3. `schedule` takes r_t off as a factor, so both vectors have the core h. It finds that the cores are a
   recursion (`recursions.find_recursions`): each has new parts and z_t times the core before it.
4. `tables.Tables.recorded` puts one step on the tape. When it runs, `numbers` gives means and data, a pilot
   run the principal axes of the update gates, and `moments.Moments` goes through the stages. For token t:
   a. The covariances of the variables in z_t, r_t and e_t with all before them: var_W E[h h'] of cores that
      are known, times E[r r'], plus those of data and biases.
   b. E[e_t e'] and E[r_t r'] in closed form or by Hermite series.
   c. The values of z_t at all points, drawn given those of the tokens before (`chunks.PointChunk`).
   d. E[h_t h'] for all h' so far: averages over the points of the products of gates, with E[e e'] as weights.
5. The blocks v^T h_t of the output are read from the tables. `repeats.Repeats` does this 16 times with points
   of their own; `standard_error.Averages` makes a mean and an error of it. What Hermite series leave out is
   added: `kernel` runs the first repeat again with perturbed steps (`netsor.limits.error_probes`).
"""
