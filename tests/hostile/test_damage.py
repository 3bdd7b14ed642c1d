"""Every file of a store and of a saved model, damaged in every way: the right numbers or a NetsorError.

Right is what the kernel in memory and NumPy's solver say. A store that goes on (`verify=True`) repairs its
tiles, or says why not.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import NetsorError
from netsor.gp.stores.model import load_stored
from netsor.limits.on_numpy import recording

pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.filterwarnings("ignore::netsor.NetsorWarning")  # few landmarks have large errors

RNG = np.random.default_rng(11)
SECONDS = 60  # that nothing here takes
NOISE = 0.1
Thunk = Callable[[], Any]


@dataclass
class Case:
    """A store, what is asked of it, and the answers."""

    network: Callable[[], ns.Network]
    x: Any
    y: Any = None
    new: Any = None
    tile: int | None = None
    tangent: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    marks: int | None = None

    @cached_property
    def kernel(self) -> Any:
        return (ns.ntk if self.tangent else ns.kernel)(self.network(), **self.options)

    def store(self, path: Path, **options: Any) -> ns.gp.Store:
        return ns.gp.store(
            self.kernel, self.x, path, self.y, tile=self.tile, landmarks=self.marks, progress=False, **options
        )

    @cached_property
    def targets(self) -> np.ndarray:
        rows = self.kernel(self.x).shape[0]
        return np.cos(np.arange(rows, dtype=float))

    def fit(self, store: ns.gp.Store, **options: Any) -> ns.gp.StoredGP:
        return ns.gp.fit(store, self.targets, noise=NOISE, progress=False, **options)

    def questions(self, path: Path, model: Path) -> dict[str, Thunk]:
        """What users ask of a store; each opens it anew."""
        asked: dict[str, Thunk] = {
            "matrix": lambda: ns.gp.Store(path).read(),
            "errors": lambda: ns.gp.Store(path).errors(),
            "largest error": lambda: ns.gp.Store(path).status().largest_error,
            "inputs": lambda: flat(ns.gp.Store(path).inputs(0)),
            "means": lambda: ns.gp.Store(path).mean(),
        }
        if self.y is not None:
            asked["columns"] = lambda: flat(ns.gp.Store(path).inputs(1))
            return asked
        if self.tangent:
            asked["own kernel"] = lambda: ns.gp.Store(path, nngp=True).read()
            asked["own error"] = lambda: ns.gp.Store(path, nngp=True).status().largest_error
        asked["weights"] = lambda: self.fit(ns.gp.Store(path)).alpha[:, 0]
        asked["evidence"] = lambda: self.fit(ns.gp.Store(path)).log_marginal_likelihood().value
        asked["iterated weights"] = lambda: self.fit(ns.gp.Store(path), solver="pcg", tol=1e-12).alpha[:, 0]
        asked["predictions"] = lambda: self.predict(path, model)
        return asked

    def predict(self, path: Path, model: Path) -> np.ndarray:
        """Means and standard deviations from the model that was saved."""
        prediction = load_stored(model, ns.gp.Store(path, self.kernel)).predict(self.new)
        return np.stack([prediction.mean, prediction.std])


def flat(inputs: Any) -> np.ndarray:
    """All numbers and sizes of some inputs."""
    if isinstance(inputs, np.ndarray):
        return np.concatenate([np.ravel(inputs), inputs.shape])
    return np.concatenate([flat(x) for x in inputs])


X = RNG.standard_normal((12, 3))
SENTENCES = [RNG.standard_normal((t, 2)) for t in (2, 3, 1, 2, 3)]
GRAPHS = [(RNG.standard_normal((k, 2)), np.eye(k)) for k in (2, 3, 1)]


def gru() -> ns.Network:
    cell, v = ns.GRUCell(), ns.Matrix(1.0, rows=1, name="v")

    @ns.network
    def recurrent(tokens):
        state = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    return recurrent


CASES = {
    "one tile": Case(lambda: zoo.mlp(1), X[:5], new=X[5:7], tile=64),
    "tiles": Case(lambda: zoo.mlp(1), X, new=X[5:7] / 2, tile=8),
    "ragged": Case(zoo.simple_rnn, SENTENCES, new=SENTENCES[:2], tile=2),
    "graphs": Case(lambda: zoo.graph_conv(1), GRAPHS, new=GRAPHS[1:], tile=2),
    "two sets": Case(lambda: zoo.mlp(1), X[:9], X[9:], tile=8),
    "tangent": Case(lambda: zoo.mlp(1), X[:9], new=X[9:], tile=8, tangent=True),
    "landmarks": Case(
        gru,
        RNG.standard_normal((4, 3, 2)),
        new=RNG.standard_normal((1, 3, 2)),
        tile=2,
        marks=2,
        options={"points": 16, "repeats": 2},
    ),
}


@dataclass
class Pristine:
    """A store with a factor, beside a model that was fitted to it."""

    case: Case
    folder: Path
    answers: dict[str, Any]

    def copy(self, folder: Path) -> dict[str, Thunk]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        return self.case.questions(folder / "K.zarr", folder / "model.npz")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pristine]]:
    made: dict[str, Pristine] = {}

    def build(name: str) -> Pristine:
        if name not in made:
            case, folder = CASES[name], tmp_path_factory.mktemp("pristine")
            store = case.store(folder / "K.zarr")
            if case.y is None:
                case.fit(store).save(folder / "model.npz")
            asked = case.questions(folder / "K.zarr", folder / "model.npz")
            made[name] = Pristine(case, folder, {what: ask() for what, ask in asked.items()})
        return made[name]

    with pytest.MonkeyPatch.context() as patched:
        for constant, value in (("TILE", 64), ("LITTLE_WORK", 0), ("FEWEST_FOR_THREADS", 0)):
            patched.setattr(recording, constant, value)
        yield build


@pytest.mark.parametrize("name", [name for name in CASES if name != "landmarks"])  # which are drawn
def test_the_answers_are_right(name: str, pristine: Callable[[str], Pristine]) -> None:
    """Of stores that nothing has happened to: those of the kernel in memory, and of a solve by NumPy."""
    case, answers = CASES[name], pristine(name).answers
    K = case.kernel
    matrix = K(case.x) if case.y is None else K(case.x, case.y)
    np.testing.assert_allclose(answers["matrix"], matrix, rtol=1e-12, atol=1e-12)
    # The sets of the tangent case share inputs: the derivative of relu is at its jump there.
    assert answers["largest error"] < (1e-6 if name == "tangent" else 1e-10)
    np.testing.assert_array_equal(answers["inputs"], flat(case.x))
    if case.y is None:
        weights = np.linalg.solve(matrix + NOISE * np.eye(len(matrix)), case.targets)
        for solved in ("weights", "iterated weights"):
            np.testing.assert_allclose(answers[solved], weights, rtol=0, atol=1e-9)
        means, deviations = answers["predictions"]
        cross = K(case.new, case.x)
        np.testing.assert_allclose(means, cross @ weights, rtol=0, atol=1e-9)
        solved = np.linalg.solve(matrix + NOISE * np.eye(len(matrix)), cross.T)
        variance = np.diagonal(K(case.new)) - np.sum(cross.T * solved, axis=0)
        np.testing.assert_allclose(deviations**2, variance, rtol=0, atol=1e-9)


# Damage. Each changes a file of a folder; `other` is another one.


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[at] ^= 1 << (at % 8)
        file.write_bytes(content)


def swap(file: Path, other: Path) -> None:
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)


def swap_with_checksums(file: Path, other: Path) -> None:
    swap(file, other)
    if file.with_name(file.name + ".sum").exists() and other.with_name(other.name + ".sum").exists():
        swap(file.with_name(file.name + ".sum"), other.with_name(other.name + ".sum"))


def replace_by(make: Callable[[Path], None]) -> Callable[[Path, Path], None]:
    def replaced(file: Path, other: Path) -> None:
        file.unlink()
        make(file)

    return replaced


DAMAGE: dict[str, Callable[[Path, Path], Any]] = {
    "flipped first": lambda file, other: flip(file, 0),
    "flipped in the middle": lambda file, other: flip(file, file.stat().st_size // 2),
    "flipped last": lambda file, other: flip(file, -1),
    "zeros at the end": lambda file, other: file.write_bytes(file.read_bytes()[:-5] + bytes(5)),
    "zeros": lambda file, other: file.write_bytes(bytes(file.stat().st_size)),
    "cut in half": lambda file, other: os.truncate(file, file.stat().st_size // 2),
    "cut by one": lambda file, other: os.truncate(file, max(0, file.stat().st_size - 1)),
    "longer": lambda file, other: file.write_bytes(file.read_bytes() + b"\0"),
    "empty": lambda file, other: os.truncate(file, 0),
    "removed": lambda file, other: file.unlink(),
    "removed with its checksum": lambda file, other: (
        file.unlink(),
        file.with_name(file.name + ".sum").unlink(missing_ok=True),
    ),
    "swapped": swap,
    "swapped with checksums": swap_with_checksums,
    "a copy of another": lambda file, other: shutil.copy(other, file),
    "a folder": replace_by(Path.mkdir),
    "a pipe": replace_by(os.mkfifo),
    "a link to nothing": replace_by(lambda file: file.symlink_to("nothing")),
    "its folder removed": lambda file, other: shutil.rmtree(file.parent),
    "its folder a file": lambda file, other: (shutil.rmtree(file.parent), file.parent.write_bytes(b"x")),
}


def files_of(folder: Path) -> list[Path]:
    return sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())


def partner(files: list[Path], k: int, folder: Path, step: int = 1) -> Path:
    """Another file, of the same size if there is one."""
    sizes = [(folder / file).stat().st_size for file in files]
    others = [*files[k + 1 :], *files[:k]]
    same = [file for file in others if (folder / file).stat().st_size == sizes[k]]
    choice = same or others
    return choice[(step - 1) % len(choice)]


@contextmanager
def in_time() -> Iterator[None]:
    """What waits for ever fails."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def refusing() -> Iterator[None]:
    """Let an error of ours pass, if it says what to do."""
    try:
        yield
    except NetsorError as error:
        if not error.remedy:
            raise


