"""Variances that move together: groups of names, or of patterns of names such as `W*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from netsor import arguments
from netsor.errors import DataError

__all__ = ["tied_groups"]


def tied_groups(tied: Any, known: Iterable[str], *, partial: bool = False) -> list[tuple[str, ...]]:
    """The names of each group, with patterns (`*`, `?`, `[...]`) written out; `partial`: as far as known.

    >>> tied_groups([["W*"], ["b1"]], ["W1", "b1", "W2", "v"])
    [('W1', 'W2'), ('b1',)]
    """
    if isinstance(tied, str | bytes | Mapping) or not isinstance(tied, Iterable):
        raise DataError(
            f"tied={arguments.shown(tied)}",
            remedy="Give groups of names or patterns, as in tied=[['W1', 'W2'], ['b*']].",
        )
    names = list(known)
    return [_members(arguments.names("tied[...]", group), names, partial) for group in tied]


def _members(group: tuple[str, ...], known: list[str], partial: bool) -> tuple[str, ...]:
    """The known names that a group names, each once."""
    members: dict[str, None] = {}
    for pattern in group:
        matched = [name for name in known if fnmatchcase(name, pattern)]
        if not matched and not partial:
            raise DataError(f"there is no variance `{pattern}`", remedy=f"Known: {', '.join(known)}.")
        members |= dict.fromkeys(matched)
    return tuple(members)
