"""Vectors that are linear recursions, as the state of a GRU: h = a h' + b e, with sampled a and b.

Written out, the state after t tokens is a sum of t parts, so the second moments of T states take T^4 products
at each sample point. At one point, though, with C = E[e e'] and everything else given,

    N(x, r) = a_r N(x, r') + b_r C(x, r)        the parts of r with what is new in x
    M(x, r) = a_x M(x', r) + b_x N(x, r)        x with r, where x follows x' and r follows r'

for all rows x and r <= x, which are T^2 products. E[h_x h_r] is the mean of M(x, r) over the points. Only M
for the last row of every chain is kept. The loop is compiled by Numba (the extra `fast`); without it, and
where there is little to gain, vectors are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from netsor.limits.on_numpy.loops import is_available
from netsor.limits.recursion.forms import Atom
from netsor.limits.sampling.schedule import Core, Group

__all__ = ["Follows", "find_recursions", "recursive_sums"]

AT_ONCE = 64  # points: what a loop works on stays in the cache
GAIN = 8  # how many products of written-out parts cost as much as one step of the loop

CoreKey = tuple[tuple[tuple[Any, ...], ...], int]  # of each part its constants, row and atoms; the inputs


@dataclass(frozen=True)
class Follows:
    """A core is `factor` times the core `before`, and its `own` parts (by their numbers)."""

    before: CoreKey
    factor: Atom
    own: tuple[int, ...]


def find_recursions(cores: Sequence[CoreKey], room: int) -> dict[CoreKey, Follows]:
    """Which cores of a group follow which, if it is worth it; no two follow the same one.

    room   numbers that may be kept for each sample point, if that takes more than written-out parts
    """
    if not is_available():
        return {}
    known: dict[Hashable, CoreKey] = {(frozenset(parts), n): (parts, n) for parts, n in cores}
    found: dict[CoreKey, Follows] = {}
    followed: set[CoreKey] = set()
    for core in cores:
        options = [f for f in _options(core, known) if f.before not in followed]
        if options:
            found[core] = min(options, key=lambda f: len(f.own))
            followed.add(found[core].before)
    return found if _is_worth_it(cores, found, room) else {}


def _options(core: CoreKey, known: dict[Hashable, CoreKey]) -> list[Follows]:
    """Every way to see a core as a factor times another one and something new."""
    parts, n = core
    firsts = {row[0]: None for _, row, _ in parts if isinstance(row, tuple) and row}
    options = []
    for factor in firsts:
        inside = [isinstance(row, tuple) and row[:1] == (factor,) for _, row, _ in parts]
        own = tuple(k for k, is_in in enumerate(inside) if not is_in)
        rest = [(c, row[1:], e) for (c, row, e), is_in in zip(parts, inside, strict=True) if is_in]
        before = known.get((frozenset(rest), n))
        if before is not None and own:
            options.append(Follows(before, factor, own))
    return options


def _is_worth_it(cores: Sequence[CoreKey], found: dict[CoreKey, Follows], room: int) -> bool:
    """Whether a loop over rows takes less time than products of all parts, and has the memory."""
    rows = sum(n for _, n in cores)
    parts = sum(n * len(p) for p, n in cores)
    own = sum(n * len(found[p, n].own if (p, n) in found else p) for p, n in cores)
    chains = rows - sum(n for _, n in found)
    return parts**2 > GAIN * (rows + own) ** 2 and chains * rows <= max(parts, room)


def recursive_sums(
    group: Group, core: Core, pool: np.ndarray, weights: np.ndarray, state: np.ndarray
) -> np.ndarray:
    """Sums over the points of a new core times each one so far: (repeats, inputs, rows so far).

    weights  (repeats, new parts, parts so far): C times the constants of the parts
    state    (repeats, chains, rows, points): M for the last row of each chain, which is brought up to date
    """
    recursion, first, last = group.recursion, core.rows.start, core.rows.stop
    assert recursion is not None
    heads = np.full(recursion.chains, -1)
    heads[recursion.chain[:first]] = np.arange(first)
    starts = np.append(group.starts[:last], core.parts.stop)
    sums = np.zeros((len(pool), last - first, last))
    tables = (recursion.before, recursion.factor, recursion.chain, starts, group.sampled, heads)
    _loop()(sums, state, pool, weights, *tables, AT_ONCE)
    for x in range(first, last):
        sums[:, x - first, x + 1 :] = sums[:, x + 1 - first :, x]
    return sums


@cache
def _loop() -> Callable[..., Any]:
    import numba  # type: ignore[import-not-found]

    @numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"contract", "reassoc", "nsz"})
    def loop(sums, state, pool, weights, before, factor, chain, starts, sampled, heads, size):
        repeats, chains, _, count = state.shape
        new, last = sums.shape[1:]
        first = last - new
        most = 0
        for x in range(first, last):
            most = max(most, starts[x + 1] - starts[x])
        inner, tops = np.empty((most, last, size)), np.empty_like(heads)
        for k in range(repeats):
            for start in range(0, count, size):
                stop = min(start + size, count)
                length = stop - start
                tops[:] = heads
                for x in range(first, last):
                    own = chain[x]
                    for r in range(x + 1):
                        # N(x, r) for each new part of x
                        for o in range(starts[x + 1] - starts[x]):
                            row, to = starts[x] - starts[first] + o, inner[o, r]
                            q = starts[r]
                            w, b = weights[k, row, q], pool[k, sampled[q], start:stop]
                            if before[r] >= 0:
                                a, old = pool[k, factor[r], start:stop], inner[o, before[r]]
                                for n in range(length):
                                    to[n] = a[n] * old[n] + w * b[n]
                            else:
                                for n in range(length):
                                    to[n] = w * b[n]
                            for p in range(q + 1, starts[r + 1]):
                                w, b = weights[k, row, p], pool[k, sampled[p], start:stop]
                                for n in range(length):
                                    to[n] += w * b[n]
                        # M(x, r); M(x', x) is M(x, x')
                        here, total = state[k, own, r, start:stop], 0.0
                        b, to = pool[k, sampled[starts[x]], start:stop], inner[0, r]
                        if before[x] >= 0:
                            a = pool[k, factor[x], start:stop]
                            if r == x:
                                here[:] = state[k, own, before[x], start:stop]
                            for n in range(length):
                                value = a[n] * here[n] + b[n] * to[n]
                                here[n] = value
                                total += value
                        else:
                            for n in range(length):
                                value = b[n] * to[n]
                                here[n] = value
                                total += value
                        for o in range(1, starts[x + 1] - starts[x]):
                            b, to = pool[k, sampled[starts[x] + o], start:stop], inner[o, r]
                            for n in range(length):
                                value = b[n] * to[n]
                                here[n] += value
                                total += value
                        sums[k, x - first, r] += total
                    for c in range(chains):
                        if c != own and tops[c] >= 0:
                            state[k, c, x, start:stop] = state[k, own, tops[c], start:stop]
                    tops[own] = x

    return loop