def check(asked: dict[str, Thunk], answers: dict[str, Any]) -> None:
    """Ask everything. A status that names no error is no answer, nor is the error NaN of a missing tile."""
    for what, ask in asked.items():
        with refusing():
            answer = ask()
            if answer is not None:
                right = (
                    np.where(np.isnan(answer), np.nan, answers[what]) if what == "errors" else answers[what]
                )
                np.testing.assert_allclose(answer, right, rtol=1e-9, atol=1e-12, err_msg=what)


def damage_and_ask(store: Pristine, folder: Path, file: Path, kind: str, other: Path) -> None:
    """After the damage, and again after the store has gone on: right, or refused."""
    asked = store.copy(folder)
    DAMAGE[kind](folder / file, folder / other)
    with in_time():
        check(asked, store.answers)
        with refusing():
            store.case.store(folder / "K.zarr", verify=True)
        check(asked, store.answers)


def damages(store: Pristine, every: int, first: int = 0) -> Iterator[tuple[Path, str, Path]]:
    """Files and kinds; each `every`-th of all pairs, so that files and kinds both take turns."""
    files, kinds = files_of(store.folder), list(DAMAGE)
    for k, file in enumerate(files):
        for n, kind in enumerate(kinds):
            inside = file.is_relative_to("K.zarr") and len(file.parts) > 2
            if (n - 5 * k + first) % every == 0 and (inside or "folder" not in kind.removeprefix("a folder")):
                yield file, kind, partner(files, k, store.folder)


