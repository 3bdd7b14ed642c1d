"""What notebooks show: well-formed, complete, light, and readable on any paper."""

from __future__ import annotations

import pickle
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import netsor as ns
from netsor.display import KINDS, Box, Edge, curves, draw, error_bar, heat_map
from netsor.display.charts import VIRIDIS, Curve, colour
from netsor.display.html import TIES
from netsor.lang.program_html import drawing_of, program_html

X = np.random.default_rng(0).standard_normal((5, 3))
INPUTS = {
    "cnn": np.ones((4, 4, 1)),
    "graph_conv": (np.eye(3), np.eye(3)),
    "batchnorm_mlp": np.eye(4),
    "simple_rnn": np.eye(3),
    "gru": np.eye(3),
    "lstm": np.eye(2),
    "transformer": np.eye(3),
}


def parsed(html: str) -> ElementTree.Element:
    """HTML that is also XML: every tag is closed."""
    return ElementTree.fromstring(html)


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    K = ns.kernel(ns.zoo.mlp(2))
    line = np.linspace(-1, 1, 5)[:, None]
    net = ns.zoo.mlp(2)
    ns.program(net, X[0])
    return {
        "network": net,
        "unread network": ns.zoo.gru(),
        "program": ns.program(ns.zoo.gru(), np.eye(3)),
        "plan": K.plan(X),
        "result": K.evaluate(X),
        "large result": K.evaluate(np.random.default_rng(1).standard_normal((100, 3))),
        "sampled result": ns.kernel(ns.zoo.lstm(), points=256).evaluate([np.eye(2)]),
        "verification": ns.verify(ns.zoo.mlp(1), X, widths=(16, 64), samples=5),
        "model": ns.gp.fit(K, line @ np.ones((1, 3)), np.sin(line[:, 0]), noise=0.1, params={"W1": 2.0}),
        "ensemble": ns.gp.train(ns.zoo.mlp(1), line, np.sin(line[:, 0])),
    }


def test_everything_shown_is_well_formed_and_light(shown: dict[str, Any]) -> None:
    for name, thing in shown.items():
        html = thing._repr_html_()
        parsed(html)
        assert "<script" not in html, name
        assert "://" not in html, name
        assert len(html) < 600_000, name


def test_in_a_terminal_everything_is_short(shown: dict[str, Any]) -> None:
    for name, thing in shown.items():
        assert len(repr(thing).splitlines()) <= (61 if name == "program" else 1), name
    long = repr(ns.program(ns.zoo.gru(), np.eye(20)))
    assert long.splitlines()[-1].startswith("... and ")


@pytest.mark.parametrize("name", ns.zoo.__all__)
def test_every_network_of_the_zoo_has_a_drawing(name: str) -> None:
    net = (
        getattr(ns.zoo, name)(2)
        if "depth" in getattr(ns.zoo, name).__annotations__
        else getattr(ns.zoo, name)()
    )
    program = ns.program(net, INPUTS.get(name, X[0]))
    svg = parsed(drawing_of(program))
    text = " ".join(svg.itertext())
    assert "output" in text
    boxes = list(svg.iter("rect"))
    assert len(boxes) > 3
    assert no_overlap(boxes)


def no_overlap(boxes: list[ElementTree.Element]) -> bool:
    sides = [[float(b.attrib[k]) for k in ("x", "y", "width", "height")] for b in boxes]
    for k, (x, y, w, h) in enumerate(sides):
        for x2, y2, w2, h2 in sides[:k]:
            if x < x2 + w2 and x2 < x + w and y < y2 + h2 and y2 < y + h:
                return False
    return True


def test_tied_weights_have_one_colour_and_others_none() -> None:
    svg = parsed(drawing_of(ns.program(ns.zoo.simple_rnn(), np.eye(3))))
    inks = {}
    for text in svg.iter("text"):
        style = text.attrib.get("style", "")
        if style:
            inks.setdefault(text.text, set()).add(style)
    assert inks.keys() == {"U", "W"}
    assert inks["U"] != inks["W"]
    assert all(len(found) == 1 for found in inks.values())
    once = parsed(drawing_of(ns.program(ns.zoo.mlp(2), X[0])))
    assert {t.attrib["style"] for t in once.iter("text") if "style" in t.attrib} == {"fill:#80868f"}


