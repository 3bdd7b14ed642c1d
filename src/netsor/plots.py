"""Pictures. Needs the extra `plots` (matplotlib)."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["heat_map", "joint_histogram", "save", "style"]

INK, PAPER = "#1f2430", "#ffffff"


def style() -> Any:
    """matplotlib's pyplot with our settings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "figure.facecolor": PAPER,
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "text.color": INK,
            "savefig.dpi": 200,
        }
    )
    return pyplot


def heat_map(
    ax: Any, matrix: np.ndarray, words: list[str], title: str, *, cmap: str = "magma", split: int = 0
):
    """A matrix with words on both axes, a colour bar, and a line between the two sentences."""
    image = ax.imshow(matrix, cmap=cmap, interpolation="nearest")
    ax.set_xticks(range(len(words)), words, rotation=90, fontsize=7)
    ax.set_yticks(range(len(words)), words, fontsize=7)
    ax.tick_params(length=0)
    if split:
        for line in (ax.axhline, ax.axvline):
            line(split - 0.5, color="white", linewidth=1.2)
    ax.set_title(title, loc="left")
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    return image


def joint_histogram(ax: Any, pairs: np.ndarray, covariance: np.ndarray, labels: tuple[str, str], title: str):
    """A two-dimensional histogram with the level curves of a centred Gaussian at 1, 2 and 3 sigma."""
    reach = 3.6 * np.sqrt(np.diag(covariance)).max()
    grid = np.linspace(-reach, reach, int(np.clip(np.sqrt(len(pairs)), 24, 60)) + 1)
    ax.hist2d(pairs[:, 0], pairs[:, 1], bins=(grid, grid), cmap="magma")
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(angles), np.sin(angles)])
    for radius in (1, 2, 3):
        ax.plot(*(radius * circle), color="white", linestyle="--", linewidth=0.9)
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    ax.set_aspect("equal")
    ax.set_title(title, loc="left")


def save(figure: Any, stem: str) -> list[str]:
    """PNG and PDF of a figure; returns the file names."""
    names = [f"{stem}.png", f"{stem}.pdf"]
    for name in names:
        figure.savefig(name, bbox_inches="tight")
    return names