@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_refused_or_repaired(
    name: str, pristine: Callable[[str], Pristine], tmp_path: Path
) -> None:
    store, fewer = pristine(name), 8 if name in ("graphs", "tangent", "landmarks") else 3
    for file, kind, other in damages(store, every=fewer * len(DAMAGE), first=list(CASES).index(name)):
        damage_and_ask(store, tmp_path / "copy", file, kind, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", CASES)
def test_every_file_damaged_in_every_way(
    name: str, kind: str, pristine: Callable[[str], Pristine], tmp_path: Path
) -> None:
    store = pristine(name)
    for file, how, other in damages(store, every=1):
        if how == kind:
            damage_and_ask(store, tmp_path / "copy", file, kind, other)


def test_repaired_tiles_are_right(pristine: Callable[[str], Pristine], tmp_path: Path) -> None:
    """Tiles, errors and checksums of the kernels come back, as long as their places are free."""
    store = pristine("tiles")
    for kind in ("flipped in the middle", "cut in half", "removed", "swapped with checksums", "a pipe"):
        for file in ("K/c/0/1", "K/c/1/1", "K_error/c/0/1", "K/c/0/1.sum", "K_error/c/0/0.sum"):
            store.copy(tmp_path / "copy")
            path = tmp_path / "copy" / "K.zarr"
            DAMAGE[kind](path / file, path / "K" / "c" / "0" / "0")
            np.testing.assert_array_equal(store.case.store(path, verify=True).read(), store.answers["matrix"])
            np.testing.assert_array_equal(ns.gp.Store(path).errors(), store.answers["errors"])


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("one tile", 13),
        pytest.param("one tile", 1, marks=pytest.mark.slow),
        *(pytest.param(name, 7, marks=pytest.mark.slow) for name in CASES),
    ],
)
def test_every_byte_counts(name: str, step: int, pristine: Callable[[str], Pristine], tmp_path: Path) -> None:
    """A flipped bit is noticed, in any byte of one store, and in any `step`-th of others."""
    store = pristine(name)
    store.copy(tmp_path / "copy")
    path = tmp_path / "copy" / "K.zarr"

    def read_all() -> None:
        held = ns.gp.Store(path)
        held.read()
        held.errors()
        held.mean()
        held.inputs(0)
        held.inputs(1)
        for name in held.identity["kernels"]:
            other = ns.gp.Store(path, nngp=name == "NNGP")
            other.read()
            other.errors()

    for file in sorted(path.glob("**/*")):
        if not file.is_file() or "cholesky" in str(file) or file.name == "writers.lock":
            continue
        content = file.read_bytes()
        for at in range(0, len(content), step):
            flip(file, at)
            with pytest.raises(NetsorError):
                read_all()
            file.write_bytes(content)
    read_all()


