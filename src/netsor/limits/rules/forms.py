"""Expressions as sums of products of constants and atoms.

A function of one form is one *atom*, however it is built: a method can then treat it as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, d_batchnorm, div, mul, neg, pow_, sub
from netsor.lang.ops import Function, IndexMap
from netsor.lang.rewrite import at_head
from netsor.limits.rules.atoms import ENDLESS, HOLE, Atom, Product, Size, replace_exprs
from netsor.limits.rules.families import Families
from netsor.limits.rules.questions import Answering, of_parts, remembered
from netsor.limits.rules.rewriting import power, quotient, twice

FEW_NODES = 64  # a function of one form with more nodes is not expanded


@dataclass
class Forms(Families):
    """Static facts about the expressions of a program."""

    @of_parts
    def products(self, expr: Expr) -> Answering:
        """Return the expression as a sum of products of atoms; multiply out products of sums."""
        return (yield from self.multiplied_out(expr))

    @of_parts
    def size(self, expr: Expr) -> Answering:
        """Return the size of that sum without multiplying out."""
        return (yield from self.multiplied_size(expr))

    def multiplied_out(self, expr: Expr, kept: Callable[[Expr], bool] = lambda e: False) -> Answering:
        """Return this sum, where expressions for which `kept` is true stay one atom."""
        whole = self.unwound(expr)
        if whole is not expr:
            return (yield whole)
        if self.is_constant(expr):
            return (Product((expr,)),)
        if self._is_one_atom(expr, kept):
            return (Product((), (self.as_atom(expr),)),)
        assert isinstance(expr, Apply)
        arithmetic = at_head(expr, (power, quotient, twice))
        if arithmetic is not expr:
            return (yield arithmetic)
        left = yield expr.args[0]
        if expr.op is neg:
            return tuple(p.negative for p in left)
        right = yield expr.args[1]
        if expr.op is mul:
            both = [Product(p.constants + q.constants, p.atoms + q.atoms) for p in left for q in right]
            return tuple(map(self._merge, both))
        return (*left, *(q.negative if expr.op is sub else q for q in right))

    def multiplied_size(self, expr: Expr, kept: Callable[[Expr], bool] = lambda e: False) -> Answering:
        """Return the size of the result of `multiplied_out`."""
        whole = self.unwound(expr)
        if whole is not expr:
            return (yield whole)
        if self.is_constant(expr) or self._is_one_atom(expr, kept):
            return Size(1, 1)
        assert isinstance(expr, Apply)
        arithmetic = at_head(expr, (power, quotient, twice))
        if arithmetic is not expr:
            return (yield arithmetic)
        left = yield expr.args[0]
        if expr.op is neg:
            return Size(left.products, left.factors + left.products)
        right = yield expr.args[1]
        return left * right if expr.op is mul else left + right

    @remembered
    def is_long_function(self, expr: Expr) -> bool:
        """Return whether it is a long function of one form without parameters, which stays one atom."""
        nodes = sum(1 for _ in subtrees(expr))
        return nodes > FEW_NODES and isinstance(expr, Apply) and self._is_plain(expr)

    def _is_one_atom(self, expr: Expr, kept: Callable[[Expr], bool]) -> bool:
        """Return whether the expression stays whole: a function of one form, or one that does not split."""
        return not isinstance(expr, Apply) or not self._splits(expr) or kept(expr) or self._is_plain(expr)

    def _is_plain(self, expr: Expr) -> bool:
        """Return whether it is a function of one form, without parameters."""
        atom = self.as_atom(expr)
        return atom.unary and refs(atom.body) == [HOLE.name]

    @of_parts
    def _count_factors(self, expr: Expr) -> Answering:
        if not isinstance(expr, Apply) or expr.op is not mul:
            return 1
        left, right = (yield self.resolved(expr.args[0])), (yield self.resolved(expr.args[1]))
        return min(left + right, ENDLESS)

    def factors(self, expr: Expr) -> list[Expr]:
        """Return the factors of a product; a product of too many factors stays whole."""
        factors, stack = [], [expr]
        while stack:
            x = self.resolved(stack.pop())
            if isinstance(x, Apply) and x.op is mul and self._count_factors(x) <= 512:
                stack += reversed(x.args)
            else:
                factors.append(x)
        return factors

    def _splits(self, expr: Apply) -> bool:
        """Return whether it multiplies out: sums, products, small powers, division by a constant."""
        if expr.op is pow_:
            return expr.args[1] in (Const(2.0), Const(3.0))
        return expr.op in (add, sub, neg, mul) or (expr.op is div and self.is_constant(expr.args[1]))

    def _merge(self, product: Product) -> Product:
        """Merge atoms of one form into one atom: methods know functions of one form best."""
        merged: dict[Expr, Atom] = {}
        for atom in product.atoms:
            if atom.unary:
                before = merged.get(atom.forms[0])
                both = before and Atom(Apply(mul, (before.body, atom.body)), atom.forms, True)
                merged[atom.forms[0]] = both or atom
        return Product(product.constants, (*merged.values(), *(a for a in product.atoms if not a.unary)))

    @remembered
    def as_atom(self, expr: Expr) -> Atom:
        """Return the expression as an atom: of its only form, if it has one and does not mix indices."""
        unique = self.maximal_forms(expr)
        if len(unique) == 1 and not self.mixes(expr, unique):
            return Atom(replace_exprs(expr, {unique[0]: HOLE}), unique, True)
        vectors = {name for form in unique for name in refs(form) if not self.is_constant_name(name)}
        ref = Ref(vectors.pop()) if len(vectors) == 1 else None
        if ref is not None and not self.mixes(expr, (ref,)):
            return Atom(replace_exprs(expr, {ref: HOLE}), (ref,), True)
        return Atom(expr, unique, False)

    def is_mapped(self, expr: Expr) -> bool:
        """Return whether it is an index map, such as a sum over an index, of something that is no form."""
        return isinstance(expr, Apply) and isinstance(expr.op, IndexMap) and not self.is_affine(expr)

    def mixes(self, expr: Expr, leaves: tuple[Expr, ...]) -> bool:
        """Return whether an index map or a mixing operation lies between the expression and a leaf."""
        inner = {node for node in subtrees(expr, leaves) if isinstance(node, Apply)}
        return any(not isinstance(node.op, Function) and not self.is_constant(node) for node in inner)

    @cached_property
    def has_batchnorm_slopes(self) -> bool:
        """Whether a derivative of batchnorm occurs in the program."""
        nodes = (node for expr in self.program.expressions() for node in subtrees(expr))
        return any(isinstance(node, Apply) and node.op is d_batchnorm for node in nodes)
