"""Properties of whole programs: text, variants, expansion, names, batches, and what is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import input_programs, programs, typed

from netsor.errors import TypeCheckError
from netsor.lang import parse, show
from netsor.lang.blocks import Block
from netsor.lang.expand import _Writer
from netsor.lang.expr import Apply, subtrees
from netsor.lang.functions import named
from netsor.lang.lower import VARIANTS
from netsor.lang.program import Input, LinComb, Moment, Nonlin, Normal, Program, Scalar, Term, used_by
from netsor.lang.types import A, H
from netsor.simulation import draw, forward, simulate
from netsor.simulation.simulate import SimulationRun
from variants import variant_of

PLUS = [v for v in VARIANTS if v.endswith("+")]
Weights = dict[str, np.ndarray]


# Helpers


def widths_of(program: Program) -> dict[str, int]:
    """Small widths, all different, so that no two can be mistaken for each other."""
    return {name: 4 + i for i, name in enumerate(program.widths)}


def weights_of(program: Program) -> Weights:
    return draw(program, widths_of(program), np.random.default_rng(0))


def run(program: Program, weights: Weights, data: Mapping | None = None) -> dict[str, Block]:
    """The values of all variables."""
    return forward(program, weights, data, keep=True)


def outputs(program: Program, weights: Weights) -> np.ndarray:
    """All output scalars in order."""
    return readouts(program, forward(program, weights), weights)


def readouts(program: Program, values: Mapping[str, Block], weights: Weights) -> np.ndarray:
    """By the definition: sums over terms and aligned members of v^T y / sqrt(n)."""
    parts = []
    for s in program.outputs:
        terms = [read(t, weights[t.readout], values[t.operand].array) for t in s.terms]
        parts.append(sum(terms[1:], terms[0]).ravel())
    return np.concatenate(parts)


def read(t: Term, v: np.ndarray, y: np.ndarray) -> np.ndarray:
    k = t.aligned
    own, rest = v.shape[k:-1], y.shape[k:-1]
    out = np.zeros(own + rest)
    for i in np.ndindex(own):
        for j in np.ndindex(rest):
            out[i + j] = sum(v[m + i] @ y[m + j] for m in np.ndindex(v.shape[:k]))
    return out / np.sqrt(v.shape[-1])


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)


def assert_same_values(program: Program, other: Program, weights: Weights) -> None:
    """Both have the same outputs, and the same values of all variables that both have."""
    assert_close(outputs(other, weights), outputs(program, weights))
    wanted, found = run(program, weights), run(other, weights)
    for name in wanted.keys() & found.keys():
        assert_close(found[name].array, wanted[name].array)


def assert_reads_back(program: Program) -> None:
    assert parse(show(program), functions=program.functions) == program


def variants_for(program: Program) -> tuple[str, ...]:
    """With a `+` for every program, without for those that have no C-vars."""
    return tuple(PLUS) if program.of(Moment) or program.of(Scalar) else VARIANTS


# The strategy itself


def test_programs_reach_every_operation() -> None:
    """Every operation of the language is drawn, in both forms, and so is every kind of statement."""
    seen: set[str] = set()

    @settings(max_examples=max(400, settings().max_examples))
    @given(programs())
    def collect(program: Program) -> None:
        for expr in program.expressions():
            for node in subtrees(expr):
                if isinstance(node, Apply):
                    seen.update({node.op.name, f"{node.op.name} pick={node.pick is not None}"})
        seen.update(type(s).__name__ for s in program.statements)
        seen.update(type(s.law).__name__ for s in program.inputs)

    collect()
    statements = {"MatMul", "LinComb", "Nonlin", "Moment", "Scalar", "Output", "Normal", "Embedding"}
    picked = {f"{name} pick=True" for name in ("batchnorm", "softmax", "centre", "unit")}
    made = {"d_batchnorm"}  # by tangents alone: see test_tangents
    assert statements | picked | set(named()) - made <= seen


# Text


@given(programs())
def test_text_reads_back(program: Program) -> None:
    assert_reads_back(program)
    assert_reads_back(typed(program))


@given(programs(types=None))
def test_text_with_some_types_reads_back(program: Program) -> None:
    assert_reads_back(program)
    assert typed(parse(show(program), functions=program.functions)) == typed(program)


ROLES = """
Data x = [[1, 2], [0, 1]]
Input U :: A(n, 2) ~ N(0, 1/2)
Input W :: A(n, n) ~ N(0, 1/n)
Input g :: G(n)[2] ~ MatMul(U, x)
Input b :: G(n) ~ N(0, 1)
Input b2 :: G(n) ~ N(0, 1, b: 0.5)
Input v :: G(n) ~ N(0, 1)
h := b + g
y := relu(h) + b
k := MatMul(W, y)
k2 := k + g
c := Moment(y)
d := c + 1
z := d*k
z2 := Nonlin(z)
Output v^T y / sqrt(n) + v^T k / sqrt(n)
"""
WORDS = ["Data", "Input", "Output", "MatMul", "Moment", "Nonlin", "N", "T", "A", "G", "H", "C", "None"]
WORDS += ["sum", "sqrt", "relu", "axes", "aligned", "inf", "nan"]


@pytest.mark.parametrize("word", WORDS)
def test_names_are_refused_or_read_back(word: str) -> None:
    """A name that has a meaning in the text is a name like any other, or the checker refuses it."""
    program = parse(ROLES)
    renamed = [program.rename({name: word}) for name in [*program.types, *program.data]]
    for one in [*renamed, program.rename({}, {"n": word})]:
        try:
            one.check()
        except TypeCheckError:
            continue
        assert_reads_back(one)


# Variants


@given(programs())
def test_lowered_programs_check_and_read_back(program: Program) -> None:
    for variant in variants_for(program):
        lowered = program.lower(variant)
        lowered.check()
        assert_reads_back(lowered)
        assert lowered.lower(variant) == lowered
        assert typed(program).lower(variant) == lowered


@given(programs())
def test_lowered_programs_are_in_their_variant(program: Program) -> None:
    """Functions of C-vars are written where they are used; one that nothing uses stays as it is."""
    used = {name for s in program.statements for name in used_by(s)}
    for variant in variants_for(program):
        lowered = program.lower(variant)
        base = variant.removesuffix("+")
        if base != "netsor-o":
            assert variant_of(lowered) in ("netsor", "netsor+")
            assert not mentions_h(lowered)
            assert not [s for s in lowered.of(Scalar) if s.name in used]
        if base == "netsor-minus":
            assert not lowered.of(LinComb)


def mentions_h(program: Program) -> list[str]:
    """The H-vars (that are no G-vars) among what nonlinearities and moments take."""
    names = [n for s in program.statements if isinstance(s, Nonlin | Moment) for n in used_by(s)]
    return [n for n in names if n not in program.data and type(program.types[n]) is H]


@given(programs())
def test_lowering_keeps_values(program: Program) -> None:
    weights = weights_of(program)
    for variant in variants_for(program):
        assert_same_values(program, program.lower(variant), weights)


@given(programs())
def test_lowering_one_after_the_other_keeps_values(program: Program) -> None:
    weights = weights_of(program)
    wanted = outputs(program, weights)
    for first in PLUS:
        for second in PLUS:
            assert_close(outputs(program.lower(first).lower(second), weights), wanted)


# Expansion


def split(program: Program, arrays: Mapping[str, np.ndarray]) -> Weights:
    """Arrays of blocks as arrays of their members, under the names that `expand` gives them."""
    names = _Writer(program).names
    present = [k for k in arrays if k in names]
    return {names[k][i]: arrays[k][i] for k in present for i in np.ndindex(names[k].shape)}


@given(programs())
def test_expanded_programs_check_and_read_back(program: Program) -> None:
    expanded = program.expand()
    assert all(type_.index == () for type_ in expanded.check().values())
    assert_reads_back(expanded)
    assert expanded.expand() == expanded
    assert typed(program).expand() == expanded


@given(programs())
def test_expanding_keeps_values(program: Program) -> None:
    weights, expanded = weights_of(program), program.expand()
    parts = split(program, weights)
    assert_close(outputs(expanded, parts), outputs(program, weights))
    values = {k: b.array for k, b in run(program, weights).items() if k not in program.data}
    members, found = split(program, values), run(expanded, parts)
    for name in found.keys() - program.data.keys():
        assert_close(found[name].array, members[name])


@given(programs())
def test_expanding_and_lowering_keep_values(program: Program) -> None:
    weights = weights_of(program)
    wanted = outputs(program, weights)
    for variant in PLUS:
        lowered = program.lower(variant)
        assert_close(outputs(lowered.expand(), split(lowered, weights)), wanted)
        assert_close(outputs(program.expand().lower(variant), split(program, weights)), wanted)


# Names


@given(programs(types=None), st.data())
def test_renaming_keeps_the_canonical_program_and_its_values(program: Program, data: st.DataObject) -> None:
    names, widths = renaming(program, data)
    renamed, canonical = program.rename(names, widths), program.canonical()
    assert renamed.widths == {widths[n]: [names[v] for v in vs] for n, vs in program.widths.items()}
    assert renamed.canonical() == canonical
    assert canonical.canonical() == canonical
    assert_reads_back(canonical)
    weights = weights_of(program)
    new = {names[k]: array for k, array in weights.items()}
    assert_close(outputs(renamed, new), outputs(program, weights))


def renaming(program: Program, data: st.DataObject) -> tuple[dict[str, str], dict[str, str]]:
    """Other names for everything: old names exchanged, and new ones."""
    old, dims = [*program.data, *program.types], [*all_widths(program)]
    names = data.draw(st.permutations(old + [f"z{i}" for i in range(len(old))]))
    widths = data.draw(st.permutations(dims + [f"m{i}" for i in range(len(dims))]))
    return dict(zip(old, names, strict=False)), dict(zip(dims, widths, strict=False))


def all_widths(program: Program) -> dict[str, None]:
    matrices = [t for t in program.types.values() if isinstance(t, A)]
    dims = [d for t in matrices for d in (t.rows, t.cols) if isinstance(d, str)]
    return dict.fromkeys([*program.widths, *dims])


# Simulation


@given(programs())
def test_values_have_their_types(program: Program) -> None:
    widths, values = widths_of(program), run(program, weights_of(program))
    for name, type_ in program.types.items():
        if isinstance(type_, A):
            continue
        shape = (*type_.index, widths[type_.width]) if isinstance(type_, H) else type_.index
        assert values[name].index == type_.index
        assert np.shape(values[name].array) == shape


@given(programs())
def test_single_precision_stays_single(program: Program) -> None:
    """Numbers of the program widen no vector. (A function of the user's own may return what it likes.)"""
    if program.functions:
        return
    weights = draw(program, widths_of(program), np.random.default_rng(0), np.float32)
    for name, value in run(program, weights).items():
        assert not value.vector or value.array.dtype == np.float32, name


def test_a_matrix_that_nothing_uses_is_drawn() -> None:
    """Its widths are widths of the program, though no vector has them."""
    program = parse(
        """
        Input W :: A(n, m) ~ N(0, 1/m)
        Input g :: G(n) ~ N(0, 1)
        Input v :: G(n) ~ N(0, 1)
        Output v^T g / sqrt(n)
        """
    )
    assert simulate(program, width=4, samples=2, seed=0).shape == (2, 1)


@given(programs(), st.data())
def test_a_batch_is_one_input_after_the_other(program: Program, data: st.DataObject) -> None:
    weights, rng, size = weights_of(program), np.random.default_rng(1), 3
    batch = dict(program.data)
    for name in program.data:
        if data.draw(st.booleans()):
            noise = rng.uniform(-0.2, 0.2, (size, *batch[name].shape))
            batch[name] = batch[name] + noise
    together = run(program, weights, batch)
    for i in range(size):
        one = {k: a[i] if a.ndim > program.data[k].ndim else a for k, a in batch.items()}
        for name, wanted in run(program, weights, one).items():
            found = np.broadcast_to(together[name].array, (size, *np.shape(wanted.array)))[i]
            assert_close(found, wanted.array)


@given(programs())
def test_simulated_outputs_are_readouts(program: Program) -> None:
    weights = weights_of(program)
    found = SimulationRun(program, None, widths_of(program), float).outputs(weights)
    assert_close(found, outputs(program, weights))


@given(programs())
def test_empirical_kernel_is_the_covariance_given_the_body(program: Program) -> None:
    """The outputs are linear in the readouts: their covariance is L Sigma L^T with the readouts' Sigma."""
    weights, widths = weights_of(program), widths_of(program)
    values = forward(program, weights)
    names = list(dict.fromkeys(t.readout for s in program.outputs for t in s.terms))
    nothing = {k: np.zeros_like(weights[k]) for k in names}
    columns = []
    for name in names:
        for i in np.ndindex(weights[name].shape):
            unit = np.zeros_like(weights[name])
            unit[i] = 1.0
            columns.append(readouts(program, values, {**nothing, name: unit}))
    linear = np.stack(columns, axis=1)
    found = SimulationRun(program, None, widths, float).kernel(weights)
    assert_close(found, linear @ sigma_in(program, names, widths) @ linear.T)


def covariance(program: Program, first: str, second: str) -> np.ndarray:
    """Sigma_in of two inputs with explicit laws, as their statements say."""
    s, t = program.definitions[first], program.definitions[second]
    assert isinstance(s, Input)
    assert isinstance(t, Input)
    rows, cols = prod(s.type.index), prod(t.type.index)
    assert isinstance(s.law, Normal)
    assert isinstance(t.law, Normal)
    if first == second:
        return np.eye(rows) * s.law.cov if isinstance(s.law.cov, float) else np.array(s.law.cov)
    for name, value in s.law.cross:
        if name == second:
            return np.reshape(value, (rows, cols))
    for name, value in t.law.cross:
        if name == first:
            return np.reshape(value, (cols, rows)).T
    return np.zeros((rows, cols))


def sigma_in(program: Program, names: list[str], widths: Mapping[str, int]) -> np.ndarray:
    """The covariance of all coordinates of several inputs, flattened one after the other."""
    types: dict[str, Any] = {name: program.types[name] for name in names}
    rows = []
    for s in names:
        row = []
        for t in names:
            n, m = (widths[types[k].width] for k in (s, t))
            row.append(np.kron(covariance(program, s, t), np.eye(n, m)))
        rows.append(row)
    return np.block(rows)


@given(input_programs())
def test_drawn_inputs_have_their_mean_and_covariance(program: Program) -> None:
    """Errors of the sample mean and covariance, in units of their standard errors, stay below 6."""
    n, names = 20_000, [s.name for s in program.inputs]
    weights = draw(program, dict.fromkeys(program.widths, n), np.random.default_rng(0))
    sample = np.concatenate([weights[k].reshape(-1, n) for k in names])
    laws: dict[str, Any] = {s.name: s.law for s in program.inputs}
    wanted = np.concatenate([np.broadcast_to(laws[k].mean, weights[k].shape[:-1]).ravel() for k in names])
    sigma = np.block([[covariance(program, s, t) for t in names] for s in names])
    variances = np.diag(sigma)
    centred = sample - wanted[:, None]
    assert_within(centred.mean(axis=1), 0 * variances, variances / n)
    assert_within(centred @ centred.T / n, sigma, (np.outer(variances, variances) + sigma**2) / n)


def assert_within(found: np.ndarray, wanted: np.ndarray, variance: np.ndarray) -> None:
    assert (np.abs(found - wanted) <= 6 * np.sqrt(variance) + 1e-9).all()


# Programs on which one of these properties once failed

INPUTS = """
Data x = [1, 2]
Data m = [1, 0]
Data rows = [[1, 2], [3, 4]]
Data zero_row = [[0, 0], [1, 2]]
Input W :: A(n, n)[3] ~ N(0, 1/n)
Input W2 :: A(n, n)[2, 2] ~ N(0, 1/n)
Input a :: G(n)[2] ~ N(0, 1)
Input b :: G(n) ~ N(0, 1)
Input v :: G(n) ~ N(0, 1)
"""
ONCE_FAILED = [
    # the text form
    "h := -x*a",
    "h := mean(b, axis=[])",
    "h := reshape(b[None], shape=[])",
    # members of which nothing is left
    "h := contract(zero_row, a)*2",
    "h := contract(zero_row, a) + b",
    "h := contract(zero_row, a) - b",
    "h := b - -contract(zero_row, a)",
    "c := Moment(contract(zero_row, a)); h := c[0]*b",
    "c := Moment(a); h := contract(zero_row, a) + c",
    "c := Moment(b); h := stack(b, c)",
    # numbers where there are blocks
    "h := stack(1, b)",
    "h := b*(1/3)",
    "c := Moment(a); d := softmax(c, 1 - m, axis=0); h := d*a",
    # windows that are, or only look like, convolutions
    'h := a*window(rows, dims=1, padding="same")',
    'g := MatMul(W, a); h := window(g, dims=1, padding="same")',
    'g := MatMul(W, a); h := window(g, dims=1, padding="same") + window(g, dims=1, padding="circular")',
    'g := MatMul(W, a); h := window(g, dims=1, padding="same") + sum(g, axis=0)',
    'g := MatMul(W2, a); h := window(g, dims=1, padding="same")',
    # a bounded function whose values on a ray look steep
    "h := exp(tanh(b))*(cos(0.2*b) + cos(0.2*a[0]))*gelu(0.23*a[1])*0.262",
    "h := 4.6e-05*b^8*step(8.1 - abs(b))*exp(tanh(b))",
    # a readout that meets one output twice
    "h := relu(b); Output v^T h / sqrt(n) + v^T b / sqrt(n)",
]
PROPERTIES = [
    test_text_reads_back,
    test_lowered_programs_check_and_read_back,
    test_lowered_programs_are_in_their_variant,
    test_lowering_keeps_values,
    test_expanded_programs_check_and_read_back,
    test_expanding_keeps_values,
    test_expanding_and_lowering_keep_values,
    test_values_have_their_types,
    test_single_precision_stays_single,
    test_simulated_outputs_are_readouts,
    test_empirical_kernel_is_the_covariance_given_the_body,
]


@pytest.mark.parametrize("lines", ONCE_FAILED)
def test_programs_that_once_failed(lines: str) -> None:
    text = INPUTS + lines.replace("; ", "\n") + "\nOutput v^T h / sqrt(n)\n"
    for check in PROPERTIES:
        test: Any = check
        test.hypothesis.inner_test(parse(text))


def test_a_batch_of_masks() -> None:
    """A mask may differ from input to input where what it masks does not."""
    program = parse(INPUTS + "c := Moment(a)\nd := softmax(c, m, axis=0)\n")
    masks = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    weights = weights_of(program)
    together = run(program, weights, {**program.data, "m": masks})["d"].array
    for mask, found in zip(masks, together, strict=True):
        assert_close(found, run(program, weights, {**program.data, "m": mask})["d"].array)
