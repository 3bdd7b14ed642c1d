"""Measure how the time grows with the number of inputs, the depth, the length and the pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from cases import Case, cnn, gru, mlp, rnn

__all__ = ["Curve", "Point", "curves", "exponent"]


@dataclass(frozen=True)
class Curve:
    """One variable, its values, and the power with which the cost should grow, for us and for the peer.

    At the values of `beyond`, which would take the peer too long, netsor runs alone.
    """

    name: str
    variable: str
    values: tuple[int, ...]
    theory: float
    peer_theory: float
    make: Callable[[int], Case]
    beyond: tuple[int, ...] = ()

    def power(self, side: str) -> float:
        return self.theory if side == "netsor" else self.peer_theory

    def cases(self) -> Iterator[tuple[int, Case]]:
        return ((value, self.make(value)) for value in (*self.values, *self.beyond))


@dataclass(frozen=True)
class Point:
    """A measured point of a curve."""

    curve: str
    variable: str
    side: str
    value: int
    seconds: float
    peak: float


def curves(quick: bool = False) -> list[Curve]:
    """Pixels are counted, not the side of the image."""
    sides = (4, 6, 8) if quick else (8, 12, 16, 24, 32)
    pixels, larger = tuple(side**2 for side in sides), tuple(4 * side**2 for side in sides)
    count = 100 if quick else 2000
    return [
        Curve(
            "mlp-relu: depth 10",
            "B",
            (50, 100, 200) if quick else (500, 1000, 2000, 4000, 8000),
            2.0,
            2.0,
            lambda n: mlp("relu", n, 100, 10),
        ),
        Curve(
            f"mlp-relu: {count} inputs",
            "depth",
            (2, 4, 8) if quick else (4, 8, 16, 32, 64),
            1.0,
            1.0,
            lambda n: mlp("relu", count, 100, n),
        ),
        Curve(
            "rnn: 10 sequences",
            "T",
            (4, 8, 16) if quick else (10, 20, 40, 80),
            2.0,
            3.0,
            lambda n: rnn(10, n, 50),
            () if quick else (160,),
        ),
        Curve(
            "gru: two sentences",
            "T",
            (2, 3, 4) if quick else (3, 4, 5, 6, 7),
            4.0,
            6.0,
            gru,
            () if quick else (10, 14, 20),
        ),
        Curve("cnn-gap: 4 images", "pixels", pixels, 2.0, 2.0, lambda n: cnn(4, round(n**0.5), 3, "gap")),
        Curve(
            "cnn-flatten: 20 images",
            "pixels",
            pixels if quick else larger,
            1.0,
            1.0,
            lambda n: cnn(20, round(n**0.5), 3, "flatten"),
        ),
    ]


def exponent(values: list[float], seconds: list[float], last: int = 3) -> float:
    """The slope of log seconds over log value, fitted to the last points: the first ones are overhead."""
    x, y = np.log(values[-last:]), np.log(seconds[-last:])
    return float(np.polyfit(x, y, 1)[0])
