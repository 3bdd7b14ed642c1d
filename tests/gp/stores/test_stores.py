"""Kernels on disk: bit for bit those in memory, by any engine; resumed; refused by name of what differs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from limit_cases import SEQUENCES
from netsor import zoo
from netsor.errors import DataError, NetsorError
from netsor.gp.stores import engines, tiles
from netsor.gp.stores import store as store_module
from netsor.gp.stores.grid import Axis, Grid
from netsor.limits import inputs
from netsor.limits.on_numpy import recording

pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.usefixtures("small_tiles")

RNG = np.random.default_rng(5)
VECTORS = RNG.standard_normal((50, 4))
GRAPHS = [(RNG.standard_normal((k, 2)), np.eye(k)) for k in (2, 3, 2, 1, 3)]


CASES: dict[str, tuple[ns.Network, Any, dict[str, Any]]] = {
    "relu": (zoo.mlp(3), VECTORS, {}),
    "erf": (zoo.mlp(2, ns.erf), VECTORS[:41], {}),
    "float32": (zoo.mlp(3), VECTORS, {"dtype": np.float32}),
    "resnet": (zoo.resnet(2), VECTORS, {}),
    "tangent": (ns.tangent(zoo.mlp(2)), VECTORS, {}),
    "layernorm": (zoo.layernorm_mlp(2), VECTORS[:17], {}),
    "cnn": (zoo.cnn(2), RNG.standard_normal((9, 3, 3, 2)), {}),
    "several outputs": (zoo.simple_rnn(), RNG.standard_normal((11, 3, 2)), {}),
    "integers": (zoo.mlp(1), RNG.integers(0, 255, (20, 3), dtype=np.uint8), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_store_is_the_kernel_in_memory_bit_for_bit(name: str, tmp_path: Path) -> None:
    net, x, options = CASES[name]
    wanted = ns.kernel(net, **options).evaluate(x)
    for tile in (1, 5, 16, None):
        found = ns.gp.store(ns.kernel(net, **options), x, tmp_path / f"{tile}.zarr", tile=tile)
        np.testing.assert_array_equal(found.read(), wanted.value)
        assert found.dtype == wanted.value.dtype
        assert found.largest_error() >= wanted.bound.largest * (1 - 1e-12)
        np.testing.assert_array_equal(found.diagonal(), np.diagonal(wanted.value))
        np.testing.assert_array_equal(
            ns.gp.Store(found.path).read(slice(3, 9), slice(0, 4)), wanted.value[3:9, :4]
        )


def test_small_kernels_have_one_tile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own tiles are not cut, whatever is asked for."""
    monkeypatch.undo()
    found = ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, tmp_path / "K.zarr", tile=8)
    assert len(found.grid.tiles()) == 1
    wanted = ns.kernel(zoo.mlp(2)).evaluate(VECTORS)
    assert np.all(np.abs(found.read() - wanted.value) <= wanted.error)


def test_methods_that_look_at_all_inputs_agree_to_rounding(tmp_path: Path) -> None:
    """The rule of a Hermite series is chosen from all inputs of a call, so a tile has another one."""
    K = ns.kernel(zoo.mlp(2, ns.tanh))
    wanted = K.evaluate(VECTORS)
    found = ns.gp.store(K, VECTORS, tmp_path / "K.zarr", tile=8)
    assert np.all(np.abs(found.read() - wanted.value) <= wanted.error)


@pytest.mark.parametrize(
    "ragged", [list(SEQUENCES) + [s[:1] for s in SEQUENCES], GRAPHS], ids=["sequences", "graphs"]
)
def test_inputs_of_different_shapes(ragged: list[Any], tmp_path: Path) -> None:
    net = zoo.graph_conv(2) if isinstance(ragged[0], tuple) else zoo.simple_rnn()
    wanted = ns.kernel(net).evaluate(ragged)
    for tile in (1, 2, 3):
        found = ns.gp.store(ns.kernel(net), ragged, tmp_path / f"{tile}.zarr", tile=tile)
        np.testing.assert_allclose(found.read(), wanted.value, rtol=0, atol=wanted.error.max())
        for a, b in zip(found.inputs(0), ragged, strict=True):
            for one, two in zip(
                a if isinstance(a, tuple) else [a], b if isinstance(b, tuple) else [b], strict=True
            ):
                np.testing.assert_array_equal(one, two)


