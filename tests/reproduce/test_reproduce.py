"""The figures: slopes, stored samples, data files, and the claims of the paper's captions in small runs."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.cli.reproduce import widths_up_to
from netsor.data import cifar10, digits, sentences
from netsor.errors import DataError
from netsor.files import replacing, write_npz
from netsor.plots.style import picture
from netsor.reproduce import Experiment, kernels_figure, rnn_figure
from netsor.reproduce.experiment import fingerprint
from netsor.reproduce.kernel_figures import fit_slope, measure
from netsor.reproduce.rnn import rnn_numbers
from netsor.reproduce.studies import paper_studies, tangent_studies, zoo_studies

WIDTHS = (32, 64, 128, 256)


# Slopes


def power_law(slope: float, seed: int, samples: int = 100) -> np.ndarray:
    """Distances with a known slope and known scatter, wider at small widths."""
    rng = np.random.default_rng(seed)
    spread = np.array([0.8, 0.4, 0.2, 0.1])[:, None]
    noise = spread * rng.standard_normal((len(WIDTHS), samples))
    return 3.0 * np.array(WIDTHS)[:, None] ** slope * np.exp(noise)


def test_slope_of_a_power_law_and_its_error() -> None:
    """Over many draws the slopes scatter around the truth as their standard error says."""
    fits = [fit_slope(WIDTHS, power_law(-0.5, seed)) for seed in range(200)]
    pulls = np.array([(fit.slope + 0.5) / fit.error for fit in fits])
    assert abs(pulls.mean()) < 4 / np.sqrt(len(pulls))
    assert 0.7 < pulls.std() < 1.15  # the excess factor may only widen the errors
    another = fit_slope(WIDTHS, power_law(-0.8, 1))
    assert abs(another.slope + 0.8) < 4 * another.error
    assert another.deviation < -5


def test_slope_agrees_with_polynomial_fit() -> None:
    distances = power_law(-0.6, 3)
    logs = np.log(distances)
    errors = logs.std(1, ddof=1) / np.sqrt(logs.shape[1])
    want, covariance = np.polyfit(np.log(WIDTHS), logs.mean(1), 1, w=1 / errors, cov="unscaled")
    fit = fit_slope(WIDTHS, distances)
    excess = max(1.0, np.sqrt(fit.chi2 / fit.freedom))
    np.testing.assert_allclose([fit.slope, fit.intercept], want, rtol=1e-10)
    np.testing.assert_allclose(fit.error, excess * np.sqrt(covariance[0, 0]), rtol=1e-10)


def test_error_grows_when_points_scatter_more_than_their_errors() -> None:
    distances = power_law(-0.5, 5) * np.array([1.0, 1.5, 0.7, 1.2])[:, None]
    fit, smooth = fit_slope(WIDTHS, distances), fit_slope(WIDTHS, power_law(-0.5, 5))
    assert fit.chi2 > 10 * smooth.chi2
    assert fit.error > 2 * smooth.error


def test_widths() -> None:
    assert widths_up_to(1024) == (32, 64, 128, 256, 512, 1024)
    assert widths_up_to(1000)[-1] == 512
    assert widths_up_to(8192)[-1] == 8192
    assert widths_up_to(64) == (32, 64)


# Stored samples


def rows(count: int, seeds: np.random.SeedSequence) -> np.ndarray:
    return np.random.default_rng(seeds).standard_normal((count, 2))


def test_samples_are_deterministic_and_reused(tmp_path: Path) -> None:
    first = Experiment(tmp_path / "a", 7)
    got = first.samples("net", "mark", 32, 25, rows, chunk=10)
    assert got.shape == (25, 2)
    again = Experiment(tmp_path / "a", 7)
    np.testing.assert_array_equal(again.samples("net", "mark", 32, 25, rows, chunk=10), got)
    assert (again.drawn, again.reused) == (0, 25)
    fresh = Experiment(tmp_path / "b", 7).samples("net", "mark", 32, 45, rows, chunk=10)
    more = Experiment(tmp_path / "a", 7).samples("net", "mark", 32, 45, rows, chunk=10)
    np.testing.assert_array_equal(more, fresh)
    np.testing.assert_array_equal(more[:25], got)


@pytest.mark.parametrize("change", ["seed", "width", "network", "name"])
def test_samples_of_another_run_are_not_reused(tmp_path: Path, change: str) -> None:
    old = Experiment(tmp_path, 7).samples("net", "mark", 32, 10, rows, chunk=10)
    experiment = Experiment(tmp_path, 8 if change == "seed" else 7)
    name, mark = ("other" if change == "name" else "net"), ("else" if change == "network" else "mark")
    new = experiment.samples(name, mark, 64 if change == "width" else 32, 10, rows, chunk=10)
    assert (experiment.drawn, experiment.reused) == (10, 0)
    assert np.array_equal(old, new) == (change == "network")  # the draws know the name, the file the program


def test_an_interruption_keeps_what_is_finished(tmp_path: Path) -> None:
    calls = []

    def interrupted(count: int, seeds: np.random.SeedSequence) -> np.ndarray:
        calls.append(count)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rows(count, seeds)

    with pytest.raises(KeyboardInterrupt):
        Experiment(tmp_path, 0).samples("net", "mark", 32, 50, interrupted, chunk=10)
    experiment = Experiment(tmp_path, 0)
    got = experiment.samples("net", "mark", 32, 50, rows, chunk=10)
    assert (experiment.drawn, experiment.reused) == (30, 20)
    np.testing.assert_array_equal(
        got, Experiment(tmp_path / "b", 0).samples("net", "mark", 32, 50, rows, chunk=10)
    )


def test_a_damaged_file_is_drawn_again(tmp_path: Path) -> None:
    want = Experiment(tmp_path, 0).samples("net", "mark", 32, 10, rows, chunk=10)
    path = tmp_path / "samples" / "net_32.npz"
    path.write_bytes(path.read_bytes()[:100])
    np.testing.assert_array_equal(
        Experiment(tmp_path, 0).samples("net", "mark", 32, 10, rows, chunk=10), want
    )


def test_fingerprint_knows_program_and_data() -> None:
    x = np.ones((2, 3))
    assert fingerprint(ns.zoo.mlp(1), x) == fingerprint(ns.zoo.mlp(1), x.copy())
    assert fingerprint(ns.zoo.mlp(1), x) != fingerprint(ns.zoo.mlp(2), x)
    assert fingerprint(ns.zoo.mlp(1), x) != fingerprint(ns.zoo.mlp(1, var_w=2.0), x)
    assert fingerprint(ns.zoo.mlp(1), x) != fingerprint(ns.zoo.mlp(1), x + np.eye(2, 3))


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    target = tmp_path / "K.npz"
    write_npz(target, {"K": np.eye(2)})
    before = target.read_bytes()

    def fail() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


# Studies and figures


def test_every_network_of_the_zoo_has_its_line() -> None:
    studies = zoo_studies()
    names = {s.net.name for s in studies}
    assert names == set(ns.zoo.__all__)
    assert len({s.name for s in studies}) == len(studies) == 12


def test_tangent_kernels_are_those_of_every_network_on_fewer_inputs(tmp_path: Path) -> None:
    studies = tangent_studies()
    assert [s.net.name for s in studies] == [s.net.name for s in zoo_studies()]
    study = studies[0]
    found = measure(Experiment(tmp_path, 0), study, (32,), 3, tangent=True)
    kernels = np.load(tmp_path / "samples" / "mlp_ntk_32.npz")["samples"][:3].astype(float)
    theta = ns.ntk(study.net)(study.inputs)
    want = [np.linalg.norm(k - theta) / np.linalg.norm(theta) for k in kernels]
    np.testing.assert_allclose(found.distances[0], want, rtol=1e-12)


def test_batches_are_the_images_in_order() -> None:
    images = np.arange(70 * 4.0).reshape(70, 2, 2)
    batches = paper_studies(images)[3].inputs
    np.testing.assert_array_equal(np.concatenate(batches), images[:64].reshape(64, 4))
    assert [len(b) for b in batches] == [32, 32]


def test_the_captions_claims_about_the_rnn(tmp_path: Path) -> None:
    numbers = rnn_numbers(Experiment(tmp_path, 0), samples=400, width=200)
    lazy, dog = 14, 6  # of sentence 2, of sentence 1
    assert numbers.study.labels[lazy] == "lazy"
    assert numbers.study.labels[dog] == "dog"
    assert numbers.cosines[lazy, dog] < 0.5 < 0.85 < numbers.correlation[lazy, dog]
    # The deviation falls like width^(-1/2): an order of magnitude below the limit at width 1000.
    assert numbers.ratio.max() * np.sqrt(200 / 1000) < 0.1
    assert numbers.inside_predicted == pytest.approx([0.3935, 0.8647, 0.9889], abs=1e-4)
    error = np.sqrt(numbers.inside_predicted * (1 - numbers.inside_predicted) / 400)
    assert (np.abs(numbers.inside - numbers.inside_predicted) < 4 * error + 0.01).all()


@pytest.fixture(scope="module")
def rnn_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("rnn")
    list(rnn_figure(Experiment(folder, 3), samples=60, width=16))
    return folder


def test_rnn_figure_writes_picture_caption_and_tables(rnn_folder: Path) -> None:
    names = {p.name for p in rnn_folder.iterdir()}
    tables = {"rnn_A_cosines", "rnn_B_correlation", "rnn_C_covariance", "rnn_D_deviation", "rnn_E_outputs"}
    assert names == {"rnn.png", "rnn.pdf", "rnn_caption.txt", "samples"} | {f"{t}.csv" for t in tables}


def test_numbers_depend_on_the_seed_alone(rnn_folder: Path, tmp_path: Path) -> None:
    same = rnn_numbers(Experiment(tmp_path / "a", 3), samples=60, width=16)
    other = rnn_numbers(Experiment(tmp_path / "b", 4), samples=60, width=16)
    stored = np.loadtxt(rnn_folder / "rnn_E_outputs.csv", delimiter=",", skiprows=1)
    np.testing.assert_array_equal(stored, same.outputs)
    assert not np.array_equal(stored, other.outputs)


def test_the_same_figure_gives_the_same_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def draw(ax: Any) -> str:
        ax.plot([0, 1])
        return "A caption with -0.5 in it."

    for folder in ("a", "b"):
        Experiment(tmp_path / folder).write("figure", picture(draw, (2, 2)))
    for suffix in (".png", ".pdf", "_caption.txt"):
        first, second = (tmp_path / folder / f"figure{suffix}" for folder in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()


def test_rnn_tables_hold_words_and_numbers(rnn_folder: Path) -> None:
    with (rnn_folder / "rnn_C_covariance.csv").open() as file:
        table = list(csv.reader(file))
    words = [*sentences()[0].words, *sentences()[1].words]
    assert table[0][1:] == words
    assert [row[0] for row in table[1:]] == words
    K = ns.kernel(ns.zoo.simple_rnn())([s.vectors for s in sentences()])
    np.testing.assert_array_equal(np.array([row[1:] for row in table[1:]], float), K)


def test_kernels_figure_in_a_small_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = list(kernels_figure(Experiment(tmp_path, 0), (32, 64), 4))
    assert any("batchnorm + relu" in line for line in lines)
    with (tmp_path / "kernels_E_slopes.csv").open() as file:
        slopes = list(csv.DictReader(file))
    assert [row["network"] for row in slopes] == ["simple_rnn", "gru", "transformer", "batchnorm_mlp"]
    with (tmp_path / "kernels_E_distances.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4 * 2 * 4
    with (tmp_path / "kernels_D_batchnorm_mlp.csv").open() as file:
        diagonal = [float(row[1 + k]) for k, row in enumerate(list(csv.reader(file))[1:])]
    np.testing.assert_allclose(diagonal, np.ones(64), atol=1e-12)


def test_distances_are_relative_frobenius_norms(tmp_path: Path) -> None:
    study = zoo_studies()[0]
    found = measure(Experiment(tmp_path, 0), study, (32,), 3)
    kernels = np.load(tmp_path / "samples" / "mlp_32.npz")["samples"][:3].astype(float)
    K = ns.kernel(study.net)(study.inputs)
    want = [np.sqrt(((k - K) ** 2).sum() / (K**2).sum()) for k in kernels]
    np.testing.assert_allclose(found.distances[0], want, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("study", zoo_studies(), ids=lambda study: study.name)
def test_slope_is_minus_one_half(study, tmp_path: Path) -> None:
    found = measure(Experiment(tmp_path, 1), study, (32, 64, 128, 256, 512), 100)
    assert abs(found.fit.deviation) < 4


@pytest.mark.slow
@pytest.mark.parametrize("study", tangent_studies(), ids=lambda study: study.name)
def test_slope_of_tangent_kernels(study, tmp_path: Path) -> None:
    found = measure(Experiment(tmp_path, 1), study, (32, 64, 128, 256, 512), 100, tangent=True)
    assert abs(found.fit.deviation) < 4


# Data


def test_digits_are_those_of_scikit_learn() -> None:
    bundled = pytest.importorskip("sklearn.datasets").load_digits()
    np.testing.assert_array_equal(digits().images * 16, bundled.images[:64])
    np.testing.assert_array_equal(digits().labels, bundled.target[:64])


def cifar_rows() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (70, 3072)).astype(np.uint8)


def test_cifar_files_of_every_kind_agree(tmp_path: Path) -> None:
    images = cifar_rows()
    (tmp_path / "cifar-10-batches-py").mkdir()
    pickled = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    pickled.write_bytes(pickle.dumps({b"data": images, b"labels": [0] * 70}, protocol=2))
    binary = tmp_path / "data_batch_1.bin"
    binary.write_bytes(np.concatenate([np.zeros((70, 1), np.uint8), images], axis=1).tobytes())
    want = images[:64].reshape(64, 3, 32, 32) / 255
    got = cifar10(binary)
    np.testing.assert_array_equal(got[5, 3, 4], want[5, :, 3, 4])
    np.testing.assert_array_equal(got, cifar10(pickled.parent))
    np.save(tmp_path / "images.npy", want.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(got, cifar10(tmp_path / "images.npy"))


def test_bad_cifar_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no CIFAR-10 images at"):
        cifar10(tmp_path)
    bad = tmp_path / "data_batch_1"
    for content in (b"", b"text", pickle.dumps({b"data": print}), pickle.dumps({b"other": 1})):
        bad.write_bytes(content)
        with pytest.raises(DataError, match="holds no CIFAR-10 images"):
            cifar10(bad)
    np.save(tmp_path / "few.npy", np.zeros((3, 32, 32, 3)))
    with pytest.raises(DataError, match="not 64 of them"):
        cifar10(tmp_path / "few.npy")
