"""Vectors that are linear recursions, like the state of a GRU: h = a h' + b e, with sampled a and b.

Written out, the state after t tokens is a sum of t parts, so the second moments of T states take T^4 products
at each sample point. But at one point, with C = E[e e'] and everything else given,

    N(x, r) = a_r N(x, r') + b_r C(x, r)        the parts of r with the new part of x
    M(x, r) = a_x M(x', r) + b_x N(x, r)        x with r, where x follows x' and r follows r'

for all rows x and r <= x, which are T^2 products. E[h_x h_r] is the mean of M(x, r) over the points. Only the
M of the last row of every chain is kept, because nothing else enters the next step. Numba compiles the loop
(the extra `fast`). Without Numba, and where there is little to gain, vectors are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from netsor.lang.expr import Expr
from netsor.limits.on_numpy.compiled_loops import is_available
from netsor.limits.rules.atoms import Atom
from netsor.limits.sampling.records import Core, CoreGroup
from netsor.machine_code import compiled

RowKey = tuple[Atom, ...] | Expr  # a product of sampled atoms, or a whole expression of sampled forms
PartKey = tuple[tuple[Expr, ...], RowKey, tuple[tuple[str, Atom], ...]]  # constants, row, atoms by family
Whole = tuple[frozenset[PartKey], int]  # the parts of a core in any order, and its number of inputs


# Which cores follow which


@dataclass(frozen=True)
class CoreKey:
    """The parts that a core adds up, and its number of inputs."""

    parts: tuple[PartKey, ...]
    inputs: int

    @cached_property
    def _hash(self) -> int:
        return hash((self.parts, self.inputs))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def whole(self) -> Whole:
        return frozenset(self.parts), self.inputs


@dataclass(frozen=True)
class Follows:
    """A core that is `factor` times the core `before`, plus its `new` parts (positions in its parts)."""

    before: CoreKey
    factor: Atom
    new: tuple[int, ...]


def find_recursions(
    cores: Sequence[CoreKey], most_states: int, by_parts: Mapping[Whole, CoreKey]
) -> dict[CoreKey, Follows]:
    """Return which cores of a group follow which; no two follow the same one. Empty if it is not worth it.

    most_states   largest number of values per sample point, if that exceeds what written-out parts take
    by_parts      all cores, by their parts
    """
    if not is_available():
        return {}
    follows: dict[CoreKey, Follows] = {}
    # A core that two others followed would fork its chain, and the loop keeps only one last row per chain.
    free = set(cores)
    for core in cores:
        options = [f for f in _options(core, by_parts) if f.before in free]
        if options:
            # Prefer the core that leaves the fewest new parts.
            follows[core] = min(options, key=lambda f: len(f.new))
            free.remove(follows[core].before)
    return follows if _is_worth_it(cores, follows, most_states) else {}


def joined(
    groups: Sequence[list[CoreKey]], most_states: int, by_parts: Mapping[Whole, CoreKey]
) -> list[list[CoreKey]]:
    """Join each group of cores with the group that continues it, so that one recursion serves both.

    The last state, which only outputs read, would otherwise be in a group of its own.
    """
    groups = [list(cores) for cores in groups]
    home = {core: cores for cores in groups for core in cores}
    for cores in list(groups):
        options = _options(cores[0], by_parts)
        earlier = next((home[f.before] for f in options if home[f.before] is not cores), None)
        if earlier is None:
            continue
        follows = find_recursions([*earlier, *cores], most_states, by_parts)
        if all(core in follows and home[follows[core].before] is earlier for core in cores):
            groups = [group for group in groups if group is not cores]
            earlier += cores
            home.update(dict.fromkeys(cores, earlier))
    return groups


def _options(core: CoreKey, by_parts: Mapping[Whole, CoreKey]) -> list[Follows]:
    """Return all ways to write a core as a factor times another core plus new parts."""
    multiples: dict[Atom, dict[int, PartKey]] = {}
    for k, (constants, row, exact) in enumerate(core.parts):
        # A whole expression in one row is no product, so it is no multiple of another row.
        if isinstance(row, tuple) and row:
            multiples.setdefault(row[0], {})[k] = constants, row[1:], exact
    options = []
    for factor, quotients in multiples.items():
        before = by_parts.get((frozenset(quotients.values()), core.inputs))
        if before is not None and len(quotients) < len(core.parts):
            new = tuple(k for k in range(len(core.parts)) if k not in quotients)
            options.append(Follows(before, factor, new))
    return options


def _is_worth_it(cores: Sequence[CoreKey], follows: Mapping[CoreKey, Follows], most_states: int) -> bool:
    """Return whether a loop over rows takes less time than products of all parts, and has enough memory."""
    rows = sum(core.inputs for core in cores)
    parts = sum(core.inputs * len(core.parts) for core in cores)
    new = sum(core.inputs * len(follows[core].new if core in follows else core.parts) for core in cores)
    chains = rows - sum(core.inputs for core in follows)
    # One step of the loop costs as much as about 6 products of written-out parts.
    return parts**2 > 6 * (rows + new) ** 2 and chains * rows <= max(parts, most_states)


# Sums over points


def states_shape(group: CoreGroup, repeats: int, count: int) -> tuple[int, ...]:
    """Return (repeats, blocks of points, states, points of a block), the shape of M; see `Recursion`."""
    size = min(128, count)  # points of a block: few enough for the cache, enough to outweigh loop overhead
    return repeats, -(-count // size), group.states, size


def in_order(group: CoreGroup, core: Core) -> np.ndarray:
    """Return the numbers of the parts so far, chain by chain, as the loop reads them."""
    assert group.recursion is not None
    last = core.rows.stop
    counts = np.diff(np.append(group.starts[:last], core.parts.stop))
    return np.argsort(np.repeat(group.recursion.place[:last], counts), kind="stable")


def recursive_sums(
    group: CoreGroup, core: Core, pool: np.ndarray, weights: np.ndarray, states: np.ndarray
) -> np.ndarray:
    """Return sums over the points of a new core times each core so far: (repeats, inputs, rows so far).

    pool     sampled rows: (repeats, rows, points)
    weights  (repeats, new parts, parts so far `in_order`): C times the constants of the parts
    states   M for the last row of each chain and every row, see `states_shape`; updated in place
    """
    recursion, first, last = group.recursion, core.rows.start, core.rows.stop
    assert recursion is not None
    assert (recursion.before[first:last] < first).all()
    chain, place, begin = recursion.chain[:last], recursion.place, recursion.begin
    rows_before = np.bincount(chain[:first], minlength=recursion.chains)
    fresh = np.full(recursion.chains, -1)
    fresh[chain[first:]] = np.arange(first, last)
    starts = np.append(group.starts[:last], core.parts.stop)
    parts = np.zeros(group.size + 1, int)
    parts[place[:last] + 1] = np.diff(starts)
    sums = np.zeros((len(pool), last - first, group.size))
    chains = (chain, begin, rows_before, fresh, place, recursion.offset)
    rows = (recursion.before, recursion.factor, starts, group.sampled, np.cumsum(parts))
    _loop()(sums, states, pool, weights, first, chains, rows)
    sums = sums[:, :, place[:last]]
    for x in range(first, last):
        sums[:, x - first, x + 1 :] = sums[:, x + 1 - first :, x]
    return sums


@cache
def _loop() -> Callable[..., None]:
    return compiled(
        _sum_recursively, error_model="numpy", nogil=True, fastmath={"contract", "reassoc", "nsz"}
    )


def _sum_recursively(sums, states, pool, weights, first, chains, rows):  # arrays, for Numba
    chain, begin, counts, fresh, place, offset = chains  # counts and fresh rows of each chain
    before, factor, starts, sampled, column = rows
    size, last = states.shape[3], first + sums.shape[1]
    most = np.max(starts[1:] - starts[:-1])
    N = np.zeros((most, size))  # N(y, row) for each new part of y, as row goes along a chain
    # Factors of all rows, which are 0 where chains begin, and all parts, in the order of the chains.
    a, b = np.zeros((place.size, size)), np.empty((starts[last], size))
    # Each repeat, and each block of its points, goes through all rows by itself, so that it stays in the
    # cache.
    for k in range(states.shape[0]):
        for block in range(states.shape[1]):
            start, M = block * size, states[k, block]
            length = min(size, pool.shape[2] - start)
            # Gather the factors and parts of this block of points in the order of the chains, once for all
            # rows.
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
                    for turn in range(2):  # r with the rows so far of x's chain, x with all of chain c
                        if turn == 0 and (r < 0 or r == x):
                            continue
                        y, d = (r, chain[x]) if turn == 0 else (x, c)
                        i, new = place[y], starts[y] - starts[first]
                        there, stop = offset[chain[y], d] - begin[d], begin[d] + counts[d]
                        for at in range(begin[d], stop + (turn == 1 and r >= 0)):
                            m, q, total = there + at, column[at], 0.0
                            if before[y] >= 0 and at == stop:  # M(y', row), which is M(row, y')
                                M[m] = M[offset[c, chain[y]] + counts[chain[y]] - 1]
                            # With one new part per row, the usual case, a single loop over the points
                            # updates N and M.
                            if most == 1:
                                w, j = weights[k, new, q], column[i]
                                for n in range(length):
                                    value = a[at, n] * N[0, n] + w * b[q, n]
                                    N[0, n] = value
                                    value = a[i, n] * M[m, n] + b[j, n] * value
                                    M[m, n] = value
                                    total += value
                            else:
                                # Otherwise first N for each new part of y, through all parts of the row,
                                # then M from these.
                                for o in range(starts[y + 1] - starts[y]):
                                    for p in range(column[at + 1] - q):
                                        w, j = weights[k, new + o, q + p], q + p
                                        for n in range(length):
                                            N[o, n] = (N[o, n] if p else a[at, n] * N[o, n]) + w * b[j, n]
                                    j = column[i] + o
                                    for n in range(length):
                                        M[m, n] = (M[m, n] if o else a[i, n] * M[m, n]) + b[j, n] * N[o, n]
                                for n in range(length):
                                    total += M[m, n]
                            sums[k, y - first, at] += total
                    if c != chain[x] and (r >= 0 or counts[c]):  # M(last of c, x) is M(x, last of c)
                        top = offset[chain[x], c] + counts[c] - (r < 0)
                        M[offset[c, chain[x]] + counts[chain[x]]] = M[top]