def test_two_sets(tmp_path: Path) -> None:
    K = ns.kernel(zoo.mlp(2))
    found = ns.gp.store(K, VECTORS[:30], tmp_path / "K.zarr", VECTORS[25:], tile=8)
    np.testing.assert_array_equal(found.read(), ns.kernel(zoo.mlp(2))(VECTORS[:30], VECTORS[25:]))
    assert len(found.grid.tiles()) == found.grid.rows.count * found.grid.cols.count
    with pytest.raises(DataError, match="is between two sets"):
        ns.gp.fit(found, np.ones(30), noise=0.1)


def test_a_store_of_a_tangent_kernel_keeps_both(tmp_path: Path) -> None:
    T, params = ns.ntk(zoo.mlp(2)), {"W1": 2.0, "W1.rate": 3.0}
    found = ns.gp.store(T, VECTORS, tmp_path / "T.zarr", tile=8, params=params)
    np.testing.assert_array_equal(found.read(), T(VECTORS, params=params))
    own = ns.kernel(zoo.mlp(2))(VECTORS, params={"W1": 2.0})
    np.testing.assert_allclose(found.nngp.read(), own, rtol=0, atol=found.nngp.largest_error())
    model = ns.gp.fit(pickle.loads(pickle.dumps(found.nngp)), VECTORS[:, 0], noise=0.1)
    np.testing.assert_allclose(
        model.alpha[:, 0], np.linalg.solve(own + 0.1 * np.eye(50), VECTORS[:, 0]), rtol=1e-9
    )
    assert ns.gp.fit(found, VECTORS[:, 0], noise=0.1).residual < 1e-12  # a factor of its own
    found.nngp.remove(0, 1)
    assert found.missing() == [(0, 1)]
    with pytest.raises(DataError, match="holds no other kernel"):
        ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, tmp_path / "K.zarr", tile=8).nngp  # noqa: B018


def test_params_are_those_of_the_kernel(tmp_path: Path) -> None:
    K = ns.kernel(zoo.mlp(1))
    found = ns.gp.store(K, VECTORS, tmp_path / "K.zarr", tile=10, params={"v": 3.0})
    np.testing.assert_array_equal(found.read(), K(VECTORS, params={"v": 3.0}))
    with pytest.raises(DataError, match="params v"):
        ns.gp.store(K, VECTORS, found.path, tile=10, params={"v": 2.0})


def test_workers_do_not_read_the_network_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = made(tmp_path / "K.zarr")
    wanted = held.read()
    for i, j in held.grid.tiles()[:2]:
        held.remove(i, j)
    there = engines.opened(engines.packed(held))
    monkeypatch.setattr(inputs, "joint", None)
    for i, j in held.grid.tiles()[:2]:
        engines.compute_tile(there, i, j)
    np.testing.assert_array_equal(held.read(), wanted)


# Going on


class StopError(Exception):
    pass


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "K.zarr", []
    honest = engines.compute_tile

    def dying(held: Any, i: int, j: int) -> None:
        if len(made) == 5:
            raise StopError
        made.append((i, j))
        honest(held, i, j)

    monkeypatch.setattr(engines, "compute_tile", dying)
    K = ns.kernel(zoo.mlp(2))
    with pytest.raises(StopError):
        ns.gp.store(K, VECTORS, path, tile=8)
    with pytest.raises(DataError, match=r"tiles of .* are missing"):
        ns.gp.fit(ns.gp.Store(path), np.ones(50), noise=0.1)
    assert ns.gp.Store(path).status().done == 5
    first = made.copy()
    made.clear()
    monkeypatch.setattr(engines, "compute_tile", lambda held, i, j: (made.append((i, j)), honest(held, i, j)))
    found = ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, path, tile=8)
    assert not set(first) & set(made)
    assert sorted(first + made) == sorted(found.grid.tiles())
    np.testing.assert_array_equal(found.read(), K(VECTORS))


