"""The command line: exit codes, output, errors without tracebacks, nothing half-written."""

from __future__ import annotations

import re
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

import netsor as ns
from netsor.cli import app
from netsor.verify import Verification

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "programs"
runner = CliRunner()

NETWORKS = """
import numpy as np
import netsor as ns

U, W, v = ns.Matrix(1.0), ns.Matrix(1.5), ns.Matrix(1.0, rows=1)


@ns.network
def states(tokens):
    state, states = 0, []
    for token in tokens:
        state = ns.erf(W @ state + U @ token)
        states.append(state)
    return v @ ns.stack(states)


perceptron = ns.zoo.mlp(1)
graph = ns.zoo.graph_conv(1)


def plain(x):
    return x
"""


@pytest.fixture
def networks(tmp_path: Path) -> str:
    path = tmp_path / "networks.py"
    path.write_text(NETWORKS)
    return str(path)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1.0, 2.0], [0.5, -1.0], [0.0, 1.0]]))
    return path


@pytest.fixture
def sequences(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    np.savez(path, long=rng.standard_normal((3, 2)), short=rng.standard_normal((2, 2)))
    return path


def run(*args: object, code: int = 0) -> Result:
    result = runner.invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def test_version() -> None:
    assert run("--version").output == f"netsor {ns.__version__}\n"


def test_every_command_takes_its_data_as_an_argument() -> None:
    """`netsor COMMAND TARGET [DATA]`: no option that was one is shown, and none is needed."""
    group: Any = get_command(app)
    for name in ("show", "kernel", "plan", "simulate", "verify", "train", "plot", "report", "fit", "predict"):
        parameters = group.commands[name].params
        assert any(p.param_type_name == "argument" and p.name == "data" for p in parameters), name
        needed = [p.name for p in parameters if p.param_type_name == "option" and p.required]
        assert not needed, name


def test_help_says_what_each_command_does() -> None:
    """One sentence that begins with a verb, and a sentence for each option."""
    group: Any = get_command(app)
    commands = {**group.commands, **group.commands["reproduce"].commands}
    assert " ".join(commands["kernel"].help.split()).startswith(
        "Compute the infinite-width kernel of a network"
    )
    assert commands["rnn"].help.startswith("Draw the paper's first figure")
    for name, command in commands.items():
        assert re.match(r"[A-Z][a-z]+ .*\.$", command.help, re.S), name
        for parameter in command.params:
            text = getattr(parameter, "help", None)
            assert text is None or parameter.hidden or text.endswith("."), (
                name,
                parameter.name,
            )
        assert "Usage: " in run(*(["reproduce"] if name not in group.commands else []), name, "--help").output


# check, show


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.netsor")), ids=lambda path: path.stem)
def test_check_accepts_the_examples(path: Path) -> None:
    assert "OK:" in run("check", path).output


def test_check_reports_an_error_with_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.netsor"
    bad.write_text("Input g :: G(n) ~ N(0, 1)\nx := relu(h)\n")
    output = run("check", bad, code=1).output
    assert "bad.netsor: line 2" in output
    assert "x := relu(h)" in output


def test_files_that_are_missing_or_binary(tmp_path: Path) -> None:
    assert "there is no file" in run("check", "no_such_file.netsor", code=1).output
    binary = tmp_path / "binary.netsor"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in run("check", binary, code=1).output
    run("check", tmp_path, code=1)


def test_show_prints_the_program_of_a_network(networks: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0], [0.5, -1.0]]))
    shown = run("show", f"{networks}:states", tmp_path / "x.npy").output
    assert ns.parse(shown).types["W"] is not None
    assert "MatMul(W, " in shown
    target = tmp_path / "states.netsor"
    run("show", f"{networks}:states", "-i", tmp_path / "x.npy", "-o", target)
    assert ns.parse(target.read_text()) == ns.parse(shown)
    lowered = run("show", f"{networks}:states", "-i", tmp_path / "x.npy", "--variant", "netsor-minus")
    assert ns.parse(lowered.output).outputs
    run("show", f"{networks}:states", "-i", tmp_path / "x.npy", "--variant", "nonsense", code=1)


def test_show_with_one_variable_per_line(networks: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"g.0": np.eye(3, 2), "g.1": np.eye(3)}
    np.savez(tmp_path / "graph.npz", **arrays)
    args = ("show", f"{networks}:graph", "-i", tmp_path / "graph.npz")
    blocks, plain = (ns.parse(run(*args, *more).output) for more in ((), ("--expand",)))
    assert any(t.index for t in blocks.types.values())
    assert not any(t.index for t in plain.types.values())


