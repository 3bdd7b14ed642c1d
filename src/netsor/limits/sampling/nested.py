"""Linear recursions whose new parts hold others, as the share of the update gate in the tangent of a GRU.

    B_x = a_x B_x' + g_x e_x K_x + sum_p b_p F_p         a row x follows x', and holds
    K_x = c_x K_x' + sum_q d_q f_q                       with a, b, c, d and g sampled, e, F and f exact

There K is the state of the GRU and e the tangent of its gate. The atoms of K are independent of e, and F is
an atom of the one kind times one of the other, F = e_p f_p. Written out, K_x is a sum of t parts, so a step
of B has t parts of its own and all second moments take T^4 products at each sample point. At one point,
though, what K has with itself and with single atoms is known by recursions of their own,

    E[f K_r]   = c_r E[f K_r'] + sum_q d_q E[f f_q]                     for f_q and f_p that are new in x
    E[K_x f_p] = c_x E[K_x' f_p] + sum_q d_q E[f_q f_p]                 for all f_p so far
    E[K_x K_r] = c_x E[K_x' K_r] + sum_q d_q E[f_q K_r]

and with these as weights the moments of B are as those of any recursion (`recursions`): T^2 products. Kept
are those of the last row of every chain: E[B_x B_r], E[K_x K_r] for every row r, and E[K_x f_p] for every p.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from netsor.limits.sampling.schedule import Core, Group
from netsor.machine_code import compiled

__all__ = ["NestedWeights", "nested_sums", "nested_weights"]

NestedWeights = tuple[np.ndarray, np.ndarray]


def nested_weights(
    group: Group, core: Core, constants: tuple[np.ndarray | None, np.ndarray | None], pairs: list[np.ndarray]
) -> NestedWeights:
    """Expectations of exact atoms of a new core times those so far: (repeats, new, so far) of

    - the parts of B: e with e', and F with F'; of what a held core is multiplied with, e alone
    - the atoms f of the parts of K and then of B; with the constants of the former
    """
    inner, repeats = group.inner, len(pairs[0])
    assert inner is not None
    own, within = constants
    parts, held = np.arange(core.parts.stop), np.arange(core.inner.stop)
    new, new_held = parts[core.parts], held[core.inner]
    families = {f for f in (*group.atoms, *inner.atoms) if f not in inner.families}
    inside = np.ones((repeats, len(new_held) + len(new), len(held) + len(parts)))
    for f in families:
        atoms = [p.atoms.get(f, np.zeros(len(p.sampled), int)) for p in (inner, group)]
        rows, columns = (
            np.concatenate([atoms[0][q], atoms[1][p]]) for q, p in ((new_held, new), (held, parts))
        )
        inside *= np.take(pairs[f][:, rows], columns, axis=2)
    plain = ~inner.holds
    both = plain[new, None] & plain[parts]
    outside = np.where(both, inside[:, len(new_held) :, len(held) :], 1.0)
    for f in inner.families & group.atoms.keys():
        outside *= np.take(pairs[f][:, group.atoms[f][new]], group.atoms[f][parts], axis=2)
    if own is not None:
        outside *= own[new, None] * own[parts]
    if within is not None:
        inside[:, : len(new_held)] *= within[new_held, None]
        inside[:, :, : len(held)] *= within[held]
    return outside, inside


def nested_sums(
    group: Group, core: Core, pool: np.ndarray, weights: NestedWeights, states: np.ndarray
) -> np.ndarray:
    """Sums over the points of a new core times each one so far: (repeats, inputs, rows so far).

    states   what is kept for the last row of each chain, which is brought up to date
    """
    recursion, inner, first, last = group.recursion, group.inner, core.rows.start, core.rows.stop
    assert recursion is not None
    assert inner is not None
    assert (recursion.before[first:last] < first).all()
    order = np.argsort(recursion.place, kind="stable")
    rows = (
        recursion.before,
        recursion.factor,
        np.append(group.starts[:last], core.parts.stop),
        group.sampled,
    )
    held = (inner.factor, np.append(inner.starts[:last], core.inner.stop), inner.sampled, inner.holds)
    chains = (recursion.chain, np.append(recursion.begin, group.size), order)
    sums = np.zeros((len(pool), last - first, last))
    _loop()(sums, states, pool, *weights, first, rows, held, chains)
    for x in range(first, last):
        sums[:, x - first, x + 1 :] = sums[:, x + 1 - first :, x]
    return sums


@cache
def _loop() -> Callable[..., Any]:
    def loop(sums, states, pool, outside, inside, first, rows, held, chains):
        before, factor, starts, sampled = rows
        scale, within, atoms, holds = held  # of K: its factors, where its parts begin, their sampled rows
        chain, begin, order = chains
        repeats, blocks, _, size = states.shape
        count, last, new, fresh = len(before), first + sums.shape[1], starts[first], within[first]
        known, most = within[last], 1
        for x in range(last):
            most = max(most, starts[x + 1] - starts[x], within[x + 1] - within[x])
        with_b = np.empty((most, size))  # of each new part of B, its moments with B_r as r goes along a chain
        with_k = np.empty((most, size))  # of its atom f_p, those with K_r
        inner = np.empty((most, size))  # of each new f_q, those with K_r
        for k in range(repeats):
            for block in range(blocks):
                start, state = block * size, states[k, block]
                n = min(size, pool.shape[2] - start)
                for x in range(first, last):
                    c, a, s = chain[x], factor[x], scale[x]
                    ours = c * count
                    theirs, its = len(begin) * count - count + ours, 2 * (len(begin) - 1) * count
                    for d in range(len(begin) - 1):
                        end = -1
                        for at in range(begin[d], begin[d + 1]):
                            r = order[at]
                            if r > x:
                                break
                            end = r
                            b, kk, e, t = ours + r, theirs + r, factor[r], scale[r]
                            if r == x and a >= 0:  # M(x', x), which is M(x, x')
                                for i in range(n):
                                    state[b, i] = state[ours + before[x], i]
                                    state[kk, i] = state[theirs + before[x], i]
                            for i in range(n):
                                state[kk, i] = pool[k, s, start + i] * state[kk, i] if s >= 0 else 0.0
                            for q in range(within[x], within[x + 1]):
                                m, y = q - within[x], atoms[q]
                                for i in range(n):
                                    inner[m, i] = pool[k, t, start + i] * inner[m, i] if t >= 0 else 0.0
                                for j in range(within[r], within[r + 1]):
                                    w, z = inside[k, q - fresh, j], atoms[j]
                                    for i in range(n):
                                        inner[m, i] += w * pool[k, z, start + i]
                                for i in range(n):
                                    state[kk, i] += pool[k, y, start + i] * inner[m, i]
                            for p in range(starts[x], starts[x + 1]):
                                if holds[p]:
                                    continue
                                m = p - starts[x]
                                for i in range(n):
                                    with_k[m, i] = pool[k, t, start + i] * with_k[m, i] if t >= 0 else 0.0
                                for j in range(within[r], within[r + 1]):
                                    w, z = inside[k, known - fresh + p - new, j], atoms[j]
                                    for i in range(n):
                                        with_k[m, i] += w * pool[k, z, start + i]
                            for p in range(starts[r], starts[r + 1]):
                                if holds[p]:
                                    continue
                                kf, m = its + c * len(holds) + p, p - starts[x]
                                for i in range(n):
                                    state[kf, i] = pool[k, s, start + i] * state[kf, i] if s >= 0 else 0.0
                                for q in range(within[x], within[x + 1]):
                                    w, y = inside[k, q - fresh, known + p], atoms[q]
                                    for i in range(n):
                                        state[kf, i] += w * pool[k, y, start + i]
                                if r == x:
                                    for i in range(n):
                                        state[kf, i] = with_k[m, i]
                            for i in range(n):
                                state[b, i] = pool[k, a, start + i] * state[b, i] if a >= 0 else 0.0
                            for o in range(starts[x], starts[x + 1]):
                                m, y = o - starts[x], sampled[o]
                                for i in range(n):
                                    with_b[m, i] = pool[k, e, start + i] * with_b[m, i] if e >= 0 else 0.0
                                for p in range(starts[r], starts[r + 1]):
                                    w, z, kf = outside[k, o - new, p], sampled[p], its + c * len(holds) + p
                                    if holds[o]:
                                        kf = kk if holds[p] else kf
                                        for i in range(n):
                                            with_b[m, i] += w * pool[k, z, start + i] * state[kf, i]
                                    elif holds[p]:
                                        for i in range(n):
                                            with_b[m, i] += w * pool[k, z, start + i] * with_k[m, i]
                                    else:
                                        for i in range(n):
                                            with_b[m, i] += w * pool[k, z, start + i]
                                for i in range(n):
                                    state[b, i] += pool[k, y, start + i] * with_b[m, i]
                            total = 0.0
                            for i in range(n):
                                total += state[b, i]
                            sums[k, x - first, r] += total
                        if d != c and end >= 0:  # M(last of d, x) is M(x, last of d)
                            for i in range(n):
                                state[d * count + x, i] = state[ours + end, i]
                                state[theirs + (d - c) * count + x, i] = state[theirs + end, i]
                            for p in range(starts[x], starts[x + 1]):
                                for i in range(n):
                                    state[its + d * len(holds) + p, i] = with_k[p - starts[x], i]

    return compiled(loop, error_model="numpy", nogil=True, fastmath={"contract", "reassoc", "nsz"})
