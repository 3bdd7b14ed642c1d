"""Every public name is in the reference with an example that runs; every row of a table of calls works."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from website.commands import commands_page
from website.docstring_text import as_markdown
from website.examples import ERRORS, EXAMPLES, message, missing, session
from website.functions import FORMULAS, function_example
from website.reference import PAGES, UNIMPORTED, definition, found, public_names

import netsor as ns
from each_case import each_case
from netsor.cli import app
from netsor.lang.functions import FUNCTIONS
from netsor.lang.ops import Function

ROOT = Path(__file__).parents[2]
MODULES = ("", ".gp", ".sklearn", ".models", ".plots", ".zoo", ".limits", ".data", ".errors")
MODULE_NAMES = {"netsor.gp", "netsor.plots", "netsor.zoo"}
NAMES = list(public_names())


def exported(module: str) -> Iterator[str]:
    """The names of `__all__` of a module, read from its text, so that nothing is imported."""
    folder = ROOT / "src" / "netsor" / module.strip(".")
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ast.literal_eval(node.value)
    if not module:
        yield from ns.build.__all__


@each_case("module", MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    there = {definition(name) for name in NAMES}
    names = {f"netsor{module}.{name}" for name in exported(module)} - {
        "netsor.gp",
        "netsor.zoo",
        "netsor.plots",
    }
    assert names
    assert {name for name in names if definition(name) not in there} == set()


def test_no_name_is_there_twice() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({page.file for page in PAGES}) == len(PAGES)


def docstring(name: str) -> str:
    """Of names whose libraries may be missing, the text of the file that defines them."""
    if name.startswith(UNIMPORTED):
        last = name.rpartition(".")[2]
        for path in (ROOT / "src" / Path(*name.split(".")[:2])).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == last:
                    return ast.get_docstring(node) or ""
    return found(name).__doc__ or ""


@each_case("name", NAMES)
def test_every_name_has_a_docstring_and_an_example(name: str) -> None:
    if name.endswith("Error") and name != "netsor.NetsorError":
        assert name in ERRORS
    elif not isinstance(found(name) if not name.startswith(UNIMPORTED) else None, Function):
        assert docstring(name)
        assert name in EXAMPLES or ">>>" in docstring(name)


@each_case("name", EXAMPLES)
def test_examples_run(name: str) -> None:
    assert name in NAMES
    if missing(name):
        pytest.skip(f"{missing(name)} is not installed")
    assert session(EXAMPLES[name]).startswith(">>> ")


@each_case("name", ERRORS)
def test_errors_are_raised(name: str) -> None:
    """Of an entry of an error, that error."""
    assert name in NAMES
    if missing(name):
        pytest.skip(f"{missing(name)} is not installed")
    told = message(ERRORS[name])
    if name.rpartition(".")[2].endswith("Error"):
        assert told.startswith(name.rpartition(".")[2])


def test_functions_have_formulas_and_examples() -> None:
    shown = {name.rpartition(".")[2] for name in NAMES if name in {f"netsor.{f}" for f in FUNCTIONS}}
    assert shown == set(FORMULAS)
    for name in shown:
        assert session(function_example(FUNCTIONS[name]))


def test_docstrings_become_markdown() -> None:
    text = "One.\n\nx    the input\nyy   more\n     of it\nAfter.\n\nFor example\n>>> 1 + 1\n2\n\nThe end."
    assert as_markdown(text).splitlines() == [
        "One.",
        "",
        "| | |",
        "| --- | --- |",
        "| `x` | the input |",
        "| `yy` | more of it |",
        "",
        "After.",
        "",
        "For example",
        "",
        "```pycon",
        ">>> 1 + 1",
        "2",
        "```",
        "",
        "The end.",
    ]


def test_every_command_has_a_section() -> None:
    page = commands_page()
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        assert f"## `netsor {name}`" in page
    assert "--explain" in page


def test_every_document_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        assert f"{path.relative_to(ROOT / 'docs').as_posix()}\n" in text


def rows(document: str) -> Iterator[tuple[str, str]]:
    """The rows of all tables with two columns."""
    for line in (ROOT / "docs" / document).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 2 and not set(cells[0]) <= {"-"}:
            yield cells[0], cells[1]


def test_every_call_of_the_table_of_calls_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "which_call.md").read_text()
    names: dict[str, object] = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.S)[0], names)
    calls = [cell.strip("`") for _, cell in rows("which_call.md") if re.fullmatch(r"`ns\.[^`]*`", cell)]
    assert len(calls) > 25
    for call in calls:
        if call == "ns.parse(text)":
            names["text"] = "Input g :: G(n) ~ N(0, 1)"
        if "store" in call and not find_spec("zarr"):
            continue
        assert eval(call, names) is not None, call


def test_the_gallery_is_what_its_script_writes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from website.gallery import ENTRIES, draw, page

    assert (ROOT / "docs" / "gallery.md").read_text() == page()
    pictures = {path.stem for path in (ROOT / "docs" / "figures" / "gallery").glob("*.png")}
    assert pictures == {entry.file for entry in ENTRIES}
    assert draw(tmp_path, ENTRIES[:1])[0].stat().st_size > 10_000