def test_names_are_coloured_by_kind_and_long_programs_are_folded() -> None:
    html = program_html(ns.program(ns.zoo.layernorm_mlp(1), X[0]))
    for kind, name in (("A", "W1"), ("G", "h1"), ("H", "a1"), ("C", "c1"), ("K", "x")):
        assert f'<span class="k{kind}" title="{name} ::' in html, (kind, name)
    assert "more lines" not in html
    long = program_html(ns.program(ns.zoo.gru(), np.eye(6)))
    assert "more lines" in long
    assert long.partition("<details>")[0].count("\n") > 25  # what fits on a screen stays open


def test_a_large_program_has_no_drawing() -> None:
    program = ns.program(ns.zoo.mlp(90), X[0])
    assert drawing_of(program) == ""
    assert "graph" not in re.sub(r"<style>.*?</style>", "", program_html(program))


def test_names_cannot_inject_html() -> None:
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    net = ns.Network(lambda x: v @ ns.relu(W @ x), name="<b>bad</b>")
    assert "<b>bad" not in net._repr_html_()


def test_a_network_is_drawn_for_the_input_that_it_was_read_for() -> None:
    net = ns.zoo.mlp(2)
    assert "is drawn here" in net._repr_html_()
    ns.kernel(net)(X)
    assert "<svg" in net._repr_html_()
    assert pickle.loads(pickle.dumps(net)).example is None


def test_heat_maps_show_every_value_or_the_range_of_a_block() -> None:
    small = np.array([[1.0, 2.0], [3.0, 4.0]])
    hints = [t.text for t in parsed(heat_map(small, "m", ["a", "b"])).iter("title")]
    assert hints == ["a (0), a (0): 1", "a (0), b (1): 2", "b (1), a (0): 3", "b (1), b (1): 4"]
    large = np.arange(100.0 * 100).reshape(100, 100)
    found = parsed(heat_map(large, "m"))
    hints = [t.text or "" for t in found.iter("title")]
    assert len(hints) == 34 * 34
    assert hints[0] == "rows 0 to 2, columns 0 to 2: 0 to 202"
    assert "mean of 3 x 3" in " ".join(found.itertext())
    assert parsed(heat_map(np.zeros((2, 2)), "constant")) is not None


def test_viridis_passes_through_its_places() -> None:
    for k, place in enumerate(VIRIDIS):
        assert colour(k / (len(VIRIDIS) - 1)) == f"#{place}"


def test_curves_are_where_their_numbers_are() -> None:
    svg = parsed(curves([Curve("c", [1, 10, 100], [1.0, 0.1, 0.01])], "t", "x", "y"))
    points = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in svg.iter("circle")]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert abs((x0 + x2) / 2 - x1) < 0.1
    assert abs((y0 + y2) / 2 - y1) < 0.1
    assert x0 < x2
    assert y0 < y2


def test_linear_axes_have_round_numbers_where_they_belong() -> None:
    svg = parsed(curves([Curve("c", [1, 2, 3], [0.2, 0.5, 0.8])], "t", "x", "y", logarithmic=False))
    heights = {t.text: float(t.attrib["y"]) for t in svg.iter("text") if t.attrib.get("text-anchor") == "end"}
    circles = {
        round(y, 3): float(c.attrib["cy"]) for y, c in zip((0.2, 0.5, 0.8), svg.iter("circle"), strict=True)
    }
    assert {"0.2", "0.5", "0.8"} <= heights.keys()
    for y, pixel in circles.items():
        assert abs(heights[f"{y:g}"] - 3 - pixel) < 0.2  # a number stands 3 pixels below its line


def test_error_bars_grow_with_the_error() -> None:
    widths = [float(re.findall(r'width="([\d.]+)"', error_bar(e))[2]) for e in (1e-16, 1e-8, 1e-2)]
    assert widths == sorted(widths)
    assert "rounding" in error_bar(0.0)


def test_lines_of_a_graph_lead_forward() -> None:
    nodes = [Box(n, (n,), "G") for n in "adbc"]
    svg = parsed(draw(nodes, [Edge("a", "b"), Edge("b", "c"), Edge("a", "c"), Edge("d", "c")], "t"))
    x = {t.text: float(t.attrib["x"]) for t in svg.iter("text")}
    assert x["a"] < x["b"] < x["c"]
    assert x["b"] - 20 < x["d"] < x["c"]


@pytest.mark.parametrize("paper", ["#ffffff", "#111111"])
def test_colours_are_readable_on_light_and_dark_paper(paper: str) -> None:
    for ink in (*KINDS.values(), *TIES):
        lighter, darker = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) > 3.8, ink


def luminance(hexed: str) -> float:
    rgb = np.array([int(hexed[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
