"""The average of independent repeats and its standard error, from some repeats at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Averages"]


class Averages:
    """Mean and squared deviations, updated without cancellation (Welford 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, stack: np.ndarray) -> None:
        """Further repeats, (repeats, ...)."""
        for value in stack:
            self.count += 1
            change = value - self.mean
            self.mean = self.mean + change / self.count
            change *= value - self.mean
            self.squares += change

    @property
    def error(self) -> np.ndarray:
        """The standard error of the mean; of few repeats a multiple of it, twice which covers as much as two
        standard errors do of many (Student)."""
        from scipy.special import ndtr, stdtrit  # takes time to load, and only sampled limits need it

        factor = float(stdtrit(self.count - 1, ndtr(2.0))) / 2.0
        return factor * np.sqrt(self.squares / (self.count * (self.count - 1)))
