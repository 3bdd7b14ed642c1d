"""HTML of a program for notebooks and reports: its text coloured by kind, and a drawing of its graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html import escape

from netsor.display import Box, Edge, draw, fold, panel
from netsor.display.html import TIES
from netsor.lang.expr import Apply, Ref, refs, subtrees
from netsor.lang.functions import ARITHMETIC
from netsor.lang.program import (
    RESERVED,
    Assignment,
    Embedding,
    Input,
    MatMul,
    Moment,
    Normal,
    Output,
    Program,
)
from netsor.lang.show import show, show_expr, show_statement


def letter_of(program: Program, name: str) -> str:
    """The kind of a name: "A", "G", "H" or "C", "K" for data, and "" if it is not defined."""
    if name in program.data:
        return "K"
    return type(program.types[name]).__name__ if name in program.types else ""


def program_html(program: Program) -> str:
    """Return the coloured text of a program and a drawing of its graph."""
    counts = Counter(letter_of(program, name) for name in program.types)
    told = ", ".join(f"{counts[kind]} {kind}-vars" for kind in "AGHC" if counts[kind])
    title = f"Program of {len(program.statements)} statements: {told}"
    svg = drawing_of(program)
    return panel(title, text_html(program), fold("graph", f'<div class="wide">{svg}</div>') if svg else "")


def text_html(program: Program) -> str:
    """Return the statements with names coloured by kind; long programs are folded."""
    lines = [_coloured(program, line) for line in show(program, data_limit=64).splitlines()]
    first, more = lines[:30], lines[30:]  # 30 lines fit on a screen
    text = f"<pre>{chr(10).join(first)}</pre>"
    return text + (fold(f"{len(more)} more lines", f"<pre>{chr(10).join(more)}</pre>") if more else "")


def _coloured(program: Program, line: str) -> str:
    if len(line) > 400:
        line = f"{line[:400]} ..."
    text, _, type_ = line.partition(" :: ")
    parts = re.split(r"([A-Za-z_]\w*)", text)
    for k, name in enumerate(parts):
        if name in RESERVED:
            parts[k] = f"<b>{name}</b>"
        elif kind := letter_of(program, name):
            hint = program.types.get(name, "data")
            parts[k] = f'<span class="k{kind}" title="{escape(f"{name} :: {hint}")}">{name}</span>'
        else:
            parts[k] = escape(name)
    return "".join(parts) + (f' <span class="soft">:: {escape(type_)}</span>' if type_ else "")


def drawing_of(program: Program) -> str:
    """Draw the graph as SVG: boxes for blocks, matrices on lines, shared ones in colour; "" if too large."""
    nodes, edges = _graph(program)
    if not 0 < len(nodes) <= 90:  # a drawing with more boxes is illegible
        return ""
    return draw(nodes, edges, f"graph of a program of {len(program.statements)} statements")


def _graph(program: Program) -> tuple[list[Box], list[Edge]]:
    """Boxes for data, assignments and outputs; products with matrices are lines, biases are in the boxes."""
    embeddings = {s.name: s.law for s in program.inputs if isinstance(s.law, Embedding)}
    products = {s.name: (s.matrix, [s.operand]) for s in program.of(MatMul)}
    products |= {name: (law.matrix, [show_expr(law.data)]) for name, law in embeddings.items()}
    vectors = {s.name for s in program.inputs if isinstance(s.law, Normal)}
    tied = [name for name, count in Counter(matrix for matrix, _ in products.values()).items() if count > 1]
    colours = {name: TIES[k % len(TIES)] for k, name in enumerate(tied)}

    def lines_into(target: str, names: list[str], matrices: str = "") -> Iterator[Edge]:
        """The line of a product of a product is labelled by both matrices."""
        for name in names:
            if name in products:
                matrix, operands = products[name]
                yield from lines_into(target, operands, f"{matrices} {matrix}".lstrip())
            elif name not in vectors:
                yield Edge(name, target, matrices, colours.get(matrices, ""))

    nodes = [
        Box(name, (name, " x ".join(map(str, array.shape)) or "number"), "K", f"data {name}")
        for name, array in program.data.items()
    ]
    parts = dict.fromkeys(show_expr(d) for law in embeddings.values() if not isinstance(d := law.data, Ref))
    nodes += [Box(text, (_short(text),), "K", f"data {text}") for text in parts]  # one box per token
    edges: list[Edge] = []
    for k, s in enumerate(program.statements):
        if isinstance(s, Output):
            nodes.append(Box(f"output {k}", ("output",), "O", show_statement(s)))
            edges += lines_into(f"output {k}", [t.operand for t in s.terms])
        elif not isinstance(s, Input | MatMul):
            nodes.append(_box(program, s, vectors))
            edges += lines_into(s.name, refs(s.expr))
    used = {e.source for e in edges} | {e.target for e in edges}
    return [n for n in nodes if n.name in used], list(dict.fromkeys(edges))


def _box(program: Program, s: Assignment, vectors: set[str]) -> Box:
    """The box of an assignment: name and index shape, the functions it applies, and the vectors it adds."""
    type_ = program.types[s.name]
    index = getattr(type_, "index", ())
    head = s.name + (f"[{', '.join(map(str, index))}]" if index else "")
    functions = [n.op.name for n in subtrees(s.expr) if isinstance(n, Apply) and n.op.name.isidentifier()]
    named = [f for f in dict.fromkeys(functions) if f not in ARITHMETIC and f != "at"]
    named += ["mean over width"] * isinstance(s, Moment)
    added = [name for name in refs(s.expr) if name in vectors]
    lines = [head, ", ".join(named), " ".join(f"+ {name}" for name in dict.fromkeys(added))]
    shown = tuple(_short(line) for line in lines if line)
    return Box(s.name, shown, letter_of(program, s.name), show_statement(s)[:300])


def _short(text: str, longest: int = 24) -> str:
    """Abbreviate a line of a box."""
    return text if len(text) <= longest else f"{text[: longest - 2]}.."
