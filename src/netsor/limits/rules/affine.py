"""Affine expressions of G-vars, with C-vars as coefficients, which are Gaussian in the limit: *forms*."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, div, mul, neg, step, sub
from netsor.lang.index_maps import contract
from netsor.lang.input_laws import input_mean
from netsor.lang.ops import Function, IndexMap
from netsor.lang.program import Input, LinComb, MatMul, Moment, Nonlin, Normal, Program, Scalar
from netsor.lang.rewrite import rewritten
from netsor.lang.types import C, G, Index, Type, infer, type_of
from netsor.limits.rules.atoms import LinearTerm, replace_exprs
from netsor.limits.rules.questions import Answering, all_of, args_of, of_parts, remembered
from netsor.limits.rules.rewriting import definition, mask_outside


@dataclass
class AffineForms:
    """Static facts about the affine expressions of a program, with remembered answers."""

    program: Program
    inferred: dict[Expr, Type] = field(default_factory=dict)
    kinks: dict[Expr, tuple[float, ...]] = field(default_factory=dict)
    trusted: dict[Expr, bool] = field(default_factory=dict)
    answers: dict[str, dict[Expr, Any]] = field(default_factory=dict)

    def index(self, expr: Expr) -> Index:
        """Return the index shape of an expression."""
        type_ = self.inferred.get(expr)
        return (type_ or infer(expr, partial(type_of, self.program), memo=self.inferred)).index

    def rank(self, expr: Expr) -> int:
        """Return the number of index axes of an expression."""
        return len(self.index(expr))

    @remembered
    def is_constant(self, expr: Expr) -> bool:
        """Return whether an expression has no vectors: only numbers, data and C-vars."""
        return all(map(self.is_constant_name, refs(expr)))

    def is_constant_name(self, name: str) -> bool:
        return name in self.program.data or isinstance(self.program.types[name], C)

    @of_parts
    def is_affine(self, expr: Expr) -> Answering:
        """Return whether it is Gaussian in the limit: linear in G-vars plus a constant."""
        if self.is_constant(expr):
            return True
        if isinstance(expr, Ref):
            return isinstance(self.program.types[expr.name], G)
        return self.is_linear_head(expr) and (yield from all_of(args_of(expr)))

    def is_linear_head(self, expr: Expr) -> bool:
        """Return whether the outermost operation is linear in its vector arguments."""
        if not isinstance(expr, Apply) or self.is_constant(expr):
            return False
        op, constant = expr.op, [self.is_constant(a) for a in expr.args]
        by_op = {mul: any(constant), div: constant[-1], contract: constant[0]}
        return op in (add, sub, neg) or by_op.get(op, isinstance(op, IndexMap))

    @of_parts
    def vanishes(self, expr: Expr) -> Answering:
        """Return whether it is 0 times something, under index maps: zeros that have a width and a shape."""
        if not isinstance(expr, Apply):
            return False
        if expr.op is mul:
            return Const(0.0) in expr.args
        return isinstance(expr.op, IndexMap) and len(expr.args) == 1 and (yield expr.args[0])

    @of_parts
    def is_centred(self, form: Expr) -> Answering:
        """Return whether the mean of a form (or the value of a constant) is 0 whatever the data are."""
        match form:
            case Const(value):
                return value == 0
            case Ref(name):
                source = self.program.definitions.get(name)
                match source:
                    case LinComb(expr=expr) | Scalar(expr=expr):
                        return (yield expr)
                    case Moment(expr=expr):
                        return self.is_affine(self.unwound(expr)) and (yield self.unwound(expr))
                    case Input(law=Normal()):
                        return not np.any(input_mean(source))
                return isinstance(source, MatMul | Input)
        op, args = form.op, form.args
        if op is mul:
            # One factor is constant. The product has mean 0 if either factor has mean 0.
            return (yield args[0]) or (yield args[1])
        if op is div:
            return (yield args[0])
        is_linear = op in (add, sub, neg) or isinstance(op, IndexMap)
        return is_linear and (yield from all_of(args[1:] if op is contract else args))

    @of_parts
    def unwound(self, expr: Expr) -> Answering:
        """Return the expression as a function of G-vars and constants, with masks in front of functions."""
        inlined: dict[Expr, Expr] = {}
        for name in refs(expr):
            source = self.program.definitions.get(name)
            if isinstance(source, Nonlin):
                inlined[Ref(name)] = yield source.expr
        whole = replace_exprs(expr, inlined) if inlined else expr
        return rewritten(whole, [partial(mask_outside, self.masks)]) if self.masks else whole

    @cached_property
    def masks(self) -> frozenset[Expr]:
        """Vectors of zeros and ones, independent of all others: steps of inputs with explicit laws."""

        def is_drawn(e: Expr) -> bool:
            sources = [self.program.definitions.get(name) for name in refs(e)]
            return bool(sources) and all(isinstance(s, Input) and isinstance(s.law, Normal) for s in sources)

        nodes = (node for expr in self.program.expressions() for node in subtrees(expr))
        return frozenset(e for e in nodes if isinstance(e, Apply) and e.op is step and is_drawn(e))

    def resolved(self, e: Expr) -> Expr:
        """Return a named vector as a function of G-vars, and anything else unchanged."""
        defined = definition(self.program, e)
        return e if defined is None else self.unwound(defined)

    @of_parts
    def has_uniform_mean(self, form: Expr) -> Answering:
        """Return whether the mean of a form is the same for all its indices, whatever the data are."""
        if self.is_centred(form):
            return True
        if isinstance(form, Ref):
            match self.program.definitions.get(form.name):
                case LinComb(expr=expr):
                    return (yield expr)
                case Input() as source:
                    return len(set(input_mean(source).tolist())) == 1
            data = self.program.data.get(form.name)
            return set(self.program.types[form.name].index if data is None else data.shape) <= {1}
        if isinstance(form, Apply) and not isinstance(form.op, Function):
            return False
        return (yield from all_of(args_of(form)))

    @of_parts
    def terms(self, expr: Expr) -> Answering:
        """Return a form as a sum of multiples of forms that are no sums or multiples; names stay whole."""
        match expr:
            case Apply(op, (a, b)) if op in (add, sub):
                sign = -1 if op is sub else 1
                left, right = (yield a), (yield b)
                return (*left, *(t.times(sign) for t in right))
            case Apply(op, (a,)) if op is neg:
                return tuple(t.times(-1) for t in (yield a))
            case Apply(op, (a, b)) if op in (mul, div):
                vector, factor = (b, a) if op is mul and self.is_constant(a) else (a, b)
                return tuple(t.times(1, (factor, op is div)) for t in (yield vector))
        return () if self.is_constant(expr) else (LinearTerm(expr),)
