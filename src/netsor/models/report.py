"""The table of a model's parameters: shapes, laws, and roles in the network."""

from __future__ import annotations

from dataclasses import dataclass

from netsor.errors import BuildError
from netsor.models.laws import MIXED, VALUES, Law, ParameterRow, shape_text
from netsor.models.network import ModelNetwork
from netsor.models.scalars import Size


@dataclass(frozen=True)
class LawReport:
    """Rows (parameter, shape, law, role), and notes; printed as a table."""

    rows: tuple[tuple[str, str, str, str], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        table = [("parameter", "shape", "law", "became"), *self.rows]
        sizes = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(n) for cell, n in zip(row, sizes, strict=True)).rstrip() for row in table
        ]
        lines.insert(1, "  ".join("-" * n for n in sizes))
        return "\n".join([*lines, "", *self.notes])


def report_laws(net: ModelNetwork) -> LawReport:
    """Return a table of the model's parameters with their laws and their roles in the network.

    Print it, or use `.rows` and `.notes`. Roles are known once the network has been read for an input, by
    ns.program, ns.kernel or another function.
    """
    if not isinstance(net, ModelNetwork):
        raise BuildError(
            f"`{getattr(net, 'name', net)}` is not imported from a model",
            remedy="report_laws takes a network from ns.from_torch, ns.from_jax and the like.",
        )
    widths = net.front.widths
    rows = tuple(
        (row.name, shape_text(row.shape, widths), law_text(row.law, widths), _became(net, row))
        for row in net.rows
    )
    own_laws = [row.name for row in net.rows if _has_own_law(net, row)]
    notes = [
        f"n = {widths[0]} is the model's own width.",
        "Hidden matrices and readouts that are not Gaussian (uniform, truncated) have the limit of Gaussian "
        "ones.",
    ]
    if own_laws:
        notes.append(
            f"{', '.join(own_laws)}: not Gaussian, and taken for Gaussian of the same variance, an "
            "approximation: what meets few inputs, or is added to a vector, keeps its own law at any width. "
            "Normal initialisers are exact."
        )
    return LawReport(rows, (*notes, *net.notes, *net.tangent_remarks()))


def _has_own_law(net: ModelNetwork, row: ParameterRow) -> bool:
    """Whether a non-Gaussian law affects the limit: it has order 1, and is of a vector or multiplies data."""
    law, widths = row.law, net.front.widths
    if (
        law.is_constant
        or law.source in ("normal", "given", MIXED, VALUES)
        or abs(law.exponent(widths)) > 0.02
    ):
        return False
    roles = {use.role for use in net.registry.uses.values() if use.parameter.name == row.name}
    return bool(roles & {"embedding", "vector"})


def law_text(law: Law, widths: Size) -> str:
    """`uniform, 0.333/n`: the variance with its power of n.

    >>> law_text(Law(0.0, (1 / 192, 1 / 384), "uniform"), (64, 128))
    'uniform, variance 0.3333/n'
    """
    if law.source in (MIXED, VALUES):
        return law.source
    if law.is_constant:
        return f"constant {law.mean:g}"
    centre = f", mean {law.mean:g}" if law.mean else ""
    if law.fan_in:
        return f"given, variance {law.var[0]:.4g}/fan-in"
    p = law.exponent(widths)
    if abs(p) < 0.02:
        kept = " (as at n)" if law.at_width else ""
        return f"{law.source}, variance {law.var[0]:.4g}{kept}{centre}"
    power = "/n" if abs(p + 1) < 0.02 else f" n^{p:.2g}"
    return f"{law.source}, variance {law.var[0] / widths[0] ** p:.4g}{power}{centre}"


def _became(net: ModelNetwork, row: ParameterRow) -> str:
    parameters = {m.name: m for m in net.registry.by_piece.values()}
    uses = [
        (parameters[name], use) for name, use in net.registry.uses.items() if use.parameter.name == row.name
    ]
    if not uses:
        if not net.registry.uses:
            return "not read yet"
        if row.law.source == VALUES:
            return "numbers"
        return f"constant {row.law.mean:g}" if row.law.is_constant else "not used"
    thing, use = uses[0]
    block = f" x {len(uses)}" if len(uses) > 1 else ""
    kind = f"{use.role} " if use.role != "vector" else ""
    return f"{kind}{thing!r}{block}"
