"""mu, Sigma, the scalar limits and second moments of a program, by recursion on demand.

In the limit every vector is a random number on a Gaussian space, so all there is are expectations:

    cov(e, f)     covariance of two forms (affine in G-vars): bilinear; var_W E[h h'] for one matrix W
    second(e, f)  E[e f] of any two expressions
    first(e)      E[e]

`e` belongs to the left input, `f` to the right one. Linear operations act on the result from the
outside; what is left are products of atoms, which factor over independent families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from netsor.errors import LimitError, NetsorError
from netsor.lang.blocks import Block
from netsor.lang.check import Inferred, infer
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs
from netsor.lang.functions import add, div, neg, sub
from netsor.lang.index_maps import contract, sum_, window
from netsor.lang.libraries import is_traced
from netsor.lang.ops import IndexMap
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    MatrixLaw,
    Moment,
    Nonlin,
    Normal,
    Output,
    Program,
    Scalar,
    used_by,
)
from netsor.lang.sampling import input_mean
from netsor.lang.types import C, G, Index
from netsor.limits.methods.expectation import Expectations
from netsor.limits.recursion.fit import Fit
from netsor.limits.recursion.forms import Forms, replace_exprs
from netsor.limits.recursion.leaves import (
    embedded_second,
    independent_matrices,
    normal_covariance,
    window_both_sides,
)
from netsor.limits.recursion.pairs import Pair, apply_left, diagonal, outer, swap
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import array_namespace, tape_of

__all__ = ["Engine"]

Array = Any
Inner = Callable[[Expr, Expr, Pair, bool], Array | None]


class Engine:
    """One evaluation of a program on groups of inputs.

    data     arrays of the program
    batched  which of them have a leading axis over inputs
    params   variances by name of input, in place of the program's own
    """

    def __init__(
        self,
        program: Program,
        data: Mapping[str, Array],
        batched: frozenset[str],
        expectations: Callable[[Engine], Expectations],
        params: Mapping[str, Any] | None = None,
        forms: Forms | None = None,
    ) -> None:
        self.program, self.params = program, params or {}
        self.forms = forms or Forms(program)
        arrays = [*data.values(), *(p for p in self.params.values() if hasattr(p, "shape"))]
        self.xp = array_namespace(*arrays) if arrays else np
        self.data = {
            name: Block(array[None, ...] if name in batched else array[None, None, ...], self._rank(name))
            for name, array in data.items()
        }
        self._inputs = self._count_inputs()
        self._cov: dict[Any, Array | None] = {}
        self._second: dict[Any, Array] = {}
        self._first: dict[Expr, Array] = {}
        self._means: dict[Expr, Array] = {}
        self._scalars: dict[str, Block] = {}
        self.embedded: dict[Expr, Array] = {}
        self.expectations = expectations(self)

    # Shapes and constants

    def _rank(self, name: str) -> int:
        return self.program.data[name].ndim

    def index(self, expr: Expr) -> Index:
        return self.inferred(expr).index

    def inferred(self, expr: Expr) -> Inferred:
        found = self.forms.inferred.get(expr)
        return found or infer(expr, self._known, _impossible, self.forms.inferred)

    def _known(self, name: str) -> Inferred:
        if name in self.program.data:
            return Inferred("K", self.program.data[name].shape)
        type_ = self.program.types[name]
        kind = "C" if isinstance(type_, C) else "G" if isinstance(type_, G) else "H"
        return Inferred(kind, type_.index, getattr(type_, "width", None))

    def variance(self, name: str) -> Any:
        """The variance of a matrix, or of an input with one number as its law."""
        source = self.program.definitions[name]
        assert isinstance(source, Input)
        own = source.law.var if isinstance(source.law, MatrixLaw) else getattr(source.law, "cov", None)
        return self.params.get(name, own)

    def constant(self, expr: Expr) -> Array:
        """Limit of a constant expression, shape (repeats, inputs, index...)."""
        if isinstance(expr, Const):
            return self.xp.full((1, 1), expr.value)
        value = self._evaluated(expr)
        if isinstance(value.array, float):
            return self.xp.full((1, 1), value.array)
        return value.array if value.array.ndim > value.rank else value.array[None, None, ...]

    def _evaluated(self, expr: Expr) -> Block:
        """The value of a constant expression; where it is only recorded and looks at values, as one step."""
        blocks = {name: self.block(name) for name in refs(expr)}
        tape = tape_of(*(b.array for b in blocks.values()))
        if tape is None:
            return evaluate(expr, blocks)
        try:
            return evaluate(expr, blocks)
        except (TypeError, AttributeError, ValueError):
            return self._as_one_step(expr, blocks, tape)

    def _as_one_step(self, expr: Expr, blocks: Mapping[str, Block], tape: Tape) -> Block:
        def run(*arrays: Array) -> Array:
            parts = zip(blocks.items(), arrays, strict=True)
            return evaluate(expr, {name: Block(array, b.rank, b.vector) for (name, b), array in parts}).array

        ones = [np.ones(b.array.shape) for b in blocks.values()]
        like = evaluate(
            expr, {n: Block(one, b.rank) for (n, b), one in zip(blocks.items(), ones, strict=True)}
        )
        body = replace_exprs(expr, {Ref(n): Ref(f"@{k}") for k, n in enumerate(blocks)})
        kind = ("expression", body, tuple((b.rank, b.vector) for b in blocks.values()))
        made = tape.call(run, tuple(b.array for b in blocks.values()), like.array.shape, kind=kind)
        return Block(made, like.rank, like.vector)

    def block(self, name: str) -> Block:
        """Data, or the limit of a C-var, or the mean of a G-var."""
        if name in self.data:
            return self.data[name]
        if isinstance(self.program.types[name], C):
            return self.scalar(name)
        return Block(self.mean(Ref(name)), len(self.program.types[name].index))

    def scalar(self, name: str) -> Block:
        """The limit of a C-var."""
        if name not in self._scalars:
            source = self.program.definitions[name]
            assert isinstance(source, Moment | Scalar)
            value = self.first(source.expr) if isinstance(source, Moment) else self.constant(source.expr)
            value = _finite(name, value)
            self._scalars[name] = Block(value, len(self.program.types[name].index))
        return self._scalars[name]

    # Means and covariances of forms

    def mean(self, form: Expr) -> Array:
        """E of an affine expression, shape (repeats, inputs, index...)."""
        if form not in self._means:
            self._means[form] = self._mean(form)
        return self._means[form]

    def _mean(self, form: Expr) -> Array:
        if not isinstance(form, Ref) or self.forms.is_constant(form):
            return self.constant(form)
        source, index = self.program.definitions[form.name], self.program.types[form.name].index
        match source:
            case LinComb():
                return self.mean(source.expr)
            case Input(law=Normal()):
                return self.xp.asarray(input_mean(source).reshape((1, 1, *index)))
            case _:
                return self.xp.zeros((1, 1, *index))

    def variance_of(self, form: Expr) -> Array:
        """Var of a form for every input, shape (repeats, inputs, index...)."""
        found = self.cov(form, form, Pair(True), True)
        if found is None:
            return self.xp.zeros((1, 1, *(1,) * len(self.index(form))))
        return found * _positive(found)

    def cov(self, e: Expr, f: Expr, pair: Pair, tie: bool) -> Array | None:
        """Cov(e, f) of two affine expressions; None is a structural zero."""
        key = (e, f, pair, tie)
        if key not in self._cov:
            self._cov[key] = self._cov_of(e, f, pair, tie)
        return self._cov[key]

    def _cov_of(self, e: Expr, f: Expr, pair: Pair, tie: bool) -> Array | None:
        """Sums and factors come apart first, then index maps: those of independent matrices are fused."""
        if not self.forms.sources(e) & self.forms.sources(f):
            return None
        e, f = self._written_out(e), self._written_out(f)
        for side in _longer_first(self.forms.sources(e), self.forms.sources(f)):
            x = (e, f)[side]
            if isinstance(x, Apply) and not isinstance(x.op, IndexMap):
                return self.combined(side, e, f, pair, tie, self.cov)
        fused = self._fused(e, f, pair, tie)
        if fused is not NotImplemented:
            return fused
        if isinstance(e, Apply):
            return self.mapped(e, f, pair, tie, self.cov)
        if isinstance(f, Apply):
            return self.swapped(self.cov(f, e, pair.flipped, tie), f, e, pair, tie)
        return self.leaf(e, f, pair, tie)

    def _written_out(self, e: Expr) -> Expr:
        """A LinComb as the expression that it is."""
        source = self.program.definitions.get(e.name) if isinstance(e, Ref) else None
        return self._written_out(source.expr) if isinstance(source, LinComb) else e

    def swapped(self, block: Array | None, f: Expr, e: Expr, pair: Pair, tie: bool) -> Array | None:
        """The block of (f, e) read as the block of (e, f)."""
        if block is None:
            return None
        return swap(block, pair.batch, len(self.index(f)), len(self.index(e)), tie)

    def _fused(self, e: Expr, f: Expr, pair: Pair, tie: bool) -> Any:
        """Convolutions and joined heads: the matrices of a block are independent, so one sum is left."""
        match e, f:
            case Apply(op, (Ref(g),), attrs), Apply(op2, (Ref(k),), attrs2) if op is op2 and attrs == attrs2:
                if self.matrix_of(g) is None or self.matrix_of(g) != self.matrix_of(k):
                    return NotImplemented
                matrices = len(self.program.types[self.matrix_of(g)].index)  # type: ignore[index]
                whole = matrices == dict(attrs).get("dims") and not self.aligned(g) and not self.aligned(k)
                if op is window and whole:
                    inner = self.inner(g, k, pair, tie)
                    left, right = self.operand_index(g), self.operand_index(k)
                    options = e.options  # type: ignore[union-attr]
                    kernel = self.index(Ref(g))[: options["dims"]]
                    return window_both_sides(inner, pair.batch, left, right, kernel, options, tie)
                axes = tuple(range(self.aligned(g)))
                summed = op is sum_ and axes and dict(attrs)["axis"] == axes
                if summed and not tie and self.aligned(k) == len(axes):
                    inner = self.inner(g, k, pair, False)
                    return array_namespace(inner).sum(inner, axis=tuple(a + pair.batch for a in axes))
        return NotImplemented

    def matrix_of(self, name: str) -> str | None:
        match self.program.definitions.get(name):
            case MatMul(matrix=matrix) | Input(law=Embedding(matrix=matrix)):
                return matrix
        return None

    def aligned(self, name: str) -> int:
        source = self.program.definitions[name]
        return source.aligned if isinstance(source, MatMul) else 0

    def operand_index(self, name: str) -> Index:
        """Index of the vectors that a matrix multiplies, without the aligned axes."""
        matrix = self.matrix_of(name)
        assert matrix is not None
        return self.index(Ref(name))[len(self.program.types[matrix].index) :]

    def leaf(self, e: Any, f: Any, pair: Pair, tie: bool) -> Array | None:
        """Covariance of two inputs or matrix products."""
        g, k = e.name, f.name
        matrix = self.matrix_of(g)
        if matrix is None:
            return normal_covariance(self, g, k, pair, tie)
        if matrix != self.matrix_of(k):
            return None
        index, aligned = self.program.types[matrix].index, (self.aligned(g), self.aligned(k))
        if tie and aligned[0] != aligned[1]:
            full = self.cov(e, f, pair, False)
            return (
                None if full is None else diagonal(full, pair.batch, len(self.index(e)), len(self.index(f)))
            )
        inner = self.inner(g, k, pair, tie)
        if not index:
            return inner
        ranks = (len(self.operand_index(g)), len(self.operand_index(k)))
        return independent_matrices(inner, pair.batch, index, max(aligned), ranks, tie)

    def inner(self, g: str, k: str, pair: Pair, tie: bool) -> Array:
        """var_W E[h h'] for g = W h and k = W h', for one matrix: axes (batch, aligned, left, right)."""
        matrix = self.matrix_of(g)
        assert matrix is not None
        var = pair.lift(self.variance(matrix))
        s, t = self.program.definitions[g], self.program.definitions[k]
        if isinstance(s, Input) and isinstance(t, Input):
            return var * embedded_second(self, s, t, pair, tie)
        assert isinstance(s, MatMul)
        assert isinstance(t, MatMul)
        if not s.aligned and not t.aligned:
            return var * self.second(Ref(s.operand), Ref(t.operand), pair, tie)
        return var * self._aligned_inner(s, t, pair, tie)

    def _aligned_inner(self, s: MatMul, t: MatMul, pair: Pair, tie: bool) -> Array:
        if tie:
            return self.second(Ref(s.operand), Ref(t.operand), pair, True)
        full = self.second(Ref(s.operand), Ref(t.operand), pair, False)
        left, right = self.index(Ref(s.operand)), self.index(Ref(t.operand))
        xp, batch, both = array_namespace(full), pair.batch, min(s.aligned, t.aligned)
        full = xp.broadcast_to(full, (*full.shape[:batch], *left, *right))
        for a in range(both):
            part = xp.linalg.diagonal(xp.moveaxis(full, (batch + a, batch + len(left)), (-2, -1)))
            full = xp.moveaxis(part, -1, batch + a)
        for a in range(both, t.aligned):  # axes that only the right side shares with the matrices
            full = xp.moveaxis(full, batch + len(left) + a - both, batch + a)
        return full

    # Linear operations

    def combined(self, side: int, e: Expr, f: Expr, pair: Pair, tie: bool, inner: Inner) -> Array | None:
        """A bilinear quantity of (e, f) where e (side 0) or f (side 1) is a sum or a multiple."""
        x = (e, f)[side]
        assert isinstance(x, Apply)
        fit = Fit(pair, tie, (len(self.index(e)), len(self.index(f))))

        def part(y: Expr) -> Array | None:
            left, right = (y, f) if side == 0 else (e, y)
            block = inner(left, right, pair, tie)
            return None if block is None else fit.both(block, len(self.index(left)), len(self.index(right)))

        if x.op is neg:
            value = part(x.args[0])
            return None if value is None else -value
        if x.op not in (add, sub):
            return self._scaled(side, x, part, fit)
        one, two = map(part, x.args)
        if two is None:
            return one
        if one is None:
            return -two if x.op is sub else two
        return one - two if x.op is sub else one + two

    def _scaled(self, side: int, x: Apply, part: Callable[[Expr], Array | None], fit: Fit) -> Array | None:
        """A constant times a vector, or a vector over a constant."""
        a, b = x.args
        vector, factor = (b, a) if self.forms.is_constant(a) else (a, b)
        value = part(vector)
        if value is None:
            return None
        scale = fit.one(side, self.constant(factor), len(self.index(factor)))
        return value / scale if x.op is div else value * scale

    def mapped(self, e: Apply, f: Expr, pair: Pair, tie: bool, inner: Inner) -> Array | None:
        """A bilinear quantity of (map(args), f) from those of (args, f)."""
        if not tie:
            return self._index_map(e, f, pair, inner)
        full = self._index_map(e, f, pair, inner)
        i, j = len(self.index(e)), len(self.index(f))
        return None if full is None else diagonal(full, pair.batch, i, j)

    def _index_map(self, e: Apply, f: Expr, pair: Pair, inner: Callable) -> Array | None:
        vectors = e.args[1:] if e.op is contract else e.args
        parts = [inner(a, f, pair, False) for a in vectors]
        if all(p is None for p in parts):
            return None
        right = self.index(f)
        if e.op is contract:
            matrix = pair.left(self.constant(e.args[0]))
            first = Block(matrix, len(self.index(e.args[0])))
            return apply_left(e.op, parts, pair.batch, [self.index(vectors[0])], right, e.options, first)
        like = next(p for p in parts if p is not None)
        xp, blocks = array_namespace(like), []
        for part, a in zip(parts, vectors, strict=True):
            zero = (1,) * (pair.batch + len(self.index(a)) + len(right))
            blocks.append(xp.zeros(zero, dtype=like.dtype) if part is None else part)
        return apply_left(e.op, blocks, pair.batch, [self.index(a) for a in vectors], right, e.options)

    # Second and first moments

    def second(self, e: Expr, f: Expr, pair: Pair, tie: bool) -> Array:
        """E[e f]."""
        e, f = self._resolve(e), self._resolve(f)
        key = (e, f, pair, tie)
        if key not in self._second:
            back = self._second.get((f, e, pair.flipped, tie))
            made = self._second_of(e, f, pair, tie) if back is None else self.swapped(back, f, e, pair, tie)
            assert made is not None
            self._second[key] = made
        return self._second[key]

    def _resolve(self, e: Expr) -> Expr:
        source = self.program.definitions.get(e.name) if isinstance(e, Ref) else None
        return self.forms.unwound(source.expr) if isinstance(source, Nonlin) else e

    def _second_of(self, e: Expr, f: Expr, pair: Pair, tie: bool) -> Array:
        forms, known = self.forms, self.expectations.known(e, f, pair)
        if known is not None:
            return known
        if forms.is_affine(e) and forms.is_affine(f):
            left, right = self.outer(self.mean(e), self.mean(f), e, f, pair, tie)
            cov = self.cov(e, f, pair, tie)
            return left * right if cov is None else cov + left * right
        if forms.is_constant(e):
            left, right = self.outer(self.constant(e), self.first(f), e, f, pair, tie)
            return left * right
        families = forms.families_in(e), forms.families_in(f)
        if not families[0] & families[1] and self.expectations.sampler is None:
            left, right = self.outer(self.first(e), self.first(f), e, f, pair, tie)
            return left * right
        for side in _longer_first(*families):
            x = (e, f)[side]
            if forms.is_linear_head(x) and not forms.is_affine(x):
                return self._linear_second(side, e, f, pair, tie)
        if forms.is_constant(f):
            made = self.swapped(self.second(f, e, pair.flipped, tie), f, e, pair, tie)
            assert made is not None
            return made
        return self.expectations.second(e, f, pair, tie)

    def _linear_second(self, side: int, e: Expr, f: Expr, pair: Pair, tie: bool) -> Array:
        """E[e f] where e (side 0) or f (side 1) is linear in vectors that are not affine."""
        x = (e, f)[side]
        assert isinstance(x, Apply)
        if not isinstance(x.op, IndexMap):
            made = self.combined(side, e, f, pair, tie, self.second)
        elif side == 0:
            made = self.mapped(x, f, pair, tie, self.second)
        else:
            made = self.swapped(self.second(f, e, pair.flipped, tie), f, e, pair, tie)
        assert made is not None
        return made

    def outer(
        self, left: Array, right: Array, e: Expr, f: Expr, pair: Pair, tie: bool
    ) -> tuple[Array, Array]:
        """Per-input quantities of e and f, ready to broadcast into a block of (e, f)."""
        ranks = (len(self.index(e)), len(self.index(f)))
        return outer(pair.left(left), pair.right(right), pair.batch, ranks, tie)

    def first(self, e: Expr) -> Array:
        """E[e], shape (repeats, inputs, index...)."""
        e = self._resolve(e)
        if e not in self._first:
            self._first[e] = self._first_of(e)
        return self._first[e]

    def _first_of(self, e: Expr) -> Array:
        forms = self.forms
        if forms.is_constant(e):
            return self.constant(e)
        if forms.is_affine(e):
            return self.mean(e)
        if forms.is_linear_head(e):
            return self._first_linear(e)
        return self.expectations.first(e)

    def _first_linear(self, e: Expr) -> Array:
        """Linear operations on expectations; constants keep their value."""
        assert isinstance(e, Apply)
        args = [Block(self.first(a), len(self.index(a))) for a in e.args]
        made = e.op.run(*args, **e.options)
        return made.array

    def forget_tile(self) -> None:
        """Drop what belongs to pairs of inputs; what belongs to single inputs stays."""
        for memo in (self._cov, self._second, self.expectations.pairs):
            for key in [k for k in memo if not k[2].same]:
                del memo[key]

    @property
    def most_inputs(self) -> int:
        """The number of inputs of the largest group."""
        return max(self._inputs.values(), default=1)

    def inputs_of(self, e: Expr) -> int:
        """How many inputs an expression has values for: those of its group, or 1 if all share it."""
        return max((self._inputs[name] for name in refs(e)), default=1)

    def _count_inputs(self) -> dict[str, int]:
        counts = {name: block.array.shape[1] for name, block in self.data.items()}
        for s in self.program.statements:
            if not isinstance(s, Output):
                counts[s.name] = max((counts[name] for name in used_by(s)), default=1)
        return counts


def _finite(name: str, value: Array) -> Array:
    """The value of a C-var, unless it has none."""

    def checked(value: Array) -> Array:
        if is_traced(value) or bool(array_namespace(value).all(array_namespace(value).isfinite(value))):
            return value
        raise LimitError(
            f"the C-var `{name}` has no limit on these inputs: it is not finite",
            remedy="Most often a variance that it divides by is 0, as in the layernorm of a vector that is "
            "0. Add an eps or a bias, or leave out the input.",
        )

    tape = tape_of(value)
    return tape.call(checked, (value,), value.shape, kind="finite") if tape else checked(value)


def _longer_first(left: frozenset[str], right: frozenset[str]) -> tuple[int, int]:
    """The sides, that with more independent parts first: a long sum then meets parts of itself only.

    So the second moment of a state that grows by a term per layer takes a few new products per layer, and not
    one for each pair of layers.
    """
    return (0, 1) if len(left) >= len(right) else (1, 0)


def _impossible(what: str, *_: Any) -> NetsorError:
    return NetsorError(f"an expression of a checked program is ill-typed: {what}")


def _positive(x: Array) -> Array:
    return array_namespace(x).astype(x > 0, x.dtype)
