"""Steps of a tape run layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.limits.on_numpy.fused import Fused
from netsor.limits.on_numpy.prepared import LayerOrder, Prepared
from netsor.limits.tape.tape import Tape


def test_every_step_comes_after_what_it_reads() -> None:
    tape = Tape()
    x = tape.input("x", (4, 4), np.float64)
    rng, made = np.random.default_rng(0), [x]
    for _ in range(60):
        a, b = (made[k] for k in rng.integers(0, len(made), 2))
        made.append(a * 2.0 + b)
    outputs = {made[-1].step, made[30].step}
    steps = [k for k in tape.needed(outputs) if k not in tape.constants]
    found = LayerOrder(tape, steps, outputs).order
    assert sorted(found) == steps
    place = {k: n for n, k in enumerate(found)}
    assert all(place[a.step] < place[k] for k in found for a in tape.steps[k].reads() if a.step in place)


def test_a_tangent_kernel_needs_no_more_memory_with_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one layer at a time, and one loop for each."""
    pytest.importorskip("numba")
    made: list[Prepared] = []
    before = Prepared.__init__

    def noted(self: Prepared, *args: object) -> None:
        before(self, *args)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Prepared, "__init__", noted)
    peaks, loops = [], []
    for depth in (4, 8):
        made.clear()
        ns.ntk(zoo.mlp(depth)).plan(np.ones((1100, 2)) * np.arange(1100)[:, None])
        tile = max((p for p in made if p.order), key=Prepared.peak)
        peaks.append(tile.peak())
        loops.append(sum(isinstance(part, Fused) for part in tile.order))
    assert peaks[1] == peaks[0]
    assert loops[1] - loops[0] == 4