def test_a_run_with_other_memory_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a kernel is cut depends on memory and on Numba; what is there goes on as it was begun."""
    path = tmp_path / "K.zarr"
    found = ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, path, tile=8, part=(1, 2))
    again = ns.gp.store(ns.kernel(zoo.mlp(2), memory=2**11), VECTORS, path, tile=8)
    assert again.cut == found.cut
    np.testing.assert_array_equal(again.read(), ns.kernel(zoo.mlp(2))(VECTORS))
    monkeypatch.setattr(recording, "FEWEST_ENTRIES", 0)
    with monkeypatch.context() as patched:
        compiled = ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, tmp_path / "C.zarr", tile=8, part=(1, 2))
        patched.setattr(engines, "is_available", lambda: False)
        if compiled.cut.compiled:
            with pytest.raises(DataError, match="there is no Numba here"):
                ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, compiled.path, tile=8)


def test_parts_of_an_array_job(tmp_path: Path) -> None:
    path = tmp_path / "K.zarr"
    for k in (3, 1, 2):
        found = ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, path, tile=8, part=(k, 3))
    np.testing.assert_array_equal(found.read(), ns.kernel(zoo.mlp(2))(VECTORS))
    with pytest.raises(DataError, match="part 4 of 3"):
        ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, path, tile=8, part=(4, 3))


def test_two_writers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, K, honest, said = tmp_path / "K.zarr", ns.kernel(zoo.mlp(2)), engines.compute_tile, []

    def beside(held: Any, i: int, j: int) -> None:
        if not said:
            with pytest.raises(DataError, match="another process is writing") as caught:
                ns.gp.store(K, VECTORS, path, tile=8)
            said.append(str(caught.value))
        honest(held, i, j)

    monkeypatch.setattr(engines, "compute_tile", beside)
    ns.gp.store(K, VECTORS, path, tile=8)
    assert "--part 1/2" in said[0]


def test_what_differs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "K.zarr"
    ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, path, tile=8)
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        (ns.kernel(zoo.mlp(2, var_b=0.5)), VECTORS, {}, r"Input b1 :: G\(n1\) ~ N\(0, 0.5\)' here"),
        (ns.kernel(zoo.mlp(3)), VECTORS, {}, "program"),
        (ns.ntk(zoo.mlp(2)), VECTORS, {}, "kind"),
        (ns.kernel(zoo.mlp(2, ns.erf)), VECTORS, {}, "erf"),
        (ns.kernel(zoo.mlp(2)), VECTORS[::-1], {}, "the values of the inputs x"),
        (ns.kernel(zoo.mlp(2)), VECTORS[:40], {}, "inputs x count"),
        (ns.kernel(zoo.mlp(2), dtype=np.float32), VECTORS, {}, "options dtype"),
        (ns.kernel(zoo.mlp(2), seed=4), VECTORS, {}, r"options seed \(4 here, 0 there\)"),
        (ns.kernel(zoo.mlp(2)), VECTORS, {"tile": 20}, "tile"),
    ]
    for K, x, options, text in wrong:
        with pytest.raises(DataError, match=text):
            ns.gp.store(K, x, path, **{"tile": 8, **options})
    with pytest.raises(DataError, match="differs in program"):
        ns.gp.Store(path, ns.kernel(zoo.mlp(1)))
    assert ns.gp.Store(path, ns.kernel(zoo.mlp(2))).status().done == 28


def test_a_users_function_that_has_changed_is_noticed(tmp_path: Path) -> None:
    def net(fn: Any) -> ns.Network:
        return zoo.mlp(1, lambda h: ns.nonlin(fn, h, name="own"))

    path = tmp_path / "K.zarr"
    ns.gp.store(ns.kernel(net(lambda x: np.cos(x))), VECTORS[:5], path)
    with pytest.raises(DataError, match="what the function `own` does"):
        ns.gp.store(ns.kernel(net(lambda x: np.sin(x))), VECTORS[:5], path)


# Bad days


def made(path: Path) -> ns.gp.Store:
    return ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, path, tile=8)


@pytest.mark.parametrize("how", ["flipped", "truncated", "empty", "lost"])
def test_a_damaged_tile_is_found_and_made_again(how: str, tmp_path: Path) -> None:
    found = made(tmp_path / "K.zarr")
    wanted, file = found.read(), found.path / "K" / "c" / "0" / "2"
    content = bytearray(file.read_bytes())
    if how == "lost":
        file.unlink()
    elif how == "flipped":
        content[100] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[:200] if how == "truncated" else b"")
    with pytest.raises(DataError, match=r"K/c/0/2 is (missing|damaged)"):
        found.tile(0, 2)
    if how == "flipped":
        assert found.damaged() == [(0, 2)]
        again = ns.gp.store(ns.kernel(zoo.mlp(2)), VECTORS, found.path, tile=8, verify=True)
    else:
        assert found.missing() == [(0, 2)]
        again = made(found.path)
    np.testing.assert_array_equal(again.read(), wanted)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the run what is known to be too large is refused; in a run all tiles so far are kept."""
    import zarr.storage

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))  # type: ignore[attr-defined]
        with pytest.raises(DataError, match="GB are free"):
            made(tmp_path / "K.zarr")
    assert not list(tmp_path.iterdir())
    honest, count = zarr.storage.LocalStore.set, []

    async def full(self: Any, key: str, value: Any) -> None:
        if key.startswith("K/c/") and not key.endswith(".sum"):
            count.append(key)
            if len(count) > 4:
                raise OSError(28, "No space left on device")
        await honest(self, key, value)

    with monkeypatch.context() as patched:
        patched.setattr(zarr.storage.LocalStore, "set", full)
        with pytest.raises(DataError, match="cannot be written: No space left") as caught:
            made(tmp_path / "K.zarr")
    assert "All tiles before it are kept" in str(caught.value)
    assert ns.gp.Store(tmp_path / "K.zarr").status().done == 4
    np.testing.assert_array_equal(made(tmp_path / "K.zarr").read(), ns.kernel(zoo.mlp(2))(VECTORS))


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    found = made(tmp_path / "K.zarr")
    left = found.path / "K" / "c" / "0" / "3.abc.partial"
    left.write_bytes(b"half")
    assert (0, 3) in found.done()
    made(found.path)
    assert not left.exists()