def test_options_of_before_still_work(networks: str, sequences: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(2))
    new = run("show", f"{networks}:states", tmp_path / "x.npy", sequences).output
    assert new == run("show", f"{networks}:states", "-i", tmp_path / "x.npy", "--input", sequences).output
    for command in ("show", "report"):
        assert "needs data" in run(command, f"{networks}:states", code=1).output
    assert "2 files" in run("report", f"{networks}:states", sequences, "--input", sequences, code=1).output


def test_show_of_several_inputs_is_a_joint_program(networks: str, sequences: Path) -> None:
    program = ns.parse(run("show", f"{networks}:states", "-i", sequences).output)
    assert set(program.data) == {"x1", "x2"}


# limit: the worked examples of the paper's appendix, entry by entry


def values(output: str) -> dict[str, float]:
    """The lines `name = number` of `netsor limit`."""
    found = re.findall(r"^([^=\n]+\S) = (-?[\d.e+-]+)(?:  \(widths.*\))?$", output, re.M)
    return {name: float(number) for name, number in found}


def test_limit_prints_the_worked_mlp_example() -> None:
    """Section "MLP with Single Input": |x|^2 = m, so Sigma(W1x, W1x) = 1."""
    output = run("limit", PROGRAMS / "mlp.netsor", "--data", "x=[1, -1, 1]").output
    order = ("W1x", "b1", "b2", "v", "h1", "htilde2", "h2")
    ones = {("W1x", "W1x"), ("b1", "b1"), ("b2", "b2"), ("v", "v"), ("W1x", "h1"), ("b1", "h1")}
    ones |= {("htilde2", "htilde2"), ("b2", "h2"), ("htilde2", "h2")}
    twos = {("h1", "h1"), ("h2", "h2")}
    want = {f"mu({g})": 0.0 for g in order}
    for pair in combinations_with_replacement(order, 2):
        want[f"Sigma({pair[0]}, {pair[1]})"] = 1.0 if pair in ones else 2.0 if pair in twos else 0.0
    got = values(output)
    assert got.keys() == want.keys()
    assert got == pytest.approx(want, abs=1e-9)
    assert "K = [[1.]]" in output


def test_limit_of_the_mlp_with_the_data_of_the_file() -> None:
    """The same by hand for x = [1, -1/2, 1/4]: Sigma(W1x, W1x) = 21/48, and relu halves a variance."""
    got = values(run("limit", PROGRAMS / "mlp.netsor").output)
    q = 21 / 48
    assert got["Sigma(W1x, W1x)"] == got["Sigma(W1x, h1)"] == q
    assert got["Sigma(h1, h1)"] == pytest.approx(q + 1, abs=1e-9)
    assert got["Sigma(htilde2, htilde2)"] == pytest.approx((q + 1) / 2, abs=1e-9)
    assert got["Sigma(h2, h2)"] == pytest.approx((q + 1) / 2 + 1, abs=1e-9)


def test_limit_prints_the_worked_layernorm_example() -> None:
    """Section "Layernorm: Concrete Example" at sigma_w = sigma_v = 1, m = 2."""
    output = run("limit", PROGRAMS / "layernorm.netsor").output
    x, xp = np.array([1, 0.5]), np.array([-0.5, 0.25])
    order = ("W1x", "W1xp", "v", "h2", "h2p")

    def v_relu(c: float) -> float:
        return (np.sqrt(1 - c * c) + (np.pi - np.arccos(c)) * c) / (2 * np.pi)

    cross = v_relu(float(x @ xp / np.sqrt((x @ x) * (xp @ xp))))
    sigma = {("W1x", "W1x"): x @ x / 2, ("W1x", "W1xp"): x @ xp / 2, ("W1xp", "W1xp"): xp @ xp / 2}
    sigma |= {("v", "v"): 1.0, ("h2", "h2"): 0.5, ("h2", "h2p"): cross, ("h2p", "h2p"): 0.5}
    want = {f"mu({g})": 0.0 for g in order}
    for a, b in combinations_with_replacement(order, 2):
        want[f"Sigma({a}, {b})"] = float(sigma.get((a, b), 0.0))
    for name in ("nu1", "nu2", "nu1p", "nu2p"):
        want[f"limit of {name}"] = 0.0
    want |= {"limit of var1": x @ x / 2, "limit of var1p": xp @ xp / 2}
    want |= {"limit of var2": 0.5, "limit of var2p": 0.5}
    got = values(output)
    assert got.keys() == want.keys()
    assert got == pytest.approx(want, abs=1e-9)
    kernel = np.array(re.findall(r"[\d.]+", output[output.index("K = ") :].split("]]")[0]), float)
    np.testing.assert_allclose(kernel, [0.5, v_relu(2 * cross), v_relu(2 * cross), 0.5], atol=1e-9)


