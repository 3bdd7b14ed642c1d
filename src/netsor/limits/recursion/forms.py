"""What an expression is for the limit: constant, affine in G-vars, a product of atoms.

In the limit a G-var is a Gaussian number, so everything affine in G-vars (with C-vars as coefficients)
is Gaussian too: a *form*. A nonlinearity of one form is an *atom*, whatever it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any

import numpy as np

from netsor.lang.check import Inferred
from netsor.lang.expr import Apply, Const, Expr, Ref, once, refs, subtrees, transform
from netsor.lang.functions import add, d_batchnorm, div, mul, neg, pow_, sub
from netsor.lang.index_maps import contract, sum_
from netsor.lang.index_maps import mean as average
from netsor.lang.ops import Function, IndexMap
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    Moment,
    Nonlin,
    Normal,
    Program,
    Scalar,
)
from netsor.lang.sampling import input_mean
from netsor.lang.types import C, G
from netsor.limits.recursion.components import components
from netsor.limits.recursion.masks import masks_of, masks_outside

__all__ = ["HOLE", "Asking", "Atom", "Forms", "Product", "Size", "of_parts", "replace_exprs"]

HOLE = Ref("@")
TWO = Const(2.0)
MOST_PRODUCTS = 2**12  # of an expectation: they take about a second to plan, which is what sampling takes
MOST_FACTORS = 2**16  # of all its products: squares of squares have few products, of many factors
MANY_PRODUCTS, MANY_FACTORS = 2**8, 2**5  # of an expectation, and of each of its products
FEW_TERMS = 16  # of a form
FEW_NODES = 64  # of a function of one form whose sums are taken apart
LONGEST_PRODUCT = 2**9  # that is looked at factor by factor
ENDLESS = 10**18


@dataclass(frozen=True, eq=False, init=False)
class Atom:
    """A function of Gaussian forms: `body` with its forms, or with HOLE in place of the only one.

    As of expressions, there is one object for each value: sums of many products compare their atoms often.
    """

    body: Expr
    forms: tuple[Expr, ...]
    unary: bool

    def __new__(cls, body: Expr, forms: tuple[Expr, ...], unary: bool) -> Atom:
        return once(cls, (Atom, body, forms, unary), body=body, forms=forms, unary=unary)

    def __reduce__(self):
        return Atom, (self.body, self.forms, self.unary)

    @cached_property
    def expr(self) -> Expr:
        """The atom as an expression of its forms."""
        return replace_exprs(self.body, {HOLE: self.forms[0]}) if self.unary else self.body

    @property
    def is_identity(self) -> bool:
        return self.body == HOLE


@dataclass(frozen=True)
class Product:
    """A product of constants (numbers and C-vars) and atoms."""

    constants: tuple[Expr, ...] = ()
    atoms: tuple[Atom, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.constants, self.atoms))

    def __hash__(self) -> int:
        return self._hash

    @property
    def negative(self) -> Product:
        return Product((Const(-1.0), *self.constants), self.atoms)


@dataclass(frozen=True)
class Size:
    """The number of products of a sum, and that of all their factors."""

    products: int
    factors: int

    def __add__(self, other: Size) -> Size:
        return Size(self.products + other.products, self.factors + other.factors)._capped()

    def __mul__(self, other: Size) -> Size:
        factors = self.factors * other.products + self.products * other.factors
        return Size(self.products * other.products, factors)._capped()

    def _capped(self) -> Size:
        """Far beyond every budget the numbers stop growing, as their digits would take over."""
        return Size(min(self.products, ENDLESS), min(self.factors, ENDLESS))

    def __str__(self) -> str:
        count, what = (self.factors, "factors") if self.products == 1 else (self.products, "products")
        return f"{count:,} {what}" if count < ENDLESS else f"more {what} than can be counted"

    @property
    def is_notable(self) -> bool:
        """Whether it is worth looking for independent factors first: each factor is a step or two."""
        return self.products > MANY_PRODUCTS or self.factors > MANY_FACTORS * self.products

    @property
    def is_small(self) -> bool:
        """Whether multiplying out takes less time than sampling."""
        return self.products <= MOST_PRODUCTS and self.factors <= MOST_FACTORS


@dataclass(frozen=True)
class LinearTerm:
    """A sign, constants to multiply by (or to divide by), and a form that is no sum or multiple."""

    form: Expr
    sign: int = 1
    factors: tuple[tuple[Expr, bool], ...] = ()

    def times(self, sign: int, *factors: tuple[Expr, bool]) -> LinearTerm:
        return LinearTerm(self.form, self.sign * sign, self.factors + factors)


def of_parts(rule: Callable[..., Generator[Expr, Any, Any]]) -> Callable[[Any, Expr], Any]:
    """A question about an expression: it yields the expressions of which it needs the answer first.

    Every answer is remembered (in `answers`), and depth costs no depth of Python's stack.
    """
    name = rule.__name__

    @wraps(rule)
    def ask(self: Any, expr: Expr) -> Any:
        known = self.answers.setdefault(name, {})
        if expr in known:
            return known[expr]
        path, answer = [(expr, rule(self, expr))], None
        while path:
            asked, steps = path[-1]
            try:
                wanted = steps.send(answer)
            except StopIteration as done:
                answer = known[asked] = done.value
                path.pop()
                continue
            if wanted in known:  # asked once: another thread may find it at any time
                answer = known[wanted]
            else:
                answer = None
                path.append((wanted, rule(self, wanted)))
        return answer

    return ask


Asking = Generator[Expr, Any, Any]


@dataclass
class Forms:
    """Static facts about the expressions of a program; every answer is remembered."""

    program: Program
    inferred: dict[Expr, Inferred] = field(default_factory=dict)
    kinks: dict[Expr, tuple[float, ...]] = field(default_factory=dict)
    trusted: dict[Expr, bool] = field(default_factory=dict)
    answers: dict[str, dict[Expr, Any]] = field(default_factory=dict)
    _families_of: dict[Atom, frozenset[str]] = field(default_factory=dict)

    # Kinds of expressions

    @of_parts
    def is_constant(self, expr: Expr) -> Asking:
        """No vectors: numbers, data and C-vars."""
        if isinstance(expr, Ref):
            return expr.name in self.program.data or isinstance(self.program.types[expr.name], C)
        for a in _args(expr):
            if not (yield a):
                return False
        return True

    @of_parts
    def is_affine(self, expr: Expr) -> Asking:
        """Gaussian in the limit: linear in G-vars with constant coefficients, plus a constant."""
        if self.is_constant(expr):
            return True
        if isinstance(expr, Ref):
            return isinstance(self.program.types[expr.name], G)
        if not self.is_linear_head(expr):
            return False
        for a in _args(expr):
            if not (yield a):
                return False
        return True

    def is_linear_head(self, expr: Expr) -> bool:
        """An operation that is linear in its vector arguments."""
        if not isinstance(expr, Apply) or self.is_constant(expr):
            return False
        op, constant = expr.op, [self.is_constant(a) for a in expr.args]
        if op in (add, sub, neg):
            return True
        if op is mul:
            return any(constant)
        if op is div:
            return constant[1]
        if op is contract:
            return constant[0]
        return isinstance(op, IndexMap)

    @of_parts
    def vanishes(self, expr: Expr) -> Asking:
        """A multiple of 0, under other indices: it stands for zeros of some width and shape."""
        if not isinstance(expr, Apply):
            return False
        if expr.op is mul:
            return Const(0.0) in expr.args
        return isinstance(expr.op, IndexMap) and len(expr.args) == 1 and (yield expr.args[0])

    @of_parts
    def sources(self, form: Expr) -> Asking:
        """The matrices and inputs that a form is made of; without a common one, forms are independent."""
        found: frozenset[str] = frozenset()
        if self.vanishes(form):
            return found
        if isinstance(form, Ref) and not self.is_constant(form):
            match self.program.definitions[form.name]:
                case LinComb(expr=expr):
                    return (yield expr)
                case Input(law=Embedding(matrix, _)) | MatMul(matrix=matrix):
                    return frozenset([f"{matrix} "])
            return frozenset([self.families[form.name]])
        for a in _args(form):
            found |= yield a
        return found

    @of_parts
    def is_centred(self, form: Expr) -> Asking:
        """Whether the mean of a form (or the value of a constant) is 0 whatever the data are."""
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
            return (yield args[0]) or (yield args[1])
        if op is div:
            return (yield args[0])
        if op not in (add, sub, neg) and not isinstance(op, IndexMap):
            return False
        for a in args[1:] if op is contract else args:
            if not (yield a):
                return False
        return True

    @of_parts
    def unwound(self, expr: Expr) -> Asking:
        """The expression as a function of G-vars and constants, with masks in front of functions."""
        if self._is_unwound(expr) and not self.masks:
            return expr
        known: dict[Expr, Expr] = {}
        for name in refs(expr):
            source = self.program.definitions.get(name)
            if isinstance(source, Nonlin):
                known[Ref(name)] = yield source.expr
        return masks_outside(replace_exprs(expr, known), self.masks)

    @of_parts
    def _is_unwound(self, expr: Expr) -> Asking:
        """Whether no Nonlin is named in it."""
        if isinstance(expr, Ref):
            return not isinstance(self.program.definitions.get(expr.name), Nonlin)
        for a in _args(expr):
            if not (yield a):
                return False
        return True

    @cached_property
    def may_cancel(self) -> bool:
        """Whether there are sums of what is not independent, which may be much smaller than their terms."""
        return any(self._may_cancel(e) for expr in self.program.expressions() for e in subtrees(expr))

    def _may_cancel(self, e: Expr) -> bool:
        if not isinstance(e, Apply) or e.op not in (add, sub, sum_, average, contract):
            return False
        if (names := refs(e)) and all(name in self.program.data for name in names):
            return False
        if e.op not in (add, sub):
            return True
        a, b = e.args
        gaussian = self.is_affine(e) and self.is_centred(a) and self.is_centred(b)
        return not gaussian or bool(self.sources(a) & self.sources(b))

    @cached_property
    def masks(self) -> frozenset[Expr]:
        """Vectors of zeros and ones that are independent of all others."""
        return masks_of(self.program)

    def resolved(self, e: Expr) -> Expr:
        """A vector by its name as a function of G-vars; anything else as it is."""
        source = self.program.definitions.get(e.name) if isinstance(e, Ref) else None
        return self.unwound(source.expr) if isinstance(source, Nonlin) else e

    def operand_of(self, product: MatMul) -> Expr:
        """What a matrix multiplies, as a function of G-vars."""
        return self.resolved(Ref(product.operand))

    def matrix_of(self, name: str) -> str | None:
        """The matrix that makes a variable, if one does."""
        match self.program.definitions.get(name):
            case MatMul(matrix=matrix) | Input(law=Embedding(matrix=matrix)):
                return matrix
        return None

    @of_parts
    def has_uniform_mean(self, form: Expr) -> Asking:
        """Whether the mean of a form is the same for all members of its index, whatever the data are."""
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
        for a in _args(form):
            if not (yield a):
                return False
        return True

    @of_parts
    def terms(self, expr: Expr) -> Asking:
        """A form as a sum of multiples of forms that are none themselves; names stay whole."""
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

    def is_long(self, form: Expr) -> bool:
        """Whether a form, as a sum of terms, names the same ones many times."""
        known = self.answers.setdefault("is_long", {})
        if form not in known:
            count = self._count_linear(form)
            known[form] = count > FEW_TERMS and count > 2 * len(self._linear_leaves(form))
        return known[form]

    def is_longer(self, form: Expr, other: Expr) -> bool:
        """Whether a form has at least as many terms as another."""
        return self._count_linear(form) >= self._count_linear(other)

    @of_parts
    def _count_linear(self, expr: Expr) -> Asking:
        """How many terms a form has."""
        total = 0
        for a in self._summands(expr):
            total += yield a
        return min(total, ENDLESS) if self._summands(expr) else 1

    def _linear_leaves(self, expr: Expr) -> set[Expr]:
        """The different forms among them."""
        seen, todo = {expr}, [expr]
        leaves: set[Expr] = set()
        while todo:
            e = todo.pop()
            parts = self._summands(e)
            todo += [a for a in parts if a not in seen]
            seen.update(parts)
            leaves.update(() if parts else (e,))
        return leaves

    def _summands(self, expr: Expr) -> tuple[Expr, ...]:
        """What a sum or a multiple consists of, without constants; nothing of another form."""
        if not isinstance(expr, Apply) or expr.op not in (add, sub, neg, mul, div):
            return ()
        return tuple(a for a in expr.args if not self.is_constant(a))

    # Products of atoms

    @of_parts
    def products(self, expr: Expr) -> Asking:
        """The expression as a sum of products of atoms; products of sums are multiplied out."""
        return (yield from self.multiplied_out(expr))

    @of_parts
    def size(self, expr: Expr) -> Asking:
        """How large that sum is; it is not multiplied out."""
        return (yield from self.multiplied_size(expr))

    def multiplied_out(self, expr: Expr, kept: Callable[[Expr], bool] = lambda e: False) -> Asking:
        """The same, but for what is kept as one atom."""
        whole = self.unwound(expr)
        if whole is not expr:
            return (yield whole)
        if self.is_constant(expr):
            return (Product((expr,)),)
        if self._is_one_atom(expr, kept):
            return (Product((), (self.as_atom(expr),)),)
        assert isinstance(expr, Apply)
        if expr.op is pow_:
            base, power = expr.args
            rest = base if power == Const(2.0) else Apply(mul, (base, base))
            return (yield Apply(mul, (base, rest)))
        left = yield expr.args[0]
        if expr.op is add and expr.args[0] is expr.args[1]:
            return tuple(Product((TWO, *p.constants), p.atoms) for p in left)
        if expr.op is div:
            inverse = Apply(div, (Const(1.0), expr.args[1]))
            return tuple(Product((*p.constants, inverse), p.atoms) for p in left)
        if expr.op is neg:
            return tuple(p.negative for p in left)
        right = yield expr.args[1]
        if expr.op is mul:
            both = [Product(p.constants + q.constants, p.atoms + q.atoms) for p in left for q in right]
            return tuple(map(self._merge, both))
        return (*left, *(q.negative if expr.op is sub else q for q in right))

    def multiplied_size(self, expr: Expr, kept: Callable[[Expr], bool] = lambda e: False) -> Asking:
        """The size of what `multiplied_out` returns."""
        whole = self.unwound(expr)
        if whole is not expr:
            return (yield whole)
        if self.is_constant(expr) or self._is_one_atom(expr, kept):
            return Size(1, 1)
        assert isinstance(expr, Apply)
        left = yield expr.args[0]
        if expr.op is pow_:
            return left * left if expr.args[1] == Const(2.0) else left * left * left
        if expr.op in (neg, div) or (expr.op is add and expr.args[0] is expr.args[1]):
            return Size(left.products, left.factors + left.products)
        right = yield expr.args[1]
        return left * right if expr.op is mul else left + right

    def is_long_function(self, expr: Expr) -> bool:
        """Whether it is a function of one form without parameters, with many parts: it stays one atom."""
        known = self.answers.setdefault("is_long_function", {})
        if expr not in known:
            nodes = sum(1 for _ in subtrees(expr))
            known[expr] = nodes > FEW_NODES and isinstance(expr, Apply) and self._is_plain(expr)
        return known[expr]

    def _is_one_atom(self, expr: Expr, kept: Callable[[Expr], bool]) -> bool:
        """Whether the expression stays as it is: a function of one form, or what cannot come apart."""
        if not isinstance(expr, Apply) or not self._splits(expr) or kept(expr):
            return True
        return self._is_plain(expr)

    def _is_plain(self, expr: Expr) -> bool:
        """Whether it is a function of one form, without parameters."""
        atom = self.as_atom(expr)
        return atom.unary and refs(atom.body) == [HOLE.name]

    @of_parts
    def _count_factors(self, expr: Expr) -> Asking:
        if not isinstance(expr, Apply) or expr.op is not mul:
            return 1
        left, right = (yield self.resolved(expr.args[0])), (yield self.resolved(expr.args[1]))
        return min(left + right, ENDLESS)

    def factors(self, expr: Expr) -> list[Expr]:
        """The factors of a product, where there are not too many; squares of squares stay whole."""
        found, stack = [], [expr]
        while stack:
            x = self.resolved(stack.pop())
            if isinstance(x, Apply) and x.op is mul and self._count_factors(x) <= LONGEST_PRODUCT:
                stack += reversed(x.args)
            else:
                found.append(x)
        return found

    def _splits(self, expr: Apply) -> bool:
        """Arithmetic that can be multiplied out: an atom without parameters is worth more than its parts."""
        if expr.op is pow_:
            return expr.args[1] in (Const(2.0), Const(3.0))
        return expr.op in (add, sub, neg, mul) or (expr.op is div and self.is_constant(expr.args[1]))

    def _merge(self, product: Product) -> Product:
        """Atoms of one form become one atom."""
        merged: dict[Expr, Atom] = {}
        rest: list[Atom] = []
        for atom in product.atoms:
            if not atom.unary:
                rest.append(atom)
            elif atom.forms[0] in merged:
                body = Apply(mul, (merged[atom.forms[0]].body, atom.body))
                merged[atom.forms[0]] = Atom(body, atom.forms, True)
            else:
                merged[atom.forms[0]] = atom
        return Product(product.constants, (*merged.values(), *rest))

    def as_atom(self, expr: Expr) -> Atom:
        """The expression as a function of its forms; of one, if it has only one and mixes no index."""
        known = self.answers.setdefault("as_atom", {})
        if expr not in known:
            known[expr] = self._as_atom(expr)
        return known[expr]

    def _as_atom(self, expr: Expr) -> Atom:
        unique = self.maximal_forms(expr)
        if len(unique) == 1 and not self.mixes(expr, unique):
            return Atom(replace_exprs(expr, {unique[0]: HOLE}), unique, True)
        ref = self._only_vector(unique)
        if ref is not None and not self.mixes(expr, (ref,)):
            return Atom(replace_exprs(expr, {ref: HOLE}), (ref,), True)
        return Atom(expr, unique, False)

    def _only_vector(self, forms: tuple[Expr, ...]) -> Ref | None:
        """The only vector that is named in some forms, if there is one only."""
        only: Ref | None = None
        for name in (name for form in forms for name in refs(form)):
            if not self.is_constant(Ref(name)) and Ref(name) is not only:
                if only is not None:
                    return None
                only = Ref(name)
        return only

    @of_parts
    def maximal_forms(self, expr: Expr) -> Asking:
        """The largest affine subexpressions that are not constant."""
        if self.is_constant(expr):
            return ()
        if self.is_affine(expr):
            return (expr,)
        assert isinstance(expr, Apply), f"{expr} is neither a form nor unwound"
        found: dict[Expr, None] = {}
        for a in expr.args:
            found |= dict.fromkeys((yield a))
        return tuple(found)

    def mixes(self, expr: Expr, leaves: tuple[Expr, ...]) -> bool:
        """Whether an index map or a mixing operation stands between the expression and a leaf of it."""
        inner = {node for node in subtrees(expr, leaves) if isinstance(node, Apply)}
        return any(not isinstance(node.op, Function) and not self.is_constant(node) for node in inner)

    # Independent families

    @cached_property
    def families(self) -> dict[str, str]:
        """For every G-var the representative of its family; different families are independent."""
        labels: dict[str, list[Any]] = {
            n: [] for n, type_ in self.program.types.items() if isinstance(type_, G)
        }

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
            for node in subtrees(self.unwound(expr), seen):
                seen.add(node)
                if isinstance(node, Apply) and self.is_affine(node) and not self.is_constant(node):
                    join(node, refs(node))
        return {name: part[0] for part in components(list(labels), labels.__getitem__) for name in part}

    @of_parts
    def families_in(self, expr: Expr) -> Asking:
        """The families of all G-vars that an expression is made of."""
        if isinstance(expr, Ref):
            if expr.name in self.families:
                return frozenset([self.families[expr.name]])
            source = self.program.definitions.get(expr.name)
            return (yield source.expr) if isinstance(source, Nonlin) else frozenset()
        found: frozenset[str] = frozenset()
        for a in _args(expr):
            more = yield a  # one set for all that have the same families: products are long
            found = more if found <= more else found if more <= found else found | more
        return found

    @cached_property
    def noise(self) -> frozenset[str]:
        """The families that are drawn anew for each input: different inputs are independent in them."""
        drawn = set(self.program.noise)
        for s in self.program.of(LinComb) if drawn else ():
            if {name for name in refs(s.expr) if not self.is_constant(Ref(name))} <= drawn:
                drawn.add(s.name)
        others = {family for name, family in self.families.items() if name not in drawn}
        return frozenset(self.families[name] for name in drawn if name in self.families) - others

    def families_of(self, atom: Atom) -> frozenset[str]:
        """The families that an atom depends on."""
        if atom not in self._families_of:
            names = (name for form in atom.forms for name in refs(form))
            self._families_of[atom] = frozenset(self.families[n] for n in names if n in self.families)
        return self._families_of[atom]

    @cached_property
    def has_batchnorm_slopes(self) -> bool:
        """Whether a derivative of batchnorm occurs anywhere."""
        nodes = (node for expr in self.program.expressions() for node in subtrees(expr))
        return any(isinstance(node, Apply) and node.op is d_batchnorm for node in nodes)

    def sampled_families(self, atom: Atom) -> frozenset[str]:
        """Those that must be sampled for the expectation of an atom; of derivatives not the directions."""
        match atom.body:
            case Apply(op, (x, _)) if op is d_batchnorm:
                return self.families_in(x)
        return self.families_of(atom)


def replace_exprs(expr: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """The expression with the largest parts that `table` knows replaced; a part may hold another one."""
    return transform(expr, lambda ref: ref, table)


def _args(expr: Expr) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, Apply) else ()
