"""From the graph of a traced network to a program: which nodes become variables, and by which rule.

Inputs, matrix products and moments are variables. Another node becomes a variable

- if a rule of the language requires a name (the operand of MatMul or Output),
- if it is a linear combination that a nonlinearity uses (the paper's LinComb before its Nonlin), or
- if it is used more than once and costs more than one function call.

All other nodes are expressions inside the statements that use them.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from math import prod
from typing import Any

import numpy as np

from netsor.build.graph_nodes import Average, Data, Expression, Leaf, MatrixProduct, Node, Width
from netsor.build.parameters import Matrix, Vector
from netsor.build.readouts import Readout
from netsor.build.source_lines import fail
from netsor.build.trace import Trace, unused_name
from netsor.lang import program as rules
from netsor.lang.expr import Apply, Const, Expr, Ref
from netsor.lang.index_maps import at, reshape, stack, take, transpose
from netsor.lang.ops import Function
from netsor.lang.program import Embedding, MatrixLaw, Normal, Program, Statement, Term, used_by
from netsor.lang.types import A, C, G, H, Type


def emit(
    trace: Trace, outputs: list[Readout], names: dict[Any, str]
) -> tuple[Program, list[int], dict[str, Matrix | Vector]]:
    """Write the program that computes `outputs`; `names` are the network's own names of its parameters.

    Returns the program, the number of Output statements of each output, and the parameters by name.
    """
    emitter = _Emitter(trace, names)
    live = emitter.live(outputs)
    emitter.name_widths(live)
    variables = _variables(live, outputs)
    for node in live:
        if node in variables:
            emitter.write(node)
        elif isinstance(node, Expression):
            emitter.exprs[node] = emitter.body_of(node)
    counts = [emitter.write_output(out) for out in outputs]
    statements = (*emitter.inputs, *emitter.body)
    used = {name for statement in statements for name in used_by(statement)}
    data = {name: array for name, array in trace.data.items() if name in used}
    parameters = {name: p for p, name in emitter.names.items() if isinstance(p, Matrix | Vector)}
    return Program(statements, data), counts, parameters


def _variables(live: list[Node], outputs: list[Readout]) -> set[Node]:
    """Choose the nodes that become variables, as the module docstring says."""
    parents: dict[Node, list[Node]] = {node: [] for node in live}
    for node in live:
        for child in _children(node):
            parents[child].append(node)
    # Rules MatMul and Output take names, not expressions.
    operands = {node.operand for node in live if isinstance(node, MatrixProduct)}
    operands |= {y for out in outputs for _, x, _ in out.terms for y in _read(x, out)}
    variables: set[Node] = set()
    for node in live:  # in order of creation, so the decisions about a node's arguments are there
        if isinstance(node, Expression) and node not in operands:
            of_variables = all(a in variables for a in _children(node))
            if of_variables and node.op in (at, reshape, transpose, take):
                continue  # x[0] is as short as a name
            is_cheap = of_variables and isinstance(node.op, Function) and len(node.args) == 1
            uses = parents[node]
            # Such a G-var is the paper's LinComb before its Nonlin.
            is_preactivation = node.kind == "G" and any(p.kind != "G" or isinstance(p, Average) for p in uses)
            if not is_preactivation and (len(uses) < 2 or is_cheap):
                continue
        if not isinstance(node, Data | Readout):
            variables.add(node)
    return variables


def _children(node: Node) -> list[Node]:
    """The nodes that a node reads."""
    match node:
        case Expression(args=args):
            return [a for a in args if isinstance(a, Node)]
        case MatrixProduct(operand=x) | Average(operand=x):
            return [x]
        case Readout(terms=terms):
            return [x for _, x, _ in terms]
    return []


class _Emitter:
    """Names nodes and writes statements. Inputs come first, then the body in order of creation."""

    def __init__(self, trace: Trace, names: dict[Any, str]) -> None:
        self.trace, self.given, self.given_names = trace, names, set(names.values())
        self.taken: set[str] = set(trace.data)
        self.counts: Counter[str] = Counter()
        self.names: dict[Any, str] = {}
        self.exprs: dict[Node, Expr] = {}
        self.inputs: list[Statement] = []
        self.body: list[Statement] = []

    def live(self, outputs: list[Readout]) -> list[Node]:
        """The nodes that the outputs depend on, in order of creation."""
        live: set[Node] = set(outputs)
        for node in reversed(self.trace.nodes):  # a node is younger than those that it reads
            if node in live:
                live.update(_children(node))
        return [node for node in self.trace.nodes if node in live]

    def name_widths(self, live: list[Node]) -> None:
        """Name the dimensions in order of appearance: n, or n1, n2, ... if there are several."""
        roots = dict.fromkeys(node.width.root() for node in live if node.width)
        given = [w.name for w in roots if w.name]
        several = len(roots) > len(given) + 1 or "n" in given
        fresh = (name for name in (f"n{i}" for i in count(1)) if name not in given)
        self.widths = {w: w.name or (next(fresh) if several else "n") for w in roots}

    def width(self, width: Width | int | None) -> Any:
        return self.widths[width.root()] if isinstance(width, Width) else width

    # Statements

    def write(self, node: Node) -> None:
        """Write the statement that defines a variable."""
        place = node.place
        match node:
            case Leaf(vector=vector):
                name = self.parameter(vector, "b")
                law = Normal(_nested(vector.mean), _nested(vector.var), each=vector.each)
                self.inputs.append(rules.Input(name, self.type(node), law, place=place))
            case MatrixProduct(matrix=matrix, operand=Data(expr=data), aligned=aligned):
                name = self.fresh(self.matrix(matrix, node) + _data_name(data))
                law = Embedding(self.names[matrix], data, aligned)
                self.inputs.append(rules.Input(name, self.type(node), law, place=place))
            case MatrixProduct(matrix=matrix, operand=x, aligned=aligned):
                product = self.matrix(matrix, node), self.names[x], aligned, self.type(node)
                name = self.count("g")
                self.body.append(rules.MatMul(name, *product, place=place))
            case Average(operand=x):
                name = self.count("c")
                self.body.append(rules.Moment(name, self.expr(x), C(node.index), place=place))
            case Expression():
                rule = {"G": rules.LinComb, "H": rules.Nonlin, "C": rules.Scalar}[node.kind]
                name = self.count({"G": "h", "H": "a", "C": "c"}[node.kind])
                self.body.append(rule(name, self.body_of(node), self.type(node), place=place))
            case _:
                raise TypeError(f"no statement for {node}")
        self.names[node] = name
        self.exprs[node] = Ref(name)

    def write_output(self, out: Readout) -> int:
        """Write the Output statements of one output, and return their number."""
        columns = []  # for each term of the output, those of the vectors that it reads one by one
        for matrix, x, aligned in out.terms:
            readout, vectors = self.readout(matrix, x), _read(x, out)
            columns.append([Term(readout, self.names[y], self.width(y.width), aligned) for y in vectors])
        self.body += [rules.Output(terms, out.shift, place=out.place) for terms in zip(*columns, strict=True)]
        return len(columns[0])

    def readout(self, matrix: Matrix | Vector, x: Node) -> str:
        """The name of a readout vector, declared at its first use."""
        if any(leaf.vector is matrix for leaf in self.trace.leaves.values()):
            raise fail(
                "a Vector is the bias of an output and stands elsewhere, too",
                "Rule Output: what is added to an output is one random number, not a vector. Use two.",
            )
        if matrix in self.names:
            return self.names[matrix]
        if isinstance(matrix, Vector):
            prefix, index, law = "b", matrix.index, Normal(0.0, _nested(matrix.var), each=matrix.each)
        else:
            assert isinstance(matrix.rows, int)
            flat = self.trace.uses[matrix].flat
            index = flat + matrix.index + ((matrix.rows,) if matrix.rows > 1 else ())
            # A flattened block has fan-in n prod(flat), and Output divides by sqrt(n) only.
            law = Normal(0.0, matrix.var / prod(flat))
            prefix = "v"
        name = self.parameter(matrix, prefix)
        self.inputs.append(rules.Input(name, G(self.width(x.width), index), law))
        return name

    def matrix(self, matrix: Matrix, node: Node) -> str:
        """The name of a matrix, declared at its first use."""
        if matrix not in self.names:
            use = self.trace.uses[matrix]
            name = self.parameter(matrix, "W")
            type_ = A(self.width(use.rows), self.width(use.cols), use.flat + matrix.index)
            self.inputs.append(rules.Input(name, type_, MatrixLaw(matrix.var / prod(use.flat))))
        return self.names[matrix]

    def type(self, node: Node) -> Type:
        if node.kind == "C":
            return C(node.index)
        return (G if node.kind == "G" else H)(self.width(node.width), node.index)

    # Expressions

    def expr(self, node: Node | float) -> Expr:
        if isinstance(node, Data):
            return node.expr
        return self.exprs[node] if isinstance(node, Node) else Const(node)

    def body_of(self, node: Expression) -> Expr:
        return Apply(node.op, tuple(self.expr(a) for a in node.args), node.attrs)

    # Names

    def parameter(self, parameter: Matrix | Vector, prefix: str) -> str:
        given = self.given.get(parameter) or parameter.name
        self.names[parameter] = self.fresh(given) if given else self.count(prefix)
        return self.names[parameter]

    def count(self, prefix: str) -> str:
        while True:
            self.counts[prefix] += 1
            name = f"{prefix}{self.counts[prefix]}"
            if name not in self.taken and name not in self.given_names:
                self.taken.add(name)
                return name

    def fresh(self, base: str) -> str:
        name = unused_name(base, self.taken)
        self.taken.add(name)
        return name


def _read(x: Node, out: Readout) -> list[Node]:
    """The vectors that a readout reads: a stack is read vector by vector, as in the paper's outputs."""
    alone = len(out.terms) == 1 and out.index == x.index and out.terms[0][2] == 0
    if alone and isinstance(x, Expression) and x.op is stack and dict(x.attrs).get("axis", 0) == 0:
        return [a for a in x.args if isinstance(a, Node)]
    return [x]


def _nested(numbers: Any) -> Any:
    """Tuples in place of arrays, because statements are hashable."""
    return tuple(map(_nested, numbers)) if np.ndim(numbers) else float(numbers)


def _data_name(data: Expr) -> str:
    """A name for an expression of data: `x1[0]` -> `x1_0`, and `x` for anything longer."""
    match data:
        case Ref(name):
            return name
        case Apply(args=(inner,)) if "index" in data.options:
            items = [i for i in data.options["index"] if isinstance(i, int)]
            return "_".join([_data_name(inner), *(str(i) for i in items if i >= 0)])
    return "x"
