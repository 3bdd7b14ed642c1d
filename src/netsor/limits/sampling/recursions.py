"""Vectors that are linear recursions, as the state of a GRU: h = a h' + b e, with sampled a and b.

Written out, the state after t tokens is a sum of t parts, so the second moments of T states take T^4 products
at each sample point. At one point, though, with C = E[e e'] and everything else given,

    N(x, r) = a_r N(x, r') + b_r C(x, r)        the parts of r with what is new in x
    M(x, r) = a_x M(x', r) + b_x N(x, r)        x with r, where x follows x' and r follows r'

for all rows x and r <= x, which are T^2 products. E[h_x h_r] is the mean of M(x, r) over the points. Only M
for the last row of every chain is kept. The loop is compiled by Numba (the extra `fast`). Which rows follow
which is found in `netsor.limits.sampling.chains`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from netsor.limits.sampling.schedule import Core, Group
from netsor.machine_code import compiled

__all__ = ["AT_ONCE", "in_order", "recursive_sums", "states_shape"]

AT_ONCE = 128  # points of a block: few enough for the cache, many for each start of a loop


def states_shape(group: Group, repeats: int, count: int) -> tuple[int, ...]:
    """(repeats, blocks of points, states, points): M for pairs of a chain and a row; see `Recursion`."""
    size = min(AT_ONCE, count)
    return repeats, -(-count // size), group.states, size


def in_order(group: Group, core: Core) -> np.ndarray:
    """The parts so far chain by chain, as the loop meets them."""
    assert group.recursion is not None
    last = core.rows.stop
    counts = np.diff(np.append(group.starts[:last], core.parts.stop))
    return np.argsort(np.repeat(group.recursion.place[:last], counts), kind="stable")


def recursive_sums(
    group: Group, core: Core, pool: np.ndarray, weights: np.ndarray, states: np.ndarray
) -> np.ndarray:
    """Sums over the points of a new core times each one so far: (repeats, inputs, rows so far).

    weights  (repeats, new parts, parts so far `in_order`): C times the constants of the parts
    states   M for the last row of each chain and every row, which are brought up to date
    """
    recursion, first, last = group.recursion, core.rows.start, core.rows.stop
    assert recursion is not None
    assert (recursion.before[first:last] < first).all()
    chain, place, begin = recursion.chain[:last], recursion.place, recursion.begin
    known = np.bincount(chain[:first], minlength=recursion.chains)
    fresh = np.full(recursion.chains, -1)
    fresh[chain[first:]] = np.arange(first, last)
    starts = np.append(group.starts[:last], core.parts.stop)
    parts = np.zeros(group.size + 1, int)
    parts[place[:last] + 1] = np.diff(starts)
    sums = np.zeros((len(pool), last - first, group.size))
    chains = (chain, begin, known, fresh, place, recursion.room)
    rows = (recursion.before, recursion.factor, starts, group.sampled, np.cumsum(parts))
    _loop()(sums, states, pool, weights, first, chains, rows)
    sums = sums[:, :, place[:last]]
    for x in range(first, last):
        sums[:, x - first, x + 1 :] = sums[:, x + 1 - first :, x]
    return sums


@cache
def _loop() -> Callable[..., Any]:
    def loop(sums, states, pool, weights, first, chains, rows):
        chain, begin, known, fresh, place, room = chains
        before, factor, starts, sampled, column = rows
        repeats, blocks, _, size = states.shape
        last, most = first + sums.shape[1], 1
        for x in range(last):
            most = max(most, starts[x + 1] - starts[x])
        inner = np.empty((most, size))  # N(y, row) for each new part of y, as row goes along a chain
        a, b = np.empty((place.size, size)), np.empty((starts[last], size))  # of all rows, and all parts
        for k in range(repeats):
            for block in range(blocks):
                start, state = block * size, states[k, block]
                length = min(size, pool.shape[2] - start)
                for x in range(last):
                    i, j = place[x], factor[x]
                    if before[x] >= 0:
                        for n in range(length):
                            a[i, n] = pool[k, j, start + n]
                    for p in range(starts[x + 1] - starts[x]):
                        i, j = column[place[x]] + p, sampled[starts[x] + p]
                        for n in range(length):
                            b[i, n] = pool[k, j, start + n]
                for x in range(first, last):
                    for c in range(len(begin)):
                        r = fresh[c]
                        if r > x:  # comes when it is the turn of r
                            continue
                        for turn in range(2):  # r with the known rows of x's chain, x with all of chain c
                            if turn == 0 and (r < 0 or r == x):
                                continue
                            y, d = (r, chain[x]) if turn == 0 else (x, c)
                            here, new, after = place[y], starts[y] - starts[first], before[y] >= 0
                            there = room[chain[y], d] - begin[d]
                            stop = begin[d] + known[d]
                            for at in range(begin[d], stop + (turn == 1 and r >= 0)):
                                m, q, total = there + at, column[at], 0.0
                                if most == 1 and after and begin[d] < at < stop:  # the usual case, in one go
                                    w, mine = weights[k, new, q], column[here]
                                    for n in range(length):
                                        value = a[at, n] * inner[0, n] + w * b[q, n]
                                        inner[0, n] = value
                                        value = a[here, n] * state[m, n] + b[mine, n] * value
                                        state[m, n] = value
                                        total += value
                                    sums[k, y - first, at] += total
                                    continue
                                if after and at == stop:  # M(y', row), which is M(row, y')
                                    state[m] = state[room[c, chain[y]] + known[chain[y]] - 1]
                                for o in range(starts[y + 1] - starts[y]):
                                    for p in range(column[at + 1] - q):
                                        w = weights[k, new + o, q + p]
                                        if p:
                                            for n in range(length):
                                                inner[o, n] += w * b[q + p, n]
                                        elif at > begin[d]:
                                            for n in range(length):
                                                inner[o, n] = a[at, n] * inner[o, n] + w * b[q, n]
                                        else:
                                            for n in range(length):
                                                inner[o, n] = w * b[q, n]
                                    mine = column[here] + o
                                    if o:
                                        for n in range(length):
                                            state[m, n] += b[mine, n] * inner[o, n]
                                    elif after:
                                        for n in range(length):
                                            value = a[here, n] * state[m, n]
                                            state[m, n] = value + b[mine, n] * inner[o, n]
                                    else:
                                        for n in range(length):
                                            state[m, n] = b[mine, n] * inner[o, n]
                                for n in range(length):
                                    total += state[m, n]
                                sums[k, y - first, at] += total
                        if c != chain[x] and (r >= 0 or known[c]):  # M(last of c, x) is M(x, last of c)
                            top = room[chain[x], c] + known[c] - (r < 0)
                            state[room[c, chain[x]] + known[chain[x]]] = state[top]

    return compiled(loop, error_model="numpy", nogil=True, fastmath={"contract", "reassoc", "nsz"})
