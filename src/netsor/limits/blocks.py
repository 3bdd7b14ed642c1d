"""All blocks of a kernel recorded as one graph, for libraries that compile or run it as a whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from netsor.limits.assembly import Rows
from netsor.limits.rules.output import output_second
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.recorder import Recorder
from netsor.limits.tape.graph import Graph
from netsor.limits.tape.tape import Tape


def _with_noise(r: Recorder, block: PerPair, o: int, p: int) -> PerPair:
    """Replace the diagonal of a block by self blocks: an input shares its noise with itself only."""
    pair, diagonal = block.pair, r.ask(output_second, o, p, Pair(True))
    assert pair.rows is not None
    n, shape = pair.rows[1] - pair.rows[0], diagonal.array.shape
    spread = pair.left(PerInput(diagonal.array, len(shape) - 2)).array
    same = pair.shared(r.xp.asarray(np.eye(n).reshape((1, n, n, *(1,) * (len(shape) - 2)))))
    return PerPair(block.array + same * (spread - block.array), pair, block.left, block.right)


def recorded_blocks(make: Callable[[Tape], Recorder], rows: Rows) -> tuple[Graph, dict[tuple[int, int], int]]:
    """Record the blocks of all pairs of outputs; return their graph, and the node of each pair.

    Of a symmetric kernel, these are the blocks on and above the diagonal.
    """
    single, tape, blocks = Tape(), Tape(), {}
    recorder = make(single)
    group_of = {o: r for r, group in enumerate(rows.groups) for o in group.outputs}
    spans = {o: rows.spans(r) for r, group in enumerate(rows.groups) for o in group.outputs}
    for o, (left, _) in spans.items():
        for p, (_, right) in spans.items():
            if left[0] < left[1] and right[0] < right[1] and (not rows.symmetric or p >= o):
                block = recorder.ask(output_second, o, p, Pair(False, False, left, right, tape))
                if rows.symmetric and group_of[o] == group_of[p] and recorder.program.noise:
                    block = _with_noise(recorder, block, o, p)
                blocks[o, p] = block.array
    graph = Graph(single, tape, blocks.values())
    return graph, dict(zip(blocks, graph.outputs, strict=True))