def test_limit_stores_its_values(tmp_path: Path) -> None:
    run("limit", PROGRAMS / "layernorm.netsor", "-o", tmp_path / "limit.npz")
    with np.load(tmp_path / "limit.npz") as stored:
        assert float(stored["Sigma(h2, h2)"]) == pytest.approx(0.5)
        assert stored["K"].shape == stored["error"].shape == (2, 2)


@pytest.mark.parametrize("setting", ["y=[1]", "x=[1", "x=[1, 2]", "x=none.npy", "x"])
def test_limit_with_bad_data(setting: str) -> None:
    run("limit", PROGRAMS / "mlp.netsor", "--data", setting, code=1)


def test_limit_refuses_what_has_no_exact_method() -> None:
    output = run("limit", PROGRAMS / "lstm.netsor", "--method", "exact", code=1).output
    assert "no exact method" in output
    assert "there is no variable" not in run("limit", PROGRAMS / "mlp.netsor", "--method", "x", code=1).output


# kernel, simulate, verify, plot


def test_kernel_stores_values_errors_plan_and_labels(networks: str, sequences: Path, tmp_path: Path) -> None:
    target = tmp_path / "K.npz"
    output = run("kernel", f"{networks}:states", sequences, "-o", target, "--explain").output
    assert "closed form" in output
    with np.load(target) as stored, np.load(sequences) as data:
        K = ns.kernel(ns.zoo.simple_rnn(var_w=1.5, var_b=0.0))([data["long"], data["short"]])
        np.testing.assert_allclose(stored["K"], K, atol=1e-12)
        assert stored["error"].shape == K.shape
        assert "closed form" in str(stored["plan"])
        assert list(stored["labels"]) == ["long 0", "long 1", "long 2", "short 0", "short 1"]
        assert list(stored["starts"]) == [0, 3]
    pytest.importorskip("matplotlib")
    picture = run("plot", target, "--correlation", "--title", "two sequences").output
    assert (tmp_path / "K.png").is_file()
    assert "K.png" in picture


def test_plan_says_what_the_kernel_takes(networks: str, sequences: Path) -> None:
    output = run("plan", f"{networks}:states", sequences).output
    assert "a kernel of 5 x 5" in output
    assert "closed form" in output
    assert "multiply-adds" in output
    assert "error" not in output
    assert "sampled" in run("plan", f"{networks}:states", sequences, "--method", "sample").output
    assert "E[relu relu]: closed form" in run("plan", PROGRAMS / "mlp.netsor").output


