"""Transposes and reshapes of nodes, without steps that cancel: limits match patterns of the simplest form."""

from __future__ import annotations

from collections.abc import Sequence

from netsor.build.graph_nodes import Expression, Node
from netsor.lang import index_maps as maps


def transpose_node(node: Node, order: Sequence[int]) -> Node:
    """`node.transpose(*order)`, merged with an earlier transpose."""
    if isinstance(node, Expression) and node.op is maps.transpose:
        inner, before = node.args[0], dict(node.attrs)["axes"]
        assert isinstance(inner, Node)
        assert isinstance(before, tuple)
        return transpose_node(inner, [before[i] for i in order])  # type: ignore[misc]
    return node if list(order) == sorted(order) else node.transpose(*order)


def reshape_node(node: Node, index: Sequence[int]) -> Node:
    """`node.reshape(index)`, merged with an earlier reshape."""
    if isinstance(node, Expression) and node.op is maps.reshape:
        inner = node.args[0]
        assert isinstance(inner, Node)
        return reshape_node(inner, index)
    return node if tuple(index) == node.index else node.reshape(tuple(index))
