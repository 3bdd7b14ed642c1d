"""Kernels that sample some families of variables at scrambled Sobol points.

| file            | what it holds                                                                        |
| --------------- | ------------------------------------------------------------------------------------ |
| `vectors.py`    | from a program to the vectors that matrices multiply, as sums of products            |
| `recursions.py` | cores of vectors: which are linear recursions, and the compiled loop over them       |
| `variables.py`  | rows of Gaussian variables and exact atoms; their means, data and variances          |
| `schedule.py`   | from vectors to a schedule: in which order second moments become known               |
| `chunks.py`     | how many repeats and points to compute at once; the values at a chunk of points      |
| `tables.py`     | the tables of second moments as one step of the tape, filled stage by stage          |
| `drawing.py`    | samples as steps of the tape; what the runs of a call share, such as heavy points    |
| `kernel.py`     | repeats within memory, their mean and standard error, until the tolerance is reached |

                 program, and the families to sample
                                |
       vectors without index axes       everything else
                  |                             |
         vectors -> schedule                    |
                  |                             |
         tables (in chunks)            samples on the tape
                  |                         (drawing)
                  +-------------+---------------+
                                |
              one recording, with an axis of repeats
                                |
              kernel: mean of repeats, standard error

There are two samplers. A schedule fills tables of all second moments of a loop over tokens at once: one step
of the tape for each pair of vectors would take far longer than the arithmetic. But the rows of these tables
are vectors without index axes. Vectors of images or of batchnorm have index axes, and are drawn by steps of
the tape. Both samplers draw from the same points (`netsor.expect.points`) and note heavy points together.

A vector is a sum of *parts*: a number times sampled atoms times at most one exact atom of each family,

    E[h h'] = sum_pq c_p c_q mean(sampled_p sampled_q) prod_families E[atom_p atom_q].

If all parts of each vector have the same atom of a family (an output gate), that atom is a *factor*. What
remains is the *core*, which several vectors may share: h and r h in a GRU.

Glossary
--------
family, form    Gaussian variables that depend on each other, *drawn* or *exact*; an affine combination
vector          what a matrix multiplies or an output reads: a sum of *pieces*, each a core times factors,
                which are odd in different families and so have no second moments with each other
group           cores that have second moments with each other, in one table; a *pool* has sampled values
step, stage     what becomes known with one vector; steps that do not need each other
recursion       cores that are each a sampled factor times the core before, plus new parts; a *chain* is a
                sequence of these, and *states* are the numbers that its loop keeps at each point
repeat, chunk   an independent randomisation of the points; repeats, or points of one, for one thread
loadings        M in z = M u, where u are the coordinates of the points and z the variables
pilot run       a small run that finds the principal axes, which get the most even dimensions
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
4. `tables.Tables.recorded` puts one step on the tape. When it runs, `variables.Numbers` gives means and data,
   a pilot run the principal axes of the update gates, and `tables.Moments` goes through the stages. For t:
   a. The covariances of the variables in z_t, r_t and e_t with all before them: var_W E[h h'] of cores that
      are known, times E[r r'], plus those of data and biases.
   b. E[e_t e'] and E[r_t r'] in closed form or by Hermite series.
   c. The values of z_t at all points, drawn given those of the tokens before (`chunks.PointChunk`).
   d. E[h_t h'] for all h' so far: averages over the points of the products of gates, with E[e e'] as weights.
5. The blocks v^T h_t of the output are read from the tables. `kernel.Repeats` does this 16 times with points
   of their own; `kernel.Averages` makes a mean and an error of it. What Hermite series leave out is added:
   `kernel` runs the first repeat again with perturbed steps (`netsor.limits.error_probes`).
"""
