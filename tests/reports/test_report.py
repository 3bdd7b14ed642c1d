"""The report: what it tells is right, it stands alone, and it is complete where something is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import netsor as ns
from netsor.cli import app
from netsor.reports.charts import along_chart, convergence_chart, matrix_chart, spectrum_chart
from netsor.reports.findings import find

X = np.random.default_rng(0).standard_normal((4, 3))
FEW = {"widths": (8, 16), "samples": 4}
SEQUENCES = [np.eye(3), np.ones((2, 3))]


def page(net: ns.Network, x: object) -> str:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    return ns.report(net, x, command="netsor report a.py:<net>", **FEW)


def specs(html: str) -> dict[str, dict]:
    return json.loads(re.search(r"const CHARTS = (.*);\n", html)[1])


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
    assert set(specs(html)) == {"nngp", "ntk", "spectrum", "along", "convergence"}
    assert "a.py:&lt;net&gt;" in html
    assert "def mlp" in html
    assert len(html) < 2_000_000


def test_what_a_network_does_not_have_is_said() -> None:
    html = page(ns.zoo.batchnorm_mlp(1), [np.eye(3)])
    assert "There is no tangent kernel: " in html
    assert "no tangent kernel" in html
    assert "It takes two inputs" in html
    assert set(specs(html)) == {"nngp", "spectrum", "convergence"}


def test_every_chart_is_valid_vega_lite() -> None:
    vl_convert = pytest.importorskip("vl_convert")
    found = find(ns.zoo.mlp(2), X, **FEW)
    charts = [
        matrix_chart(found.nngp.value, found.nngp.error, list("abcd")),
        spectrum_chart({"NNGP": found.nngp.value}),
        along_chart(found.along),
        convergence_chart(found.verification),
    ]
    for chart in charts:
        assert vl_convert.vegalite_to_svg(chart).startswith("<svg")


def test_matrices_keep_their_values_and_errors() -> None:
    value, error = np.arange(6.0).reshape(2, 3), np.full((2, 3), 0.5)
    rows = matrix_chart(value, error, ())["data"]["values"]
    assert [row["value"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert {row["error"] for row in rows} == {0.5}
    large = matrix_chart(np.ones((250, 250)), np.ones((250, 250)), ())["data"]["values"]
    assert len(large) == 84 * 84  # means of blocks of 3 x 3


def test_correlations_over_layers_are_those_of_the_limit() -> None:
    """By the recursion of an erf network, in a few lines."""
    found = find(ns.zoo.mlp(3, ns.erf), X, **FEW)
    K = X @ X.T / 3 + 1
    expected = []
    for _ in range(3):
        expected.append([K[0, j] / np.sqrt(K[0, 0] * K[j, j]) for j in (1, 2)])
        scale = np.sqrt(np.outer(1 + 2 * np.diag(K), 1 + 2 * np.diag(K)))
        K = 2 / np.pi * np.arcsin(2 * K / scale) + 1
    assert [a.inputs for a in found.along] == [(0, 1), (0, 2)]
    assert np.allclose(np.transpose([a.values for a in found.along]), expected, atol=1e-12)


def test_correlations_over_tokens_come_from_the_kernel() -> None:
    found = find(ns.zoo.simple_rnn(), SEQUENCES, **FEW)
    K = found.nngp.value
    expected = [K[t, 3 + t] / np.sqrt(K[t, t] * K[3 + t, 3 + t]) for t in (0, 1)]
    assert np.allclose(found.along[0].values, expected)


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    (tmp_path / "nets.py").write_text("import netsor as ns\nnet = ns.zoo.mlp(1)\n")
    np.save(tmp_path / "x.npy", X)
    words = ["report", f"{tmp_path}/nets.py:net", f"{tmp_path}/x.npy", "-o", f"{tmp_path}/r.html"]
    done = CliRunner().invoke(app, [*words, "--widths", "8,16", "--samples", "4"])
    assert done.exit_code == 0, done.output
    assert "wrote" in done.output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
