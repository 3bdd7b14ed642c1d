"""Pictures: what they show is right, they have captions and units, and colours can be told apart."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import netsor as ns
from netsor.cli import app
from netsor.errors import DataError

pytest.importorskip("matplotlib")
from netsor.plots.style import COLOURS

NETWORKS = """
import netsor as ns
mlp = ns.zoo.mlp(2, ns.erf)
make = lambda depth: ns.zoo.mlp(depth, ns.erf)
rnn = ns.zoo.simple_rnn()
"""


@pytest.fixture(scope="module")
def pictures() -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((6, 2))
    line = np.linspace(-1, 1, 5)[:, None]
    K = ns.kernel(ns.zoo.mlp(2, ns.erf))
    fitted = ns.gp.fit(K, line, np.sin(line[:, 0]), noise=0.01)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5)), -1)
    trained = ns.gp.train(ns.zoo.mlp(1), line, np.sin(line[:, 0]))
    return {
        "map": ns.plots.kernel_map(K.evaluate(x)),
        "correlation": ns.plots.kernel_map(K.evaluate(x), list("abcdef"), correlation=True, breaks=[3]),
        "spectrum": ns.plots.spectrum({"one": K.evaluate(x), "two": K(x[:4])}),
        "angle": ns.plots.angle(ns.zoo.mlp(1)),
        "correlation_map": ns.plots.correlation_map({"one": ns.zoo.mlp(1), "two": ns.zoo.mlp(2)}),
        "prior": ns.plots.samples(K, line),
        "posterior": ns.plots.samples(fitted, line),
        "images": ns.plots.samples(K, grid, count=2),
        "training": ns.plots.training(trained, line, times=(0.0, 1.0, np.inf)),
        "convergence": ns.plots.convergence(ns.verify(ns.zoo.mlp(1), x, widths=(8, 32), samples=5)),
        "phase": ns.plots.phase_diagram(
            lambda d: ns.zoo.mlp(d, ns.erf), [0.5, 2.0, 4.0], [0.0, 1.0], depth=4
        ),
    }


def test_every_picture_has_a_caption_and_units(pictures: dict[str, Any]) -> None:
    for name, picture in pictures.items():
        assert len(picture.caption) > 40, name
        assert picture.caption.endswith("."), name
        for ax in picture.figure.axes:
            labelled = ax.get_xlabel() or ax.get_ylabel() or [t.get_text() for t in ax.get_xticklabels()]
            assert labelled, name


def test_fonts_are_readable(pictures: dict[str, Any]) -> None:
    for name, picture in pictures.items():
        texts = picture.figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
        assert min(t.get_fontsize() for t in texts if t.get_text()) >= 7.5, name


def test_pictures_are_written_the_same_each_time(pictures: dict[str, Any], tmp_path: Path) -> None:
    one = pictures["angle"]
    for suffix in ("png", "pdf", "svg"):
        first, second = (one.save(tmp_path / f"{k}.{suffix}").read_bytes() for k in (1, 2))
        assert first == second
    assert one._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(DataError, match=r"cannot be \.gif"):
        one.save(tmp_path / "a.gif")


def _linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _lab(rgb: np.ndarray) -> np.ndarray:
    """CIE Lab of linear RGB, with the white of D65."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.072175],
            [0.0193339, 0.119192, 0.9503041],
        ]
    )
    t = to_xyz @ rgb / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira & Fernandes 2009, at full severity.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
}


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_colour_blind_readers_tell_the_first_six_lines_apart(blindness: str) -> None:
    """At least 10 units of CIE Lab between any two; about 2.3 is a just noticeable difference."""
    seen = [_lab(np.clip(np.asarray(BLINDNESS[blindness]) @ _linear(c), 0, 1)) for c in COLOURS[:6]]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 10


def test_the_correlation_map_of_relu_is_the_arc_cosine_kernel() -> None:
    picture = ns.plots.correlation_map(ns.zoo.mlp(1, var_b=0.0))
    c, found = (np.asarray(a) for a in picture.figure.axes[0].lines[1].get_data())
    expected = (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / np.pi
    assert np.abs(found - expected).max() < 1e-12


def test_sensitivity_is_that_of_the_mean_field_theory() -> None:
    """var_w E[phi'^2] at the fixed point of the variance, by quadrature: no code of the limit."""
    z, weight = np.polynomial.hermite_e.hermegauss(100)
    weight = weight / weight.sum()
    for var_w, var_b in ((0.5, 0.2), (2.0, 0.3), (4.0, 0.1)):
        q = 1.0
        for _ in range(500):
            q = var_w * weight @ np.tanh(np.sqrt(q) * z) ** 2 + var_b
        expected = var_w * weight @ (1 - np.tanh(np.sqrt(q) * z) ** 2) ** 2
        found = ns.plots.sensitivity(lambda d: ns.zoo.mlp(d, ns.tanh), var_w, var_b, depth=12)
        assert abs(found / expected - 1) < 2e-3


def test_relative_sensitivity_of_relu_is_one() -> None:
    """Without a bias a relu network only scales: correlations of near inputs keep their distance to 1."""
    found = ns.plots.sensitivity(ns.zoo.mlp, [1.0, 3.0], 0.0, relative=True)
    assert np.abs(found - 1).max() < 2e-3


def test_batchnorm_is_chaotic_at_the_rate_of_the_literature() -> None:
    """pi / (pi - 1) for relu and large batches, to which it comes like 1 / batch (Yang et al. 2019)."""
    rng, found = np.random.default_rng(0), []
    for size in (16, 32):
        batch = rng.standard_normal((size, size))
        pair = (batch, batch + rng.standard_normal((size, size)))
        found.append(float(ns.plots.sensitivity(ns.zoo.batchnorm_mlp, 1.0, depth=4, inputs=pair)))
    assert abs(2 * found[1] - found[0] - np.pi / (np.pi - 1)) < 0.03


def test_the_spectrum_counts_what_holds_most() -> None:
    picture = ns.plots.spectrum(np.diag([90.0, 9.5, 0.5]))
    assert "2 of them hold 99%" in picture.caption


@pytest.mark.parametrize(
    "kind", ["map", "spectrum", "samples", "convergence", "angle", "correlation", "phase", "training"]
)
def test_every_kind_on_the_command_line(kind: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    x = np.linspace(-1, 1, 5)
    np.savez(tmp_path / "data.npz", x=x[:, None], y=np.sin(x))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 2)))
    target = f"{tmp_path}/nets.py:{'make' if kind == 'phase' else 'mlp'}"
    data = "data.npz" if kind in ("samples", "training") else "x.npy"
    more = ["--noise", "0.01"] if kind == "samples" else ["--widths", "8,16", "--depth", "3"]
    words = ["plot", target, str(tmp_path / data), "--kind", kind, "-o", str(tmp_path / "p.png"), *more]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_wrong_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETWORKS)
    for words in (["mlp", "--kind", "pie"], ["nothing", "--kind", "phase"], ["mlp", "--kind", "phase"]):
        done = CliRunner().invoke(app, ["plot", f"{tmp_path}/nets.py:{words[0]}", *words[1:]])
        assert done.exit_code == 1
        assert "Error: " in done.output
