"""The paper's figure "Infinite-width theory is highly predictive for simple RNN"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from netsor.files import write_csv
from netsor.limits import kernel
from netsor.plots.maps import as_correlation, heat_map
from netsor.plots.style import INK, Axes, colour_bar, picture
from netsor.reproduce.experiment import Experiment, fingerprint
from netsor.reproduce.studies import Study, paper_studies
from netsor.simulation import empirical_kernel, simulate

NETWORKS = 100  # in panel D, as in the paper


@dataclass(frozen=True)
class RnnNumbers:
    """What the panels show: A cosines, B correlation, C covariance, D deviation, E final outputs."""

    study: Study
    width: int
    last: list[int]  # the rows of the outputs after each sentence
    cosines: np.ndarray
    correlation: np.ndarray
    covariance: np.ndarray
    deviation: np.ndarray
    outputs: np.ndarray
    # Of a Gaussian inside its level curves at 1, 2 and 3 sigma: 1 - exp(-r^2 / 2).
    inside_predicted: ClassVar[np.ndarray] = 1 - np.exp(-0.5 * np.array([1.0, 4.0, 9.0]))

    @property
    def ratio(self) -> np.ndarray:
        """Deviation of simulated covariances, relative to the limit, entry by entry."""
        return self.deviation / np.abs(self.covariance)

    @property
    def lazy_dog(self) -> tuple[float, float]:
        """("lazy" of sentence 2, "dog" of sentence 1): cosine of the words, correlation of the outputs."""
        row, col = self.last[1] - 1, self.last[0]
        return float(self.cosines[row, col]), float(self.correlation[row, col])

    @property
    def predicted(self) -> np.ndarray:
        """The limiting covariance of the two final outputs."""
        return self.covariance[np.ix_(self.last, self.last)]

    @property
    def radii(self) -> np.ndarray:
        """Distance of every network's pair of outputs from the centre, in the limit's sigma."""
        # r^2 = y^T Sigma^-1 y, which has a chi-squared distribution with two degrees of freedom
        solved = np.linalg.solve(self.predicted, self.outputs.T)
        return np.sqrt(np.sum(self.outputs.T * solved, axis=0))

    @property
    def inside(self) -> np.ndarray:
        """Fraction of networks inside the level curves at 1, 2 and 3 sigma."""
        return np.array([np.mean(self.radii < r) for r in (1, 2, 3)])


def rnn_numbers(experiment: Experiment, *, samples: int, width: int) -> RnnNumbers:
    """The limit, 100 simulated covariances, and the final outputs of `samples` networks."""
    study = paper_studies()[0]
    net, inputs = study.net, study.inputs
    vectors = np.concatenate(inputs)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    covariance = kernel(net)(inputs)
    mark, last = fingerprint(net, inputs), [study.breaks[0] - 1, len(study.labels) - 1]
    draw = partial(empirical_kernel, net, inputs, width, progress=False)
    kernels = experiment.samples("rnn_kernels", f"kernel {mark}", width, NETWORKS, draw, chunk=10)
    draw = partial(simulate, net, inputs, width, dtype=np.float32, progress=False)
    outputs = experiment.samples("rnn_outputs", f"outputs {mark}", width, samples, draw, chunk=50)
    deviation, correlation = np.sqrt(((kernels - covariance) ** 2).mean(0)), as_correlation(covariance)
    final = outputs[:, last].astype(float)
    return RnnNumbers(study, width, last, unit @ unit.T, correlation, covariance, deviation, final)


def rnn_figure(experiment: Experiment, *, samples: int, width: int) -> Iterator[str]:
    """Draw panels A to E of the paper, and F, which shows the `samples` of E along the radius."""
    numbers = rnn_numbers(experiment, samples=samples, width=width)
    yield from _findings(numbers)
    for panel, name in zip("ABCD", ("cosines", "correlation", "covariance", "deviation"), strict=True):
        experiment.write_matrix(f"rnn_{panel}_{name}", numbers.study.labels, getattr(numbers, name))
    header = ["after sentence 1", "after sentence 2"]
    write_csv(experiment.folder / "rnn_E_outputs.csv", header, list(numbers.outputs))
    files = experiment.write("rnn", picture(lambda *axes: _draw(numbers, *axes), (13.5, 8.6), "ABC\nDEF"))
    yield f"wrote {files} and 5 tables (rnn_*.csv)"


def _findings(numbers: RnnNumbers) -> Iterator[str]:
    cosine, correlation = numbers.lazy_dog
    yield f"(lazy, dog): cosine of the words {cosine:.4f}, correlation of the outputs {correlation:.4f}"
    yield (
        f"{NETWORKS} networks of width {numbers.width}: entrywise deviation / limit: "
        f"median {np.median(numbers.ratio):.4f}, largest {numbers.ratio.max():.4f}"
    )
    count = len(numbers.outputs)
    simulated = numbers.outputs.T @ numbers.outputs / count
    yield f"final outputs of {count} networks, covariance: limit {numbers.predicted.round(4).tolist()}"
    yield f"  simulated {simulated.round(4).tolist()}"
    for r, share, predicted in zip((1, 2, 3), numbers.inside, numbers.inside_predicted, strict=True):
        error = np.sqrt(predicted * (1 - predicted) / count)
        yield f"  inside {r} sigma: {share:.4f}, predicted {predicted:.4f} +- {error:.4f}"


def _draw(numbers: RnnNumbers, *axes: Axes) -> str:
    """Draw the six panels; returns the caption."""
    lowest = min(0.0, numbers.cosines.min(), numbers.correlation.min())  # A and B have one scale
    maps = (
        (numbers.cosines, "A  cosines of the word vectors", (lowest, 1.0), "cosine"),
        (numbers.correlation, "B  correlation of the limit", (lowest, 1.0), "correlation"),
        (numbers.covariance, "C  covariance of the limit", (None, None), "covariance"),
        (numbers.deviation, "D  deviation of simulations from C", (None, None), "standard deviation"),
    )
    study, count = numbers.study, len(numbers.outputs)
    for ax, (matrix, title, limits, scale) in zip(axes, maps, strict=False):
        heat_map(ax, matrix, study.labels, title, breaks=study.breaks, limits=limits, scale=scale)
    _draw_outputs(axes[4], numbers.outputs, numbers.predicted)
    _draw_radii(axes[5], numbers.radii)
    cosine, correlation = numbers.lazy_dog
    shares = ", ".join(f"{100 * s:.1f}" for s in numbers.inside)
    wanted = ", ".join(f"{100 * s:.1f}" for s in numbers.inside_predicted)
    return (
        f"The simple RNN with erf on two sentences, width {numbers.width}. "
        f"(A) Cosines of the GloVe vectors; (lazy, dog) is {cosine:.2f}. "
        f"(B) Correlation of the 7 + 9 outputs in the infinite-width limit; (lazy, dog), the sentences up to "
        f"these words, is {correlation:.2f}. (C) Covariance in the limit. "
        f"(D) Entrywise root mean square deviation from C of the covariances of {NETWORKS} random networks: "
        f"median {100 * np.median(numbers.ratio):.1f}%, largest {100 * numbers.ratio.max():.1f}% of the "
        f"limit. (E) The two final outputs of {count:,} random networks, and the limit's "
        f"level curves: {shares}% of them lie inside 1, 2, 3 sigma; the Gaussian has {wanted}%. (F) Their "
        "distances from the centre, and the density that the limit predicts."
    )


def _draw_outputs(ax: Axes, pairs: np.ndarray, covariance: np.ndarray) -> None:
    """Draw a two-dimensional histogram with the level curves of a centred Gaussian at 1, 2 and 3 sigma."""
    reach = 3.8 * np.sqrt(np.diag(covariance)).max()
    grid = np.linspace(-reach, reach, int(np.clip(len(pairs) ** 0.45, 24, 100)) + 1)
    _, _, _, image = ax.hist2d(pairs[:, 0], pairs[:, 1], bins=(grid, grid), cmap="magma")
    angles = np.linspace(0, 2 * np.pi, 200)
    ellipse = np.linalg.cholesky(covariance) @ np.stack([np.cos(angles), np.sin(angles)])
    for radius in (1, 2, 3):
        ax.plot(*(radius * ellipse), color="white", linestyle=(0, (4, 2)), linewidth=1.0)
        top = radius * ellipse[:, np.argmax(ellipse[1])]
        place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
        ax.annotate(f"{radius} sigma", (top[0], top[1]), color="white", fontsize=7, **place)
    ax.set(xlabel="output after sentence 1, “… the dog”", ylabel="output after sentence 2, “… the lazy dog”")
    ax.set(aspect="equal", title=f"E  final outputs of {len(pairs):,} networks")
    colour_bar(image, ax, "networks per cell")


def _draw_radii(ax: Axes, radii: np.ndarray) -> None:
    """Draw the distances of points to the centre of a plane Gaussian, in sigma, and r exp(-r^2 / 2)."""
    edges = np.linspace(0, 4.5, int(np.clip(len(radii) ** 0.4, 18, 60)) + 1)
    looks = {"color": "#f0a35e", "edgecolor": "white", "linewidth": 0.4}
    ax.hist(radii, edges.tolist(), density=True, label="networks", **looks)
    r = np.linspace(0, 4.5, 300)
    ax.plot(r, r * np.exp(-0.5 * r**2), color=INK, linewidth=1.5, label=r"limit, $r\,e^{-r^2/2}$")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set(xlabel="distance from the centre in the limit's sigma", ylabel="density", xlim=(0, 4.5))
    ax.set_title("F  the same, by distance from the centre")
    ax.set_box_aspect(1)
    ax.legend(fontsize=8, frameon=False)