def test_every_byte_of_a_model_counts(tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    ns.gp.fit(ns.kernel(zoo.mlp(1)), X, X[:, 0], noise=NOISE).save(file)
    content = file.read_bytes()
    wrong = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(len(content))]
    wrong += [content[:at] for at in range(0, len(content), 50)] + [content + b"0", bytes(len(content))]
    for damaged in wrong:
        file.write_bytes(damaged)
        with pytest.raises(NetsorError, match="its checksum is missing or wrong"):
            ns.gp.load(file, zoo.mlp(1))
    file.write_bytes(content)
    ns.gp.load(file, zoo.mlp(1))


def test_a_model_of_another_store(pristine: Callable[[str], Pristine], tmp_path: Path) -> None:
    store = pristine("tiles")
    other = ns.gp.store(store.case.kernel, store.case.x + 1.0, tmp_path / "K.zarr", tile=8)
    with pytest.raises(NetsorError, match="was fitted to another kernel"):
        load_stored(store.folder / "model.npz", other)


def test_errors_of_a_store_that_is_not_complete(pristine: Callable[[str], Pristine], tmp_path: Path) -> None:
    """The error of a tile is not known without the variances of its rows and columns."""
    store = pristine("landmarks")
    store.copy(tmp_path / "copy")
    held = ns.gp.Store(tmp_path / "copy" / "K.zarr")
    held.remove(0, 0)
    errors, right = held.errors(), store.answers["errors"]
    np.testing.assert_array_equal(np.isnan(errors), [[True, True], [True, False]])
    assert held.largest_error() == errors[1, 1] == right[1, 1]
