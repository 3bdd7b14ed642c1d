"""Groups of tied variances, given by names or by patterns such as `W*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from netsor import arguments
from netsor.errors import DataError


def tied_groups(tied: object, names: Iterable[str], *, partial: bool = False) -> list[tuple[str, ...]]:
    """Expand the patterns (`*`, `?`, `[...]`) in groups of names; with `partial`, ignore unknown names.

    >>> tied_groups([["W*"], ["b1"]], ["W1", "b1", "W2", "v"])
    [('W1', 'W2'), ('b1',)]
    """
    if isinstance(tied, str | bytes | Mapping) or not isinstance(tied, Iterable):
        raise DataError(
            f"tied={arguments.shown(tied)}",
            remedy="Give groups of names or patterns, as in tied=[['W1', 'W2'], ['b*']].",
        )
    listed = list(names)
    return [_members(arguments.names("tied[...]", group), listed, partial) for group in tied]


def _members(group: tuple[str, ...], names: list[str], partial: bool) -> tuple[str, ...]:
    """The names that match a group, without repetitions."""
    members: dict[str, None] = {}
    for pattern in group:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched and not partial:
            raise DataError(f"there is no variance `{pattern}`", remedy=f"Known: {', '.join(names)}.")
        members |= dict.fromkeys(matched)
    return tuple(members)
