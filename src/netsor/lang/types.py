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


def _show_index(index: Index) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


@dataclass(frozen=True)
class A:
    """A matrix with iid Gaussian entries, or a block of independent such matrices."""

    rows: Dim
    cols: Dim
    index: Index = ()

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.rows, self.cols

    def __str__(self) -> str:
        return f"A({self.rows}, {self.cols}){_show_index(self.index)}"


@dataclass(frozen=True)
class H:
    """A vector that is a coordinatewise image of G-vars."""

    width: str
    index: Index = ()

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (self.width,)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.width}){_show_index(self.index)}"


@dataclass(frozen=True)
class G(H):
    """A vector that is asymptotically Gaussian; every G-var is also an H-var."""

    __str__ = H.__str__


@dataclass(frozen=True)
class C:
    """A scalar with a deterministic limit."""

    index: Index = ()
    dims = ()

    def __str__(self) -> str:
        return f"C{_show_index(self.index)}"


Type = A | H | C
