"""Generate the page of the command line from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from netsor.cli import app

__all__ = ["commands_page"]


def commands_page() -> str:
    """Every command with its usage, arguments and options."""
    group: Any = get_command(app)
    lines = ["# The command line", "", group.help, "", group.epilog, ""]
    for words, command in _leaves(group, ("netsor",)):
        lines += _section(" ".join(words), command)
    return "\n".join(lines) + "\n"


def _leaves(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, (*words, name))
        else:
            yield (*words, name), command


def _section(name: str, command: Any) -> list[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join([name, *(piece for p in command.params for piece in p.get_usage_pieces(context))])
    lines = [f"## `{name}`", "", command.help or "", "", "```text", f"{usage} [OPTIONS]", "```", ""]
    records = [p.get_help_record(context) for p in command.params if not getattr(p, "hidden", False)]
    if records:
        lines += ["| argument or option | meaning |", "| --- | --- |"]
        lines += [f"| `{_cell(what)}` | {_cell(meaning)} |" for what, meaning in filter(None, records)]
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