def test_kernel_between_two_sets(networks: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((3, 2)), rng.standard_normal((2, 2))
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    run("kernel", f"{networks}:perceptron", tmp_path / "xy.npz", "-o", tmp_path / "K.npz")
    with np.load(tmp_path / "K.npz") as stored:
        np.testing.assert_allclose(stored["K"], ns.kernel(ns.zoo.mlp(1))(x, y), atol=1e-14)


def test_kernel_of_graphs_given_in_parts(networks: str, tmp_path: Path) -> None:
    x, A = np.random.default_rng(2).standard_normal((3, 2)), np.eye(3)
    np.savez(tmp_path / "graphs.npz", **{"one.0": x, "one.1": A, "two.0": x[:2], "two.1": A[:2, :2]})
    run("kernel", f"{networks}:graph", tmp_path / "graphs.npz", "-o", tmp_path / "K.npz")
    with np.load(tmp_path / "K.npz") as stored:
        want = ns.kernel(ns.zoo.graph_conv(1))([(x, A), (x[:2], A[:2, :2])])
        np.testing.assert_allclose(stored["K"], want, atol=1e-14)
        assert len(stored["labels"]) == 5


def test_kernel_of_a_program_prints_it() -> None:
    assert "0.859375" in run("kernel", PROGRAMS / "mlp.netsor").output
    assert "own data" in run("kernel", PROGRAMS / "mlp.netsor", "x.npy", code=1).output


def test_tangents_and_their_kernels(networks: str, vectors: Path, tmp_path: Path) -> None:
    text = run("tangent", PROGRAMS / "mlp.netsor", "--rates", "unit").output
    assert text == str(ns.parse((PROGRAMS / "mlp.netsor").read_text()).tangent("unit"))
    assert "Moment" in run("tangent", PROGRAMS / "layernorm.netsor", "--finite").output
    assert "512" in run("tangent", PROGRAMS / "mlp.netsor", "--rates", "standard:512").output
    assert "d_v" not in run("tangent", PROGRAMS / "mlp.netsor", "--rates", "v=0").output
    run("tangent", PROGRAMS / "mlp.netsor", "--rates", "v=x", code=1)
    run("tangent", PROGRAMS / "mlp.netsor", "--rates", "nonsense", code=1)
    run("kernel", f"{networks}:perceptron", vectors, "--ntk", "-o", tmp_path / "K.npz")
    with np.load(tmp_path / "K.npz") as stored:
        np.testing.assert_array_equal(stored["K"], ns.ntk(ns.zoo.mlp(1)).evaluate(np.load(vectors)).value)
    run("kernel", f"{networks}:perceptron", vectors, "--ntk", "--rates", "v=0", "-o", tmp_path / "K.npz")
    with np.load(tmp_path / "K.npz") as stored:
        frozen = ns.ntk(ns.zoo.mlp(1), {"v": 0.0}).evaluate(np.load(vectors)).value
        np.testing.assert_array_equal(stored["K"], frozen)
    assert "--ntk" in run("kernel", f"{networks}:perceptron", vectors, "--rates", "unit", code=1).output
    assert "[[" in run("kernel", PROGRAMS / "mlp.netsor", "--ntk", "--rates", "standard:64").output
    limit = ns.limit(ns.parse((PROGRAMS / "mlp.netsor").read_text()).tangent()).kernel().value
    assert f"{limit[0, 0]:.5f}"[:6] in run("kernel", PROGRAMS / "mlp.netsor", "--ntk").output
    assert "E[step step]" in run("plan", f"{networks}:perceptron", vectors, "--ntk").output
    assert "E[step step]" in run("plan", PROGRAMS / "mlp.netsor", "--ntk").output
    args = ("--widths", "32,128,512", "--samples", 30, "--ntk")
    assert "slope" in run("verify", f"{networks}:perceptron", vectors, *args).output
    np.save(tmp_path / "one.npy", np.load(vectors)[0])
    assert "d_W1x" in run("show", f"{networks}:perceptron", "-i", tmp_path / "one.npy", "--ntk").output


def test_training_and_its_picture(networks: str, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 4)[:, None]
    np.savez(tmp_path / "d.npz", x=x, y=x[:, 0] ** 2, new=np.linspace(-2, 2, 9)[:, None])
    args = ("train", f"{networks}:perceptron", tmp_path / "d.npz")
    text = run(*args, "--times", "0,3,inf", "-o", tmp_path / "t.npz").output
    model = ns.gp.train(ns.zoo.mlp(1), x, x[:, 0] ** 2)
    assert f"loss {model.loss(3.0):.6g}" in text
    with np.load(tmp_path / "t.npz") as stored:
        np.testing.assert_array_equal(stored["mean"][1], model.predict(stored["new"], 3.0).mean)
    pytest.importorskip("matplotlib")
    assert "wrote" in run("plot", tmp_path / "t.npz").output
    assert (tmp_path / "t.png").stat().st_size > 10_000
    run(*args, "--times", "1,-1", code=1)
    np.savez(tmp_path / "no.npz", x=x)
    assert "no array `y`" in run("train", f"{networks}:perceptron", tmp_path / "no.npz", code=1).output


def test_simulate_is_deterministic(networks: str, vectors: Path, tmp_path: Path) -> None:
    args = ("simulate", f"{networks}:perceptron", vectors, "--width", 50, "--samples", 20, "--seed", 3)
    run(*args, "-o", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as stored:
        outputs = stored["outputs"]
    np.testing.assert_array_equal(
        outputs, ns.simulate(ns.zoo.mlp(1), np.load(vectors), width=50, samples=20, seed=3)
    )
    assert "20 networks of width 50" in run(*args).output
    assert run("simulate", PROGRAMS / "mlp.netsor", "--width", 20, "--samples", 5).output


def test_verify_and_its_exit_codes(
    networks: str, vectors: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    args = ("verify", f"{networks}:perceptron", vectors, "--widths", "32,128,512", "--samples", 30)
    assert "slope" in run(*args).output
    monkeypatch.setattr(Verification, "ok", property(lambda self: False))
    assert "does not agree" in run(*args, code=3).output
    for widths in ("64", "64,64", "a,b", "0,64"):
        run("verify", f"{networks}:perceptron", vectors, "--widths", widths, code=1)


def test_targets_that_are_no_networks(networks: str, vectors: Path, tmp_path: Path) -> None:
    for target, message in {
        f"{networks}:plain": "is no network",
        f"{networks}:other": "Its networks: states, perceptron, graph",
        networks: "FILE.py:network",
        "none.py:net": "there is no file",
    }.items():
        assert message in " ".join(run("kernel", target, vectors, code=1).output.split()), target
    bad = tmp_path / "bad.py"
    for text, message in (("x = 1\ny = 1 / 0\n", "bad.py, line 2: ZeroDivisionError"), ("def", "line 1")):
        bad.write_text(text)
        assert message in " ".join(run("kernel", f"{bad}:net", vectors, code=1).output.split())


def test_data_that_cannot_be_read(networks: str, tmp_path: Path) -> None:
    number, text, damaged = tmp_path / "number.npy", tmp_path / "x.csv", tmp_path / "damaged.npz"
    np.save(number, 1.0)
    text.write_text("1,2")
    damaged.write_bytes(b"PK\x03\x04 not a zip")
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}], dtype=object))
    for path in (number, text, damaged, objects, tmp_path / "none.npy"):
        run("kernel", f"{networks}:perceptron", path, code=1)
    assert "needs data" in run("kernel", f"{networks}:perceptron", code=1).output