def test_a_store_of_a_newer_version(tmp_path: Path) -> None:
    found = made(tmp_path / "K.zarr")
    facts = json.loads((found.path / "zarr.json").read_text())
    facts["attributes"]["netsor"] |= {"format": 7, "netsor": "9.1"}
    (found.path / "zarr.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"has format 7, written by netsor 9.1"):
        ns.gp.Store(found.path)
    with pytest.raises(DataError, match=r"has format 7, written by netsor 9.1"):
        made(found.path)


def test_what_is_no_store(tmp_path: Path) -> None:
    import zarr

    with pytest.raises(DataError, match="there is no store"):
        ns.gp.Store(tmp_path / "K.zarr")
    zarr.create_group(tmp_path / "other.zarr")
    with pytest.raises(DataError, match="is not a store of netsor"):
        ns.gp.Store(tmp_path / "other.zarr")
    (tmp_path / "bad.zarr").mkdir()
    (tmp_path / "bad.zarr" / "zarr.json").write_text("{")
    with pytest.raises(DataError, match="is not a store"):
        ns.gp.Store(tmp_path / "bad.zarr")


@pytest.mark.parametrize(
    ("x", "options", "text"),
    [
        (VECTORS, {"tile": 0}, "tile=0"),
        (VECTORS, {"engine": 0}, "engine=0"),
        (VECTORS, {"engine": object()}, "engine="),
        ("text", {}, "set of inputs"),
        ([], {}, "set of inputs"),
    ],
)
def test_arguments_that_make_no_sense(x: Any, options: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(NetsorError, match=text):
        ns.gp.store(ns.kernel(zoo.mlp(1)), x, tmp_path / "K.zarr", **options)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path / "K.zarr")
    monkeypatch.setattr(store_module, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="Install netsor"):
        made(tmp_path / "L.zarr")
    with pytest.raises(DataError, match="Install netsor"):
        ns.gp.Store(store.path)


# Reading


def test_status_says_how_long_it_takes(tmp_path: Path) -> None:
    found = made(tmp_path / "K.zarr")
    for k, (i, j) in enumerate(found.grid.tiles()):
        os.utime(found.path / "K" / "c" / str(i) / str(j), (1000.0 + 3 * k, 1000.0 + 3 * k))
    assert "complete; largest error" in str(found.status())
    for i, j in found.grid.tiles()[-10:]:
        found.remove(i, j)
    status = found.status()
    assert (status.done, status.total) == (18, 28)
    assert status.left == pytest.approx(30.0)
    assert "18 of 28 tiles, about 30 seconds left" in str(status)


def test_other_programs_read_it_as_an_array(tmp_path: Path) -> None:
    import zarr

    found = made(tmp_path / "K.zarr")
    upper = np.asarray(zarr.open_array(found.path / "K", mode="r")[:])
    wanted = found.read()
    chunk = found.grid.rows.chunk
    for i in range(found.grid.rows.count):
        np.testing.assert_array_equal(
            upper[i * chunk : (i + 1) * chunk, i * chunk :], wanted[i * chunk : (i + 1) * chunk, i * chunk :]
        )
    assert np.isnan(upper[-1, 0])  # below the diagonal nothing is stored


def test_products_and_columns(tmp_path: Path) -> None:
    found = made(tmp_path / "K.zarr")
    whole, vectors = found.read(), RNG.standard_normal((50, 3))
    np.testing.assert_allclose(found.times(vectors), whole @ vectors, rtol=1e-13)
    chosen = np.array([0, 49, 7, 8, 31])
    np.testing.assert_array_equal(found.columns(chosen), whole[:, chosen])


@pytest.mark.parametrize("chunk", [1, 3, 4, 10, 30])
def test_grids_cover_every_row_once(chunk: int) -> None:
    sizes = np.array([1, 3, 2, 2, 5, 1, 1, 4, 2])
    axis = Axis(sizes, chunk, 2)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    covered = []
    for i in range(axis.count):
        (first, last), part = axis.inputs(i)
        assert last - first >= min(2, last)
        covered += list(np.flatnonzero((rows >= first) & (rows < last))[part])
    assert covered == list(range(len(rows)))
    grid = Grid(axis, axis, True)
    assert sorted(t for k in (1, 2, 3) for t in grid.part(k, 3)) == sorted(grid.tiles())


def test_the_default_tile_follows_the_work() -> None:
    cheap, dear = ns.kernel(zoo.mlp(2)), ns.kernel(zoo.mlp(8))
    assert tiles.default_side(cheap, VECTORS, 1.0, most_rows=20) == 20
    assert tiles.default_side(cheap, VECTORS, 4.0, most_rows=20) == 5
    sides = [tiles.default_side(K, VECTORS, 1.0, most_work=5000) for K in (cheap, dear)]
    assert 20 > sides[0] > sides[1] >= 1
