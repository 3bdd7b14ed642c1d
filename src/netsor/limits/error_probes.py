"""Errors of a kernel by stochastic arithmetic: run it again with its inexact steps perturbed.

A step of a tape may carry an error bound. A plain run ignores bounds. A *probe* is a run that perturbs every
value by its bound; the change of the kernel estimates its error. A program that subtracts may cancel
perturbations that all go upwards. So further probes perturb in pseudo-random directions that depend on the
digits of a value: equal numbers move alike wherever they are computed, as their rounding errors do.

References: J. Vignes, A stochastic arithmetic for reliable scientific computation (1993); D. S. Parker, Monte
Carlo arithmetic (1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.limits.notes import Notes


@dataclass(frozen=True)
class Probe:
    """How one run perturbs the values of its steps."""

    scale: float  # in units of the error bound; its sign is the direction
    seed: int = 0  # of pseudo-random directions; 0 perturbs all values in one direction

    @property
    def is_random(self) -> bool:
        return self.seed != 0

    def perturbed(self, values: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Perturb values within their errors, in directions that depend on their leading digits and sign."""
        if not self.seed:
            return values + self.scale * errors
        sizes = np.where(values == 0, 1.0, np.abs(values))
        # The logarithm has the leading digits: errors of a method are smooth in its values.
        return values + self.scale * np.sign(values) * np.cos(self.seed * np.log(sizes)) * errors

    def noise(self, values: np.ndarray) -> np.ndarray | float:
        """Return `scale` times numbers of mean 0 and variance 1/2 that depend on all digits of the values."""
        if not self.seed:
            return self.scale
        bits = values.view(np.uint64 if values.itemsize == 8 else np.uint32)
        bits = bits << np.uint8(1)  # drop the sign: opposite values have equal noise, like rounding errors
        # Multiplicative hashing: products with an odd number near 2^64 / golden ratio mix all bits upwards.
        multiplier = np.uint64(0x9E3779B97F4A7C15 * (2 * self.seed + 1) % 2**64)
        mixed = bits.astype(np.uint64, copy=False) * multiplier
        uniform = (mixed >> np.uint64(11)).astype(values.dtype) * 2.0**-53
        # A uniform number has variance 1/12, so the factor makes it 1/2.
        return self.scale * 6**0.5 * (uniform - 0.5)


UPWARDS, DOWNWARDS = Probe(1.0), Probe(-1.0)
# DOWNWARDS is UPWARDS reversed, and the second of RANDOM is the first reversed: a variance near 0 is positive
# in one of the two.
RANDOM = (Probe(1.0, 10_000), Probe(-1.0, 10_000), Probe(1.0, 13_000), Probe(1.0, 17_000))


# Error bounds that a step can carry: functions from a probe and the values read to a perturbed value.


@dataclass(frozen=True, eq=False)
class MethodError:
    """The error that `compute` returns together with the values; `report` receives the largest one."""

    compute: Callable[..., tuple[np.ndarray, np.ndarray]]
    report: Callable[[float], None]

    def __call__(self, probe: Probe, *args: Any) -> np.ndarray:
        values, errors = self.compute(*args)
        self.report(float(np.max(errors, initial=0.0)))
        return probe.perturbed(values, errors)


@dataclass(frozen=True)
class Rounding:
    """Rounding of an array, in units in the last place of the value itself.

    For products x.y of data, they are units of |x| |y|, because terms may cancel; `products` is then (|x|^2,
    |y|^2, mark of x, mark of y). The marks make the noise of equal products of different data different.
    """

    units: float

    def __call__(self, probe: Probe, values: np.ndarray, *products: np.ndarray) -> np.ndarray:
        if not probe.is_random:  # the errors of methods dominate this probe
            return values
        sizes, digits = values, values
        if products:
            sizes, digits = np.sqrt(products[0] * products[1]), products[2] * products[3]
        return values + self.units * float(np.finfo(values.dtype).eps) * sizes * probe.noise(digits)


@dataclass(frozen=True)
class ExponentRounding:
    """Rounding of the law of an exponent: its absolute error is the relative error of E[exp(x) exp(y)]."""

    units: float

    def __call__(self, probe: Probe, values: np.ndarray) -> np.ndarray:
        size = np.abs(values) * (self.units * float(np.finfo(values.dtype).eps))
        return values + size * probe.noise(values)


def non_negative(probe: Probe, values: np.ndarray) -> np.ndarray:
    """Reflect a variance that a perturbation made negative to above 0."""
    return np.abs(values) if probe.is_random else values


# What the probes of a kernel show about its error


def probes(
    change: Callable[[Probe], np.ndarray], notes: Notes, cancels: bool, counts: Callable[[Any], bool]
) -> Iterator[tuple[Probe, np.ndarray]]:
    """Run the probes that a kernel needs; yield each with the change of the kernel.

    change   runs a probe and returns the change, (rows, columns)
    cancels  whether sums may be much smaller than their terms
    counts   returns whether an error is above the allowance for rounding
    """
    if notes.inexact:
        upwards = change(UPWARDS)
        # Each layer of jumps maps a distance d from correlation 1 to sqrt(d). The kernel may then be further
        # from that of parallel inputs than from the upward probe, so probe downwards as well.
        steep = notes.steep and counts(upwards)
        yield UPWARDS, upwards
        if steep:
            yield DOWNWARDS, change(DOWNWARDS)
    matters = counts(notes.largest_error)
    if matters or cancels:
        for number, probe in enumerate(RANDOM):
            entries = change(probe)
            matters = matters or counts(entries)
            if matters:
                yield probe, entries
            elif number == 1:  # one probe without an effect may be chance, but hardly two
                return
            del entries  # it is as large as the kernel


def error_of(changes: Iterable[tuple[Probe, np.ndarray]]) -> np.ndarray | None:
    """Return the error that probes show; overwrite their changes, (rows, columns), to save memory.

    It is the largest of twice the upward change, the downward one, and 3 standard deviations of random ones.
    """
    error = total = None
    count = 0
    for probe, change in changes:
        if probe.is_random:
            total, count = np.hypot(0.0 if total is None else total, change, out=change), count + 1
        else:
            size = np.abs(change, out=change)
            size *= 2 if probe == UPWARDS else 1
            error = size if error is None else np.maximum(error, size, out=error)
    if total is None:
        return error
    total *= 3 * np.sqrt(2 / count)  # random directions have variance 1/2
    return total if error is None else np.maximum(error, total, out=error)
