"""Connected components, by union-find."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def components(items: Sequence[T], labels: Callable[[T], Iterable[Hashable]]) -> list[list[T]]:
    """Group the items that are connected by common labels; keep their order.

    >>> components(["ab", "c", "bd"], lambda word: word)
    [['ab', 'bd'], ['c']]
    """
    parent = list(range(len(items)))
    owner: dict[Any, int] = {}  # label -> the first item with it

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for k, item in enumerate(items):
        for label in labels(item):
            first, second = sorted((root(k), root(owner.setdefault(label, k))))
            parent[second] = first
    groups: dict[int, list[T]] = {}
    for k, item in enumerate(items):
        groups.setdefault(root(k), []).append(item)
    return list(groups.values())
