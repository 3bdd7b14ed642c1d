"""The report: what it tells is right, it stands alone, and it is complete where something is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

import netsor as ns
from netsor.cli import app
from netsor.reports import find

X = np.random.default_rng(0).standard_normal((4, 3))
FEW = {"widths": (8, 16), "samples": 4}
SEQUENCES = [np.eye(3), np.ones((2, 3))]


def page(net: ns.Network, x: Any) -> str:
    pytest.importorskip("jinja2")
    return ns.report(net, x, command="netsor report a.py:<net>", **FEW)


def charts(html: str) -> dict[str, ElementTree.Element]:
    """The charts of a page by the name of their place."""
    return {
        name: ElementTree.fromstring(svg)
        for name, svg in re.findall(r'<div class="netsor" id="(\w+)">(<svg.*?</svg>)</div>', html, re.S)
    }


def hints(chart: ElementTree.Element) -> list[str]:
    return [title.text or "" for title in chart.iter("title")]


def test_the_page_stands_alone_and_has_every_part() -> None:
    html = page(ns.zoo.mlp(2), X)
    assert not re.findall(r'(?:src|href)="(?!#)', re.sub(r"<script>.*?</script>", "", html, flags=re.S))
    for part in (
        "network",
        "program",
        "plan",
        "kernels",
        "spectrum-part",
        "along-part",
        "convergence-part",
        "made",
    ):
        assert f'id="{part}"' in html
        assert f'href="#{part}"' in html
    assert set(charts(html)) == {"nngp", "ntk", "spectrum", "along", "convergence"}
    assert "a.py:&lt;net&gt;" in html
    assert "def _mlp" in html
    assert len(html) < 100_000


def test_what_a_network_does_not_have_is_said() -> None:
    html = page(ns.zoo.batchnorm_mlp(1), [np.eye(3)])
    assert "There is no tangent kernel: " in html
    assert "no tangent kernel" in html
    assert "It takes two inputs" in html
    assert set(charts(html)) == {"nngp", "spectrum", "convergence"}


def test_the_pointer_shows_values_errors_eigenvalues_and_correlations() -> None:
    html = page(ns.zoo.mlp(2), X)
    shown, result = charts(html), ns.kernel(ns.zoo.mlp(2)).evaluate(X)
    assert hints(shown["nngp"]) == [
        f"{i}, {j}: {result.value[i, j]:.6g}, error {result.error[i, j]:.1e}"
        for i in range(4)
        for j in range(4)
    ]
    eigenvalues = np.linalg.eigvalsh(result.value)[::-1]
    assert hints(shown["spectrum"])[0].startswith(f"eigenvalue 1: {eigenvalues[0]:.4g}, ")
    assert len(hints(shown["spectrum"])) == 8  # of both kernels
    assert len(hints(shown["along"])) == 4  # two pairs of inputs, two layers
    assert [hint.partition(":")[0] for hint in hints(shown["convergence"])] == ["8", "16"]


def test_correlations_over_layers_are_those_of_the_limit() -> None:
    """By the recursion of an erf network, in a few lines."""
    found = find(ns.zoo.mlp(3, ns.erf), X, **FEW)
    K = X @ X.T / 3 + 1
    expected = []
    for _ in range(3):
        expected.append([K[0, j] / np.sqrt(K[0, 0] * K[j, j]) for j in (1, 2)])
        scale = np.sqrt(np.outer(1 + 2 * np.diag(K), 1 + 2 * np.diag(K)))
        K = 2 / np.pi * np.arcsin(2 * K / scale) + 1
    assert [a.inputs for a in found.correlations] == [(0, 1), (0, 2)]
    assert np.allclose(np.transpose([a.values for a in found.correlations]), expected, atol=1e-12)


def test_correlations_over_tokens_come_from_the_kernel() -> None:
    found = find(ns.zoo.simple_rnn(), SEQUENCES, **FEW)
    K = found.nngp.value
    expected = [K[t, 3 + t] / np.sqrt(K[t, t] * K[3 + t, 3 + t]) for t in (0, 1)]
    assert np.allclose(found.correlations[0].values, expected)


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "nets.py").write_text("import netsor as ns\nnet = ns.zoo.mlp(1)\n")
    np.save(tmp_path / "x.npy", X)
    words = ["report", f"{tmp_path}/nets.py:net", f"{tmp_path}/x.npy", "-o", f"{tmp_path}/r.html"]
    done = CliRunner().invoke(app, [*words, "--widths", "8,16", "--samples", "4"])
    assert done.exit_code == 0, done.output
    assert "wrote" in done.output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