def test_nothing_is_written_after_an_error(networks: str, tmp_path: Path) -> None:
    np.save(tmp_path / "bad.npy", np.array([[np.nan, 1.0]]))
    run("kernel", f"{networks}:perceptron", tmp_path / "bad.npy", "-o", tmp_path / "K.npz", code=1)
    assert not (tmp_path / "K.npz").exists()


def test_plot_of_what_is_no_kernel(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.eye(2))
    np.savez(tmp_path / "good.npz", K=np.eye(2))
    run("plot", tmp_path / "good.npz", "--words", "only", code=1)
    assert "holds no kernel" in run("plot", tmp_path / "other.npz", code=1).output
    np.savez(tmp_path / "zero.npz", K=np.zeros((2, 2)))
    run("plot", tmp_path / "zero.npz", "--correlation", code=1)
    run("plot", tmp_path / "zero.npz", "-o", tmp_path / "zero.doc", code=1)


def test_usage_errors_have_exit_code_2() -> None:
    run("kernel", code=2)
    run("reproduce", "rnn", "--seed", "-1", code=2)
    run("nonsense", code=2)


@pytest.mark.parametrize(
    "command",
    ["show", "check", "tangent", "limit", "kernel", "simulate", "verify", "train", "plot", "reproduce"],
)
def test_help(command: str) -> None:
    assert "Usage" in run(command, "--help").output


# reproduce


def test_reproduce_resumes_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from netsor.plots import Picture
    from netsor.reproduce import rnn

    args = ("reproduce", "rnn", "--out", tmp_path, "--width", 20, "--samples", 200)

    def interrupt(*_: object, **__: object) -> np.ndarray:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rnn, "simulate", interrupt)
        assert "100 new samples are kept" in " ".join(run(*args, code=130).output.split())
    monkeypatch.setattr(Picture, "save", lambda self, path: path)  # test_reproduce looks at the picture
    output = run(*args).output
    assert "100 samples of an earlier run" in " ".join(output.split())
    assert {p.name for p in tmp_path.iterdir()} >= {"rnn_caption.txt", "rnn_C_covariance.csv"}


def test_reproduce_with_images_that_do_not_exist(tmp_path: Path) -> None:
    run("reproduce", "kernels", "--out", tmp_path / "out", "--images", tmp_path / "none", code=1)
    assert not (tmp_path / "out").exists()
