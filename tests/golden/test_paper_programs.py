"""Every program of the paper as a text file: it reads, prints back, and is what the zoo's network prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import netsor as ns
from each_case import each_case
from netsor.errors import LoweringError
from netsor.lang.lower import VARIANTS
from netsor.lang.program import Input, Moment, Output, Program, Scalar, Statement, used_by
from netsor.simulation import draw, forward
from variants import variant_of

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"


@dataclass(frozen=True)
class Case:
    """The call that makes the program of a file from its data, what is done to it, and its variant."""

    call: str
    then: str = ""
    variant: str = "netsor"

    @property
    def text(self) -> str:
        return self.call + self.then


CASES = {
    "mlp": Case("ns.program(ns.zoo.mlp(depth=2), x)"),
    "mlp_set": Case("ns.program(ns.zoo.mlp(depth=3), x1, x2, x3)"),
    "simple_rnn": Case("ns.program(ns.zoo.simple_rnn(), seq1, seq2)"),
    "gru": Case("ns.program(ns.zoo.gru(var_h0=1.0), x)", '.lower("netsor")'),
    "gru_o": Case("ns.program(ns.zoo.gru(var_h0=1.0), x)", '.lower("netsor-o")', "netsor-o"),
    "gru_set": Case("ns.program(ns.zoo.gru(var_h0=1.0), seq1, seq2, seq3)", '.lower("netsor")'),
    "lstm": Case("ns.program(ns.zoo.lstm(), x)", variant="netsor-o"),
    "batchnorm": Case("ns.program(ns.zoo.batchnorm_mlp(depth=2), batch1, batch2)"),
    "batchnorm_expanded": Case("ns.program(ns.zoo.batchnorm_mlp(depth=2), batch1, batch2)", ".expand()"),
    "cnn2": Case("ns.program(ns.zoo.cnn(depth=2, kernel=2, var_w=4.0, var_b=0.0), x)"),
    "cnn2_expanded": Case("ns.program(ns.zoo.cnn(depth=2, kernel=2, var_w=4.0, var_b=0.0), x)", ".expand()"),
    "cnn": Case("ns.program(ns.zoo.cnn(depth=3, kernel=3, var_w=9.0, var_b=0.0), x1, x2)"),
    "layernorm": Case("ns.program(ns.zoo.layernorm_mlp(depth=2, var_b=0.0), x, xp)", variant="netsor+"),
    "transformer": Case("ns.program(ns.zoo.transformer(depth=2), x)", '.lower("netsor+")', "netsor+"),
    "transformer_expanded": Case("ns.program(ns.zoo.transformer(depth=1), x)", ".expand()", "netsor-o+"),
    "resnet": Case("ns.program(ns.zoo.resnet(depth=2), x)", variant="netsor-o"),
    "densenet": Case("ns.program(ns.zoo.densenet(depth=3), x)"),
    "graph_conv": Case("ns.program(ns.zoo.graph_conv(depth=2), (features, adjacency))"),
}

every_program = each_case("name", CASES)


@cache
def text_of(name: str) -> str:
    return (PROGRAMS / f"{name}.netsor").read_text()


@cache
def read(name: str) -> Program:
    return ns.parse(text_of(name))


def run_call(name: str, call: str) -> Program:
    """The program that a call makes from the data of the file."""
    return eval(call, {"ns": ns, **read(name).data})


@cache
def source(name: str) -> Program:
    """The program of the zoo's network as it is traced, before it is lowered or expanded."""
    return run_call(name, CASES[name].call)


@cache
def made(name: str) -> Program:
    """The program of the zoo's network that the file spells."""
    return run_call(name, CASES[name].text)


def in_order_of_use(program: Program) -> Program:
    """The same program with every statement just before its first use, starting from the first output.

    The files keep the paper's order (embeddings, parameters, readout, then the body, loop by loop), while
    the front end declares each input where the network first meets it. The order of independent
    statements means nothing, so this one is fixed by the outputs alone; what no output uses comes last.
    """
    ordered: dict[Statement, None] = {}

    def visit(s: Statement) -> None:
        if s in ordered:
            return
        for name in used_by(s):
            if name not in program.data:
                visit(program.definitions[name])
        ordered[s] = None

    for s in (*program.outputs, *program.statements):
        if not isinstance(s, Output):
            visit(s)
            continue
        for name in used_by(s):
            visit(program.definitions[name])
    return replace(program, statements=(*ordered, *program.outputs))


def up_to_names(program: Program) -> Program:
    return in_order_of_use(program).canonical()


# The files themselves


def test_every_file_has_a_case():
    assert {path.stem for path in PROGRAMS.glob("*.netsor")} == set(CASES)


