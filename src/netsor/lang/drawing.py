"""A program for notebooks and reports: its text coloured by kind, and a drawing of its graph."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from html import escape

from netsor.display import Edge, Node, draw, fold, panel
from netsor.display.html import TIES
from netsor.lang.expr import Apply, Ref, refs, subtrees
from netsor.lang.program import Assignment, Embedding, Input, MatMul, Moment, Normal, Output, Program
from netsor.lang.show import show, show_expr, show_statement
from netsor.lang.types import A, C, G, H

__all__ = ["drawing_of", "program_html", "text_html"]

UNFOLDED = 30  # lines of a program that are shown at once
MOST_BOXES = 90  # of a drawing
LONGEST = 24  # letters in a line of a box
NAME = re.compile(r"[A-Za-z_]\w*")
WORDS = frozenset({"Input", "Output", "Data", "MatMul", "Moment", "Nonlin"})


def kind_of(program: Program, name: str) -> str:
    """A, G, H or C; "K" for data, and nothing for what is no variable."""
    if name in program.data:
        return "K"
    match program.types.get(name):
        case A():
            return "A"
        case G():
            return "G"
        case H():
            return "H"
        case C():
            return "C"
    return ""


def program_html(program: Program) -> str:
    """The text of a program, coloured, with its graph."""
    counts = Counter(kind_of(program, name) for name in program.types)
    told = ", ".join(f"{counts[kind]} {kind}-vars" for kind in "AGHC" if counts[kind])
    title = f"Program of {len(program.statements)} statements: {told}"
    svg = drawing_of(program)
    graph = fold("graph", f'<div class="wide">{svg}</div>') if svg else ""
    return panel(title, text_html(program), graph)


def text_html(program: Program) -> str:
    """The statements in the paper's notation, names coloured by kind; long programs are folded."""
    lines = [_coloured(program, line) for line in show(program, data_limit=64).splitlines()]
    text = f"<pre>{chr(10).join(lines[:UNFOLDED])}</pre>"
    more = lines[UNFOLDED:]
    return text + (fold(f"{len(more)} more lines", f"<pre>{chr(10).join(more)}</pre>") if more else "")


def _coloured(program: Program, line: str) -> str:
    if len(line) > 400:
        line = f"{line[:400]} ..."
    text, _, type_ = line.partition(" :: ")
    parts, last = [], 0
    for match in NAME.finditer(text):
        name, kind = match[0], kind_of(program, match[0])
        parts.append(escape(text[last : match.start()]))
        if name in WORDS:
            parts.append(f"<b>{name}</b>")
        elif kind:
            hint = program.types.get(name, "data")
            parts.append(f'<span class="k{kind}" title="{escape(f"{name} :: {hint}")}">{name}</span>')
        else:
            parts.append(escape(name))
        last = match.end()
    shown = "".join(parts) + escape(text[last:])
    return shown + (f' <span class="soft">:: {escape(type_)}</span>' if type_ else "")


def drawing_of(program: Program) -> str:
    """The graph as SVG: boxes for blocks, matrices on lines, tied weights in one colour; "" if too large."""
    graph = _Graph.of(program)
    if not graph.nodes or len(graph.nodes) > MOST_BOXES:
        return ""
    return draw(graph.nodes, graph.edges, f"graph of a program of {len(program.statements)} statements")


@dataclass(frozen=True)
class _Graph:
    nodes: list[Node]
    edges: list[Edge]

    @classmethod
    def of(cls, program: Program) -> _Graph:
        """Boxes for data, assignments and outputs; products with matrices are lines."""
        products = {s.name: (s.matrix, [s.operand]) for s in program.statements if isinstance(s, MatMul)} | {
            s.name: (s.law.matrix, [show_expr(s.law.data)])
            for s in program.inputs
            if isinstance(s.law, Embedding)
        }
        vectors = {s.name for s in program.inputs if isinstance(s.law, Normal)}
        uses = Counter(matrix for matrix, _ in products.values())
        tied = [name for name, count in uses.items() if count > 1]
        colours = {name: TIES[k % len(TIES)] for k, name in enumerate(tied)}
        parts = [s.law.data for s in program.inputs if isinstance(s.law, Embedding)]
        cut = {show_expr(part): part for part in parts if not isinstance(part, Ref)}  # tokens stand alone
        nodes: list[Node] = [
            Node(name, (name, " x ".join(map(str, array.shape)) or "number"), "K", f"data {name}")
            for name, array in program.data.items()
        ]
        nodes += [Node(text, (_short(text),), "K", f"data {text}") for text in cut]
        edges: list[Edge] = []
        for k, s in enumerate(program.statements):
            if isinstance(s, Output):
                nodes.append(Node(f"output {k}", ("output",), "O", show_statement(s)))
                edges += _into(f"output {k}", [t.operand for t in s.terms], products, vectors, colours)
            elif not isinstance(s, Input | MatMul):
                nodes.append(_box(program, s, products, vectors))
                edges += _into(s.name, refs(s.expr), products, vectors, colours)
        used = {e.source for e in edges} | {e.target for e in edges}
        return cls([n for n in nodes if n.name in used], list(dict.fromkeys(edges)))


def _into(
    target: str,
    names: list[str],
    products: dict[str, tuple[str, list[str]]],
    vectors: set[str],
    colours: dict[str, str],
) -> list[Edge]:
    """The lines into a box, one for each variable that it reads, or that a matrix has carried there."""
    found = []
    for name in names:
        if name in vectors:
            continue  # biases stand in the box
        if name in products:
            matrix, operands = products[name]
            found += [
                edge
                for operand in operands
                for edge in _carried(operand, target, matrix, products, vectors, colours)
            ]
        else:
            found.append(Edge(name, target))
    return found


def _carried(
    operand: str,
    target: str,
    matrix: str,
    products: dict[str, tuple[str, list[str]]],
    vectors: set[str],
    colours: dict[str, str],
) -> list[Edge]:
    """A line with a matrix on it; a product of a product has both."""
    if operand in products:
        inner, operands = products[operand]
        return [
            edge
            for o in operands
            for edge in _carried(o, target, f"{matrix} {inner}", products, vectors, colours)
        ]
    return [] if operand in vectors else [Edge(operand, target, matrix, colours.get(matrix, ""))]


def _box(
    program: Program, s: Assignment, products: dict[str, tuple[str, list[str]]], vectors: set[str]
) -> Node:
    """Name and index shape, the functions that it takes, and the vectors that it adds."""
    type_ = program.types[s.name]
    index = getattr(type_, "index", ())
    head = s.name + (f"[{', '.join(map(str, index))}]" if index else "")
    functions = [n.op.name for n in subtrees(s.expr) if isinstance(n, Apply) and n.op.name.isidentifier()]
    named = [f for f in dict.fromkeys(functions) if f not in ("add", "sub", "mul", "div", "neg", "pow", "at")]
    if isinstance(s, Moment):
        named.append("mean over width")
    added = [name for name in refs(s.expr) if name in vectors]
    lines = [head, ", ".join(named), " ".join(f"+ {name}" for name in dict.fromkeys(added))]
    return Node(
        s.name,
        tuple(_short(line) for line in lines if line),
        kind_of(program, s.name),
        show_statement(s)[:300],
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]}.."
