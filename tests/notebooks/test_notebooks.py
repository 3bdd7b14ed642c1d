"""The notebooks: stored with what they print, and run anew by `.ci/full notebooks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDS = {"d_your_pytorch_model": "torch"}


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_five() -> None:
    assert [path.stem[0] for path in NOTEBOOKS] == list("abcde")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_stored_with_their_outputs_and_small(path: Path) -> None:
    found = cells(path)
    assert [cell["execution_count"] for cell in found] == list(range(1, len(found) + 1))
    assert not [o for cell in found for o in cell["outputs"] if o["output_type"] == "error"]
    assert any(cell["outputs"] for cell in found)
    assert path.stat().st_size < 600_000
    assert "/work" not in path.read_text()
    assert "/home" not in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path: Path) -> None:
    """In a new kernel, where every error is one; what is shown must be shown again."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip(NEEDS.get(path.stem, "netsor"))
    book = nbformat.read(path, as_version=4)
    before = kinds(book)
    nbclient.NotebookClient(book, timeout=900).execute()
    assert kinds(book) == before


def kinds(book: Any) -> list[tuple[bool, list[list[str]]]]:
    """Whether each cell prints, and of what kinds its outputs are; bars that have gone do not count."""
    found = []
    for cell in (cell for cell in book.cells if "outputs" in cell):
        shown = [o.data for o in cell.outputs if "data" in o and o.data.get("text/html") != ""]
        printed = any(o.output_type == "stream" and o.name == "stdout" for o in cell.outputs)
        found.append((printed, [sorted(data) for data in shown]))
    return found