def test_readme_lists_every_file_with_its_call():
    rows = [line for line in (PROGRAMS / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == len(CASES)
    for row, (name, case) in zip(rows, CASES.items(), strict=True):
        assert f"[`{name}.netsor`]({name}.netsor)" in row
        assert f"`{case.text}`" in row


@every_program
def test_header_names_the_call(name):
    assert f"# zoo: {CASES[name].text}" in text_of(name).splitlines()


@every_program
def test_prints_back_identically(name):
    assert read(name).show() == text_of(name)


@every_program
def test_checks_and_says_every_type(name):
    program = read(name)
    types = program.check()
    assert [s.type for s in program.statements if not isinstance(s, Output)] == list(types.values())
    assert variant_of(program) == CASES[name].variant


@every_program
def test_is_the_program_of_the_zoo(name):
    program, zoo = read(name), made(name)
    assert len(program.statements) == len(zoo.statements)
    assert up_to_names(program) == up_to_names(zoo)


@each_case(
    ("name", "to", "result"),
    [
        ("gru_o", lambda p: p.lower("netsor"), "gru"),
        ("gru", lambda p: p.lower("netsor-o"), "gru_o"),
        ("batchnorm", Program.expand, "batchnorm_expanded"),
        ("cnn2", Program.expand, "cnn2_expanded"),
    ],
)
def test_two_forms_of_one_program(name, to, result):
    assert up_to_names(to(read(name))) == up_to_names(read(result))


def test_order_of_use_tells_programs_apart():
    """The comparison forgives order and names, and nothing else."""
    text = text_of("simple_rnn")
    same = text.replace("Input b :: G(n) ~ N(0, 1)\n", "").replace("# Weight", "Input b :: G(n) ~ N(0, 1)\n#")
    assert up_to_names(ns.parse(same)) == up_to_names(read("simple_rnn"))
    for old, new in [
        ("MatMul(W, s21)", "MatMul(W, s11)"),
        ("htilde22 + Ux22", "htilde22 + Ux12"),
        ("Input b :: G(n) ~ N(0, 1)", "Input b :: G(n) ~ N(0, 2)"),
        ("s12 := erf", "s12 := tanh"),
        ("MatMul(U, seq2[1])", "MatMul(U, seq2[0])"),
        ("Output v^T s22", "Output v^T s12"),
        ("# Readout weights", "Input unused :: G(n) ~ N(0, 1)"),
    ]:
        assert text.count(old) == 1
        assert up_to_names(ns.parse(text.replace(old, new))) != up_to_names(read("simple_rnn"))


# What they compute

Weights = dict[str, np.ndarray]


def member_weights(program: Program, weights: Weights) -> Weights:
    """The weights of `program.expand()`: member [i, j] of block W is W_i_j there."""
    return {
        "_".join([name, *map(str, i)]): array[i]
        for name, array in weights.items()
        for i in np.ndindex(program.types[name].index)
    }


@cache
def weights_of(name: str) -> tuple[Weights, Weights, Weights]:
    """One draw of the weights, for the zoo's network, for the form that the file spells, for the file."""
    traced, zoo = source(name), made(name)
    widths = {width: 5 + 2 * i for i, width in enumerate(traced.widths)}
    first = draw(traced, widths, np.random.default_rng(0))
    second = member_weights(traced, first) if "expand" in CASES[name].then else first
    pairs = zip(in_order_of_use(read(name)).inputs, in_order_of_use(zoo).inputs, strict=True)
    third = {s.name: second[t.name] for s, t in pairs if t.name in second}
    return first, second, third


def outputs(program: Program, weights: Weights) -> np.ndarray:
    values = forward(program, weights)
    parts = []
    for s in program.outputs:
        (term,) = s.terms
        y = values[term.operand].array
        parts.append((y @ weights[term.readout] / np.sqrt(y.shape[-1])).ravel())
    return np.concatenate(parts)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@every_program
def test_every_value_is_that_of_the_zoo(name):
    program, zoo = read(name), made(name)
    _, theirs, ours = weights_of(name)
    found, expected = forward(program, ours, keep=True), forward(zoo, theirs, keep=True)
    compared = 0
    for s, t in zip(in_order_of_use(program).statements, in_order_of_use(zoo).statements, strict=True):
        if not isinstance(s, Output) and not isinstance(t, Output) and t.name in expected:
            assert_close(found[s.name].array, expected[t.name].array)
            compared += 1
    assert compared == sum(len(names) for names in program.widths.values()) + _scalars(program)


def _scalars(program: Program) -> int:
    return len(program.of(Moment)) + len(program.of(Scalar))


@every_program
def test_outputs_are_those_of_the_network_as_traced(name):
    first, _, ours = weights_of(name)
    assert_close(outputs(read(name), ours), outputs(source(name), first))


@every_program
@each_case("variant", VARIANTS)
def test_lowerings_parse_back_and_keep_the_outputs(name, variant):
    program = read(name)
    if _scalars(program) and not variant.endswith("+"):
        with pytest.raises(LoweringError):
            program.lower(variant)
        return
    lowered = program.lower(variant)
    assert ns.parse(lowered.show()) == lowered
    ours = weights_of(name)[2]
    kept = {s.name for s in lowered.of(Input)}
    assert_close(outputs(lowered, {k: w for k, w in ours.items() if k in kept}), outputs(program, ours))


@every_program
def test_expansion_parses_back_and_keeps_the_outputs(name):
    program = read(name)
    expanded = program.expand()
    assert ns.parse(expanded.show()) == expanded
    ours = weights_of(name)[2]
    assert_close(outputs(expanded, member_weights(program, ours)), outputs(program, ours))


# The paper's examples of Common Dimension Classes


def test_dimension_classes_of_the_mlp():
    classes = [set(names) for names in read("mlp").widths.values()]
    assert classes == [{"W1x", "b1", "h1", "x1"}, {"b2", "v", "htilde2", "h2", "x2"}]


def test_dimension_classes_of_the_rnn():
    program = read("simple_rnn")
    assert set(program.widths) == {"n"}
    vectors = {s.name for s in program.statements if not isinstance(s, Output)} - {"U", "W"}
    assert set(program.widths["n"]) == vectors
