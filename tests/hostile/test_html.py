"""Text of a user that reaches a page is text there: it opens no element, no comment and no script."""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.display import Box, Edge, draw, heat_map, panel

HOSTILE = (
    "<!--<script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\" onload='alert(1)' x=\"",
    "]]> --> &amp; &#60;script&#62;",
    "\u2028</ScRiPt\t>",
)
X = np.random.default_rng(0).standard_normal((len(HOSTILE), 2))


class Elements(HTMLParser):
    """The elements of a page, its attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.comments: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def _network(name: str, phi: Any = ns.relu) -> ns.Network:
    W, b, v = ns.Matrix(), ns.Vector(0.1), ns.Matrix(rows=1)

    def net(x):
        """<script>in the code</script>"""
        return v @ phi(W @ x + b)

    net.__name__ = name
    return ns.network(net)


def _function(name: str) -> Any:
    def f(t: Any) -> Any:
        return np.maximum(t, 0.0)

    f.__name__ = f.__qualname__ = name
    return lambda h: ns.nonlin(f, h)


def _assert_plain(page: str, harmless: str) -> None:
    """The page has the elements of one about a network with harmless names, and nothing else."""
    found, expected = Elements(page), Elements(harmless)
    assert found.tags == expected.tags
    assert found.attributes == expected.attributes
    assert not found.comments
    assert len(found.scripts) == len(expected.scripts)
    for script in found.scripts:
        assert not re.search(r"<!--|<script|</script", script, re.IGNORECASE)


def test_what_notebooks_show() -> None:
    def shown(name: str) -> list[str]:
        net = _network(name)
        K = ns.kernel(net)
        result = K.evaluate(X)
        model = ns.gp.fit(K, X, X[:, 0], noise=0.1)
        trained = ns.gp.train(net, X, X[:, 0], noise=0.1, layers="last")
        found = ns.verify(net, X[:2], widths=(4, 8), samples=3)
        return [one._repr_html_() for one in (net, result, result.plan, model, trained, found)]

    for page, harmless in zip(shown("".join(HOSTILE)), shown("harmless"), strict=True):
        _assert_plain(page, harmless)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_functions(name: str) -> None:
    def shown(word: str) -> str:
        return ns.program(_network("net", _function(word)), X[0])._repr_html_()

    _assert_plain(shown(name), shown("harmless"))


@pytest.mark.parametrize("text", HOSTILE)
def test_the_parts_of_pages(text: str) -> None:
    def parts(t: str) -> str:
        nodes = [Box(t, (t,), "K", t), Box("end", (t,), "O", t)]
        return panel(t, heat_map(np.eye(2), t, [t, t]), draw(nodes, [Edge(t, "end", t)], t))

    _assert_plain(parts(text), parts("harmless"))


def test_comments_and_names_of_programs() -> None:
    text = (
        "# {}\nInput g :: G(n) ~ N(0, 1)\ny0 := relu(g)  # {}\n"
        "Input v :: G(n) ~ N(0, 1)\nOutput v^T y0 / sqrt(n)\n"
    )
    for hostile in HOSTILE[:4]:
        pages = [ns.parse(text.format(word, word))._repr_html_() for word in (hostile, "harmless")]
        _assert_plain(*pages)


def test_reports() -> None:
    pytest.importorskip("jinja2")

    def page(name: str, labels: tuple[str, ...]) -> str:
        return ns.report(_network(name), X, labels, command=labels[1], widths=(4, 8), samples=3)

    made, harmless = page("</title><script>", HOSTILE), page("harmless", ("harmless",) * len(HOSTILE))
    _assert_plain(made, harmless)
    for row, label in enumerate(HOSTILE):
        assert f"<title>{escape(label)} ({row}), " in made


def test_one_count_of_statements_is_of_the_program_and_one_of_all_inputs() -> None:
    pytest.importorskip("jinja2")
    sequences = [np.eye(3), np.ones((2, 3))]
    made = ns.report(ns.zoo.simple_rnn(), sequences, widths=(4, 8), samples=3)
    alone = len(ns.program(ns.zoo.simple_rnn(), sequences[0]).statements)
    together = ns.kernel(ns.zoo.simple_rnn()).plan(sequences).statements
    assert alone < together
    assert f"{alone} on the first input, {together} on all of them together" in made
    assert f"A program of {together} statements" in made
