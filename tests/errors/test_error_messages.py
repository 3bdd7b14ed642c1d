"""Every mistake is met by a message that says what, where, why by which rule, and what to do."""

from __future__ import annotations

import linecache
import pickle
import re
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from bad_networks import BAD_NETWORKS, PRELUDE
from bad_programs import BAD_PROGRAMS

import netsor as ns
from each_case import each_case
from netsor import errors
from netsor.errors import NetsorError

SNAPSHOTS = Path(__file__).parent / "snapshots"
USER_FILE = "/home/someone/my_net.py"
ALL_CASES = [*BAD_PROGRAMS, *BAD_NETWORKS]

# Arguments of the language itself, which knows nothing of Python's frames: the traceback shows the call.
WITHOUT_PLACE = {"python_unknown_variant", "python_function_outside_with_too_many_arguments"}


def run(source: str) -> None:
    """Run Python as a file of the user."""
    names: dict[str, object] = {"__name__": "my_net"}
    exec(PRELUDE, names)
    linecache.cache[USER_FILE] = (len(source), None, source.splitlines(keepends=True), USER_FILE)
    exec(compile(source, USER_FILE, "exec"), names)


@cache
def error_of(name: str) -> Exception:
    """What a bad program or a bad network raises."""
    text = dedent(BAD_PROGRAMS.get(name) or BAD_NETWORKS[name]).strip("\n")
    try:
        ns.parse(text) if name in BAD_PROGRAMS else run(text)
    except Exception as error:
        return error
    raise AssertionError(f"{name} is accepted:\n{text}")


def message_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@each_case("name", ALL_CASES)
def test_message(name, snapshot):
    error = error_of(name)
    assert isinstance(error, NetsorError), message_of(error)
    snapshot(SNAPSHOTS / f"{name}.txt", message_of(error))


@each_case("name", ALL_CASES)
def test_message_has_place_and_remedy(name):
    error = error_of(name)
    assert isinstance(error, NetsorError)
    assert "\n" not in error.what
    assert not error.what.endswith(".")
    assert error.remedy.endswith((".", "?"))
    if name in WITHOUT_PLACE:
        assert error.place is None
        return
    assert error.place is not None
    marked = error.place.text[error.place.start : error.place.end]
    assert marked.strip() == marked
    assert marked or error.what == "the line ends too early"
    assert error.place.file == ("my_net.py" if name.startswith("python") else None)


@each_case("name", ALL_CASES)
def test_message_names_no_file_of_this_machine(name):
    text = message_of(error_of(name)) + (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w)\]}])/\w+/|\b[A-Za-z]:\\|site-packages|0x[0-9a-f]{6}", text)


@each_case("name", ALL_CASES)
def test_error_survives_pickling(name):
    error = error_of(name)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_is_a_netsor_error():
    kinds = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert len(kinds) > 5
    assert all(issubclass(kind, NetsorError) for kind in kinds)
    assert {type(error_of(name)) for name in ALL_CASES} <= set(kinds)


def test_every_snapshot_has_a_case():
    assert {file.stem for file in SNAPSHOTS.glob("*.txt")} == set(ALL_CASES)
    assert len(ALL_CASES) == len(set(ALL_CASES))


def test_layout_of_a_message():
    assert message_of(error_of("lincomb_of_h_var")).splitlines() == [
        "TypeCheckError: line 7: LinComb takes G-vars, but `x2` is an H-var",
        "  7 | g3 := 1.0*g1 + 0.5*x2",
        "                         ^^",
        "`x2` comes from Nonlin at line 5. Multiply it by a matrix first (`g := MatMul(W, x2)`), "
        "or write the sum inside one Nonlin: `Nonlin(...)`.",
    ]


def test_message_without_source_has_no_picture():
    with pytest.raises(NetsorError) as caught:
        exec(compile("import netsor\nnetsor.Matrix(-1.0)", "<stdin>", "exec"), {})
    assert str(caught.value).splitlines() == [
        "<stdin>, line 2: the variance of a Matrix is -1",
        "Rule Input: a variance is finite and >= 0.",
    ]


@each_case("name", ALL_CASES)
def test_error_travels_with_its_causes(name):
    """As Dask sends them: with everything that an exception refers to."""
    pytest.importorskip("tblib.pickling_support").install(error := error_of(name))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
