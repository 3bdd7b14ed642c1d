"""The types of the language: A (matrix), G (Gaussian vector), H (its image), C (scalar).

A variable is a *block*: an array of the paper's variables that are defined by one statement. `index` is the
shape of that array; `()` is a single variable, as in the paper. A width (`str`) is a Common Dimension Class
and goes to infinity; an `int` is a finite dimension of data.
"""

from __future__ import annotations

from dataclasses import dataclass

# The most members of a block. Each takes at least one number in memory, so larger blocks cannot be evaluated.
MOST_MEMBERS = 10**8
TOO_LARGE = (
    f"A block has at most {MOST_MEMBERS:,} members, and so has a dimension of data. The width is not among "
    "them: write one vector for many coordinates that have the same law."
)

Dim = str | int
Index = tuple[int, ...]


class _Shaped:
    """Shows a type as text: `G(n)[7]`."""

    index: Index

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions: all fields but the index shape."""
        return tuple(size for name, size in vars(self).items() if name != "index")

    def __str__(self) -> str:
        dims = f"({', '.join(map(str, self.dims))})" if self.dims else ""
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{type(self).__name__}{dims}{index}"


@dataclass(frozen=True)
class A(_Shaped):
    """A matrix with iid Gaussian entries, or a block of independent such matrices."""

    rows: Dim
    cols: Dim
    index: Index = ()


@dataclass(frozen=True)
class H(_Shaped):
    """A vector that is a coordinatewise image of G-vars."""

    width: str
    index: Index = ()


@dataclass(frozen=True)
class G(H):
    """A vector that is asymptotically Gaussian; every G-var is also an H-var."""


@dataclass(frozen=True)
class C(_Shaped):
    """A scalar with a deterministic limit."""

    index: Index = ()


Type = A | H | C
