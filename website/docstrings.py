"""The extension of mkdocstrings that reads our docstrings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1]))

from website.docstring_text import as_markdown

__all__ = ["Docstrings"]


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
