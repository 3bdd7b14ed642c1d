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
from functools import cache

import numpy as np

from netsor.lang.expr import Expr
from netsor.limits.on_numpy.compiled_loops import is_available
from netsor.limits.rules.atoms import Atom
from netsor.limits.sampling.vectors import Part
from netsor.machine_code import compiled

ONE = slice(0, 1)  # the row of the number 1 in a table of products
Whole = tuple[frozenset[Part], int]  # the parts of a core in any order, and its number of inputs


# Which cores follow which


@dataclass(frozen=True, eq=False)
class CoreKey:
    """The parts that a core adds up, and its number of inputs; equal cores are one object."""

    parts: tuple[Part, ...]
    inputs: int


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
    multiples: dict[Atom, dict[int, Part]] = {}
    for k, part in enumerate(core.parts):
        # A whole expression in one row is no product, so it is no multiple of another row.
        if isinstance(part.row, tuple) and part.row:
            multiples.setdefault(part.row[0], {})[k] = part._replace(row=part.row[1:])
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


# Cores and their groups


@dataclass(frozen=True)
class Core:
    """A sum of parts: its rows in its group, and its parts (inputs by parts) among those of the group.

    For each part of an input, its constants, its sampled rows, and by family the rows of its exact atom in
    the table of products. In a recursion, these are only the parts that do not come from the core before.

    before, factor   rows of the core that is multiplied, and of the sampled factor; None if there is none
    """

    group: int
    rows: slice
    parts: slice
    constants: list[tuple[Expr, ...]]
    sampled: list[slice]
    atoms: list[dict[int, slice]]
    before: slice | None = None
    factor: slice | None = None

    @property
    def inputs(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def parts_of_input(self) -> int:
        return len(self.sampled)


@dataclass(frozen=True)
class Recursion:
    """Rows that are multiples of other rows plus parts of their own.

    before   (rows,): the row that is multiplied, or -1
    factor   (rows,): the sampled row that multiplies it, or -1
    chain    (rows,): the number of the chain that a row belongs to
    place    (rows,): the position of a row if all rows are sorted by chain
    begin    (chains,): the place of the first row of each chain
    """

    before: np.ndarray
    factor: np.ndarray
    chain: np.ndarray
    place: np.ndarray
    begin: np.ndarray

    @property
    def chains(self) -> int:
        return len(self.begin)

    @classmethod
    def of(cls, before: np.ndarray, factor: np.ndarray) -> Recursion:
        """Divide rows into chains, in which each row follows the one before."""
        # A row begins a chain if it follows none; all others belong to the chain of the row that they follow.
        chain = np.cumsum(before < 0) - 1
        for row in np.flatnonzero(before >= 0):
            chain[row] = chain[before[row]]
        sizes = np.bincount(chain)
        place = np.argsort(np.argsort(chain, kind="stable"))
        return cls(before, factor, chain, place, np.cumsum(sizes) - sizes)


@dataclass(frozen=True)
class CoreGroup:
    """Cores whose second moments are needed, and the parts of all of them, core by core and input by input.

    pool        number of the pool that holds the sampled rows
    sampled     (parts,): the sampled row of each part
    starts      (rows,): where the parts of each row begin
    atoms       by family, (parts,): the row of each part in the table of products
    """

    pool: int
    cores: list[Core]
    sampled: np.ndarray
    starts: np.ndarray
    atoms: dict[int, np.ndarray]
    recursion: Recursion | None

    @classmethod
    def of(cls, pool: int, cores: list[Core]) -> CoreGroup:
        def of_parts(rows: Callable[[Core], Sequence[slice]]) -> np.ndarray:
            return np.concatenate(
                [np.array([spread(s, core.inputs) for s in rows(core)], int).T.ravel() for core in cores]
            )

        def of_rows(rows: Callable[[Core], slice | None]) -> np.ndarray:
            return np.concatenate([spread(rows(c) or slice(-1, 0), c.inputs) for c in cores])

        families = sorted({family for core in cores for part in core.atoms for family in part})
        # Parts without an atom of a family point to row 0, the number 1.
        atoms = {f: of_parts(lambda c, f=f: [part.get(f, ONE) for part in c.atoms]) for f in families}
        before, factor = of_rows(lambda core: core.before), of_rows(lambda core: core.factor)
        recursion = Recursion.of(before, factor) if np.any(before >= 0) else None
        starts = [core.parts.start + core.parts_of_input * np.arange(core.inputs) for core in cores]
        return cls(pool, cores, of_parts(lambda c: c.sampled), np.concatenate(starts), atoms, recursion)

    @property
    def size(self) -> int:
        """Number of rows: one for each core and input."""
        return self.cores[-1].rows.stop

    @property
    def states(self) -> int:
        """Number of values that a recursion keeps at each sample point."""
        return self.recursion.chains * self.size if self.recursion else 0


def spread(rows: slice, n: int) -> np.ndarray:
    """Return row numbers for n inputs; repeat a row that all inputs share."""
    return np.broadcast_to(np.arange(rows.start, rows.stop), n)


# Sums over points


def states_shape(group: CoreGroup, repeats: int, count: int) -> tuple[int, ...]:
    """Return (repeats, blocks of points, states, points of a block), the shape of M."""
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
    states   M of the last row of each chain and every row, chain by chain; updated in place
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
    chains = (chain, begin, rows_before, fresh, place)
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
    chain, begin, counts, fresh, place = chains  # counts and fresh rows of each chain
    before, factor, starts, sampled, column = rows
    size, last = states.shape[3], first + sums.shape[1]
    most = np.max(starts[1:] - starts[:-1])
    N = np.zeros((most, size))  # N(y, row) for each new part of y, as row goes along a chain
    # Factors of all rows, which are 0 where chains begin, and all parts, in the order of the chains.
    a, b = np.zeros((place.size, size)), np.empty((starts[last], size))
    # Each repeat, and each block of its points, goes through all rows by itself: it stays in the cache.
    for k in range(states.shape[0]):
        for block in range(states.shape[1]):
            start, M = block * size, states[k, block]
            length = min(size, pool.shape[2] - start)
            # Gather the factors and parts of this block in the order of the chains, once for all rows.
            for x in range(last):
                i, j = place[x], factor[x]
                if before[x] >= 0:
                    for n in range(length):
                        a[i, n] = pool[k, j, start + n]
                for p in range(starts[x + 1] - starts[x]):
                    i, j = column[place[x]] + p, sampled[starts[x] + p]
                    for n in range(length):
                        b[i, n] = pool[k, j, start + n]
            for y in range(first, last):
                top, i, new = chain[y] * place.size, place[y], starts[y] - starts[first]
                for c in range(len(begin)):
                    r, old = fresh[c], begin[c] + counts[c]
                    stop = old + (0 <= r <= y)  # a later row r comes when it is its turn
                    for at in range(begin[c], stop):
                        m, q, total = top + at, column[at], 0.0
                        if before[y] >= 0 and at == old:  # M(y', r), which is M(r, y')
                            M[m] = M[c * place.size + i - 1]
                        # With one new part per row, the usual case, one loop updates N and M.
                        if most == 1:
                            w, j = weights[k, new, q], column[i]
                            for n in range(length):
                                value = a[at, n] * N[0, n] + w * b[q, n]
                                N[0, n] = value
                                value = a[i, n] * M[m, n] + b[j, n] * value
                                M[m, n] = value
                                total += value
                        else:
                            # Otherwise first N for each new part of y, then M from these.
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
                    if c != chain[y] and r <= y and stop > begin[c]:  # M(last of c, y) is M(y, last of c)
                        M[c * place.size + i] = M[top + stop - 1]
