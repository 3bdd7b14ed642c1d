"""A program, the shapes of its inputs, and what is sampled: all that decides how to compute a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from netsor.lang.expr import Expr, refs
from netsor.lang.program import Output, Program, used_by
from netsor.lang.types import Index
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.pairs import Pair


@dataclass
class Setting:
    """Everything that is known before recording."""

    forms: Forms
    members: Mapping[str, int]  # by name of an array that differs between inputs, the number of inputs
    traced: bool = False  # whether JAX traces the values: functions of NumPy arrays cannot be steps then
    sampled: frozenset[str] = frozenset()  # the sampled families
    tabled: Mapping[Expr, Any] = field(default_factory=dict)  # vectors with second moments in tables
    decompositions: dict[Any, Any] = field(default_factory=dict)
    methods: dict[Any, Any] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return self.forms.program

    def index(self, expr: Expr) -> Index:
        return self.forms.index(expr)

    def noise(self, pair: Pair) -> frozenset[str]:
        """Return the families in which left and right are independent: noise of different inputs."""
        return self.forms.noise if pair.is_tile and not pair.same else frozenset()

    def in_tables(self, e: Expr, f: Expr) -> bool:
        """Return whether tables have E[e f]: both vectors share a matrix, directly or through others."""
        left, right = self.tabled.get(e), self.tabled.get(f)
        return left is not None and right is not None and left.cluster == right.cluster

    def inputs_of(self, e: Expr) -> int:
        """Return the number of inputs that an expression has values for, or 1 if all inputs share it."""
        return max((self.inputs[name] for name in refs(e)), default=1)

    def entries(self, e: Expr) -> int:
        """Return the number of entries of an expression over all inputs and indices."""
        return self.inputs_of(e) * prod(self.forms.index(e))

    @cached_property
    def inputs(self) -> dict[str, int]:
        """The number of inputs that each variable has values for."""
        program = self.program
        counts = {name: self.members.get(name, 1) for name in program.data}
        for s in program.statements:
            if not isinstance(s, Output):
                counts[s.name] = max((counts[name] for name in used_by(s)), default=1)
        # Noise reads no data, but each reader needs a value of its own. So pass the counts of readers back to
        # the noise, and to everything that depends on it.
        noisy = set(program.noise)
        if noisy:
            for s in program.statements:
                if not isinstance(s, Output) and not noisy.isdisjoint(used_by(s)):
                    noisy.add(s.name)
            for s in reversed(program.statements):
                read = used_by(s)
                count = max(counts[name] for name in (read if isinstance(s, Output) else [s.name]))
                counts |= {name: max(counts[name], count) for name in read if name in noisy}
        return counts
