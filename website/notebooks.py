"""Convert notebooks to pages of the site, with their output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["notebook_pages"]


def notebook_pages(folder: Path) -> dict[str, str]:
    """The Markdown of every notebook by its place on the site."""
    return {f"notebooks/{path.stem}.md": _page(path) for path in sorted(folder.glob("*.ipynb"))}


def _page(path: Path) -> str:
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            printed = [o for o in cell["outputs"] if o["output_type"] == "stream"]
            shown = [o for o in cell["outputs"] if o["output_type"] != "stream"]
            parts += [f"```python\n{source}\n```", *_printed(printed), *map(_shown, shown)]
    return "\n\n".join(parts) + "\n"


def _printed(outputs: list[dict[str, Any]]) -> list[str]:
    """What a cell prints, as one text."""
    text = "".join("".join(output["text"]) for output in outputs).rstrip()
    return [f"```text\n{text}\n```"] if text else []


def _shown(output: dict[str, Any]) -> str:
    """What a cell shows: a picture, a panel or a value."""
    data = output["data"]
    if "image/png" in data:
        encoded = "".join(data["image/png"]).replace("\n", "")
        told = re.sub(r"[<>\"]", "", "".join(data["text/plain"]))
        return f'<img class="shown" alt="{told}" src="data:image/png;base64,{encoded}">'
    if "text/html" in data:
        return _unbroken("".join(data["text/html"]))
    return f"```text\n{''.join(data['text/plain'])}\n```"


def _unbroken(html: str) -> str:
    """HTML without empty lines, at which Markdown would end a block."""
    return "\n".join(line or "&#8203;" for line in html.splitlines())
