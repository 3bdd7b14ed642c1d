"""Our docstrings as Markdown: examples become code blocks, columns of `name  meaning` become tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["as_markdown"]

ROW = re.compile(r"(\S(?: ?\S)*) {2,}(\S.*)")  # a name, at least two spaces, its meaning


def as_markdown(text: str) -> str:
    """The Markdown of a docstring."""
    return "\n\n".join(part for block in _blocks(text) for part in _converted(block))


def _blocks(text: str) -> Iterator[list[str]]:
    """Paragraphs; an example ends at a blank line, as for doctest."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def _converted(block: list[str]) -> Iterator[str]:
    example = next((k for k, line in enumerate(block) if line.lstrip().startswith(">>>")), None)
    if example is not None:
        if example:
            yield from _converted(block[:example])
        lines = [line for line in block[example:] if line.strip() != "<BLANKLINE>"]
        yield "\n".join(["```pycon", *lines, "```"])
        return
    table = next((k for k, line in enumerate(block) if ROW.fullmatch(line)), None)
    if table is None:
        yield "\n".join(block)
        return
    if table:
        yield "\n".join(block[:table])
    rows, rest = _rows(block[table:])
    yield "\n".join(
        ["| | |", "| --- | --- |", *(f"| {_code(name)} | {_cell(told)} |" for name, told in rows)]
    )
    if rest:
        yield "\n".join(rest)


def _rows(lines: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The rows of a table with their continuation lines, and the lines after it."""
    rows: list[tuple[str, str]] = []
    for k, line in enumerate(lines):
        row = ROW.fullmatch(line)
        if row:
            rows.append((row[1], row[2]))
        elif line.startswith(" "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return rows, lines[k:]
    return rows, []


def _code(name: str) -> str:
    return name if "`" in name else ", ".join(f"`{part}`" for part in name.split(", "))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
