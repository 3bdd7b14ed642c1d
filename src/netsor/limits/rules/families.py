"""Independent families of G-vars.

G-vars that share a matrix, or occur in one affine expression, belong to one family. Different families are
independent in the limit, so expectations of products over different families factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from netsor.lang.components import components
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, d_batchnorm, sub
from netsor.lang.index_maps import contract, sum_
from netsor.lang.index_maps import mean as average
from netsor.lang.program import Embedding, Input, LinComb, MatMul, Nonlin, Normal
from netsor.lang.types import G
from netsor.limits.rules.affine import AffineForms
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.questions import Answering, args_of, of_parts, remembered


@dataclass
class Families(AffineForms):
    """The families of a program, and the families that occur in its expressions."""

    @cached_property
    def families(self) -> dict[str, str]:
        """By name of a G-var, the representative of its family; different families are independent."""
        gaussian = (name for name, type_ in self.program.types.items() if isinstance(type_, G))
        labels: dict[str, list[Any]] = {name: [] for name in gaussian}

        def join(label: Any, names: Iterable[str]) -> None:
            for name in names:
                if name in labels:
                    labels[name].append(label)

        for s in self.program.statements:
            match s:
                case Input(law=Embedding(matrix, _)) | MatMul(matrix=matrix):
                    join(("matrix", matrix), [s.name])
                case Input(law=Normal(cross=cross)):
                    join(s.name, [s.name, *(name for name, _ in cross)])
                case LinComb():
                    join(s.name, [s.name, *refs(s.expr)])
        seen: set[Expr] = set()
        for expr in self.program.expressions():
            # An affine expression is one Gaussian variable, so all that it contains must be in one family.
            for node in subtrees(self.unwound(expr), seen):
                seen.add(node)
                if isinstance(node, Apply) and self.is_affine(node) and not self.is_constant(node):
                    join(node, refs(node))
        return {name: part[0] for part in components(list(labels), labels.__getitem__) for name in part}

    @of_parts
    def sources(self, form: Expr) -> Answering:
        """Return the matrices and inputs in a form; forms without a common one are independent."""
        matrices: frozenset[str] = frozenset()
        if self.vanishes(form):
            return matrices
        if isinstance(form, Ref) and not self.is_constant(form):
            match self.program.definitions[form.name]:
                case LinComb(expr=expr):
                    return (yield expr)
                case Input(law=Embedding(matrix, _)) | MatMul(matrix=matrix):
                    return frozenset([f"{matrix} "])
            return frozenset([self.families[form.name]])
        for a in args_of(form):
            matrices |= yield a
        return matrices

    @cached_property
    def may_cancel(self) -> bool:
        """Whether the program has sums of dependent terms, which may be much smaller than their terms."""
        return any(self._may_cancel(e) for expr in self.program.expressions() for e in subtrees(expr))

    def _may_cancel(self, e: Expr) -> bool:
        if not isinstance(e, Apply) or e.op not in (add, sub, sum_, average, contract):
            return False
        if (names := refs(e)) and all(name in self.program.data for name in names):
            return False
        if e.op not in (add, sub):
            return True
        a, b = e.args
        # Independent centred Gaussian terms cannot cancel: their variances add up.
        gaussian = self.is_affine(e) and self.is_centred(a) and self.is_centred(b)
        return not gaussian or bool(self.sources(a) & self.sources(b))

    @of_parts
    def families_in(self, expr: Expr) -> Answering:
        """Return the families of all G-vars in an expression."""
        if isinstance(expr, Ref):
            if expr.name in self.families:
                return frozenset([self.families[expr.name]])
            source = self.program.definitions.get(expr.name)
            return (yield source.expr) if isinstance(source, Nonlin) else frozenset()
        families: frozenset[str] = frozenset()
        for a in args_of(expr):
            more = yield a  # reuse an equal set instead of a copy: products may have thousands of factors
            families = more if families <= more else families if more <= families else families | more
        return families

    @cached_property
    def noise(self) -> frozenset[str]:
        """The families that are drawn anew for each input: different inputs are independent in them."""
        drawn = set(self.program.noise)
        # A LinComb of noise alone is noise as well.
        for s in self.program.of(LinComb) if drawn else ():
            if {name for name in refs(s.expr) if not self.is_constant(Ref(name))} <= drawn:
                drawn.add(s.name)
        lasting = {family for name, family in self.families.items() if name not in drawn}
        return frozenset(self.families[name] for name in drawn if name in self.families) - lasting

    @remembered
    def families_of(self, atom: Atom) -> frozenset[str]:
        """Return the families that an atom depends on."""
        names = (name for form in atom.forms for name in refs(form))
        return frozenset(self.families[name] for name in names if name in self.families)

    def sampled_families(self, atom: Atom) -> frozenset[str]:
        """Return the families that the expectation of an atom needs samples of."""
        # A derivative of batchnorm is linear in its direction, so only the batch has to be sampled.
        if isinstance(atom.body, Apply) and atom.body.op is d_batchnorm:
            return self.families_in(atom.body.args[0])
        return self.families_of(atom)

    @of_parts
    def maximal_forms(self, expr: Expr) -> Answering:
        """Return the largest affine subexpressions that are not constant."""
        if self.is_constant(expr):
            return ()
        # An affine subexpression is one Gaussian variable, so the search stops there.
        if self.is_affine(expr):
            return (expr,)
        assert isinstance(expr, Apply), f"{expr} is neither a form nor unwound"
        forms: dict[Expr, None] = {}
        for a in expr.args:
            forms |= dict.fromkeys((yield a))
        return tuple(forms)
