"""Compiled loops are code: they are kept only in a folder that nobody else can write."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netsor.limits.on_numpy import compiled_loops as loops

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owner here")
SOURCE = "def loop(x):\n    return x + number(1)\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of our own; the folders above the test's are not looked at."""
    tmp_path.chmod(0o700)
    inside = lambda folder: tuple(p for p in folder.parents if p.is_relative_to(tmp_path.resolve()))  # noqa: E731
    monkeypatch.setattr(loops, "_above", inside)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    loops._kept_in.cache_clear()
    yield tmp_path / "cache"
    loops._kept_in.cache_clear()


def test_a_private_folder_is_used_again(cache: Path) -> None:
    pytest.importorskip("numba")
    loop = loops.compiled_loop.__wrapped__(SOURCE, np.dtype(float))
    assert loop(1.0) == 2.0
    folder = cache / "netsor" / "loops"
    assert [p for p in folder.iterdir() if p.suffix == ".py"]
    assert folder.stat().st_mode & 0o077 == 0
    loops._kept_in.cache_clear()
    assert loops._kept_in() == folder


def _world_writable(cache: Path) -> None:
    (cache / "netsor" / "loops").mkdir(parents=True)
    (cache / "netsor").chmod(0o777)


def _group_writable(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o775)


def _planted(cache: Path) -> None:
    (cache / "netsor" / "loops").mkdir(parents=True)
    file = cache / "netsor" / "loops" / "loop_planted.py"
    file.write_text("raise SystemExit")
    file.chmod(0o666)


def _linked(cache: Path) -> None:
    (cache / "netsor" / "loops").mkdir(parents=True)
    (cache / "netsor" / "loops" / "__pycache__").symlink_to(cache)


@pytest.mark.parametrize("spoil", [_world_writable, _group_writable, _planted, _linked])
def test_a_folder_that_others_can_write_is_not_used(cache: Path, spoil) -> None:
    spoil(cache)
    with pytest.warns(UserWarning, match="compiled loops are not kept"):
        assert loops._kept_in() is None
    with warnings.catch_warnings():  # it is said once
        warnings.simplefilter("error")
        assert loops._kept_in() is None
        pytest.importorskip("numba")
        assert loops.compiled_loop.__wrapped__(SOURCE, np.dtype(float))(1.0) == 2.0


def test_relative_and_shared_paths(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    with pytest.warns(UserWarning, match="relative path"):
        assert loops._kept_in() is None
    loops._kept_in.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    shared = cache.parent / "numba"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared))
    with pytest.warns(UserWarning, match="others can write"):
        assert loops._kept_in() is None


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only the system may give files away"
)
def test_files_of_somebody_else_are_not_used(cache: Path) -> None:
    (cache / "netsor" / "loops").mkdir(parents=True)
    os.chown(cache / "netsor", 12345, 12345)
    with pytest.warns(UserWarning, match="belongs to somebody else"):
        assert loops._kept_in() is None


def test_without_a_home_folder_nothing_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a user without a home
    with pytest.warns(UserWarning, match="there is no home folder"):
        assert loops._kept_in() is None
    pytest.importorskip("numba")
    assert loops.compiled_loop.__wrapped__(SOURCE, np.dtype(float))(1.0) == 2.0


def _flipped(at: float) -> Callable[[Path], None]:
    """Change one byte of a file, so far from its beginning."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(at * (len(content) - 1))] ^= 1
        path.write_bytes(bytes(content))

    return damage


def _as_old(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    """The same, and the file looks as if nobody had written it."""

    def unseen(path: Path) -> None:
        before = path.stat()
        damage(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return unseen


DAMAGES: dict[str, Callable[[Path], Any]] = {
    **{f"flipped at {at}": _as_old(_flipped(at)) for at in (0.0, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)},
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "another pickle": lambda path: path.write_bytes(b"\x80\x04]\x94."),
    "no pickle": lambda path: path.write_bytes(b"\xff\xfe nothing"),
    "an unknown class": lambda path: path.write_bytes(b"cnumba\nno_such_class\n."),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("suffix", [".py", ".nbi", ".nbc"])
def test_a_damaged_file_is_replaced(cache: Path, suffix: str) -> None:
    pytest.importorskip("numba")

    def run() -> tuple[float, int]:
        loop: Any = loops.compiled_loop.__wrapped__(SOURCE, np.dtype(float))
        value = loop(1.0)
        return value, sum(loop.stats.cache_hits.values())

    assert run() == (2.0, 0)
    assert run() == (2.0, 1)  # from the disk
    for name, damage in DAMAGES.items():
        (file,) = (p for p in (cache / "netsor" / "loops").rglob(f"loop_*{suffix}"))
        before = file.read_bytes()
        damage(file)
        value, hits = run()
        assert value == 2.0, name
        if suffix == ".py":
            assert file.read_bytes() == before, name
        else:
            assert hits == 0, name
        assert run() == (2.0, 1), name


def test_machine_code_of_another_loop_is_not_run(cache: Path) -> None:
    pytest.importorskip("numba")
    folder, other = cache / "netsor" / "loops", SOURCE.replace("1)", "5)")
    assert loops.compiled_loop.__wrapped__(SOURCE, np.dtype(float))(1.0) == 2.0
    (old,) = folder.rglob("*.nbc")
    code = old.read_bytes()
    assert loops.compiled_loop.__wrapped__(other, np.dtype(float))(1.0) == 6.0
    (new,) = set(folder.rglob("*.nbc")) - {old}
    new.write_bytes(code)
    assert loops.compiled_loop.__wrapped__(other, np.dtype(float))(1.0) == 6.0
