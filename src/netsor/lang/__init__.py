"""The Netsor language: types, statements, checker, text form and its variants."""

from netsor.lang.blocks import Block
from netsor.lang.check import check
from netsor.lang.evaluate import evaluate
from netsor.lang.parse import parse, parse_expr
from netsor.lang.program import Program
from netsor.lang.show import show
from netsor.lang.types import A, C, G, H

__all__ = ["A", "Block", "C", "G", "H", "Program", "check", "evaluate", "parse", "parse_expr", "show"]
