"""The paper's figure "Infinite-width theory is highly predictive for simple RNN"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from netsor.data import sentences
from netsor.files import write_csv
from netsor.limits import kernel
from netsor.plots.maps import as_correlation
from netsor.plots.panels import heat_map, joint_histogram, radius_histogram
from netsor.plots.style import picture
from netsor.reproduce.experiment import Experiment, fingerprint
from netsor.reproduce.studies import Study, paper_studies
from netsor.simulation import empirical_kernel, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NETWORKS = 100  # in panel D, as in the paper


@dataclass(frozen=True)
class RnnNumbers:
    """What the panels show: A cosines, B correlation, C covariance, D deviation, E final outputs."""

    study: Study
    width: int
    cosines: np.ndarray
    correlation: np.ndarray
    covariance: np.ndarray
    deviation: np.ndarray
    outputs: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """Deviation of simulated covariances, relative to the limit, entry by entry."""
        return self.deviation / np.abs(self.covariance)

    @property
    def lazy_dog(self) -> tuple[float, float]:
        """("lazy" of sentence 2, "dog" of sentence 1): cosine of the words, correlation of the outputs."""
        row, col = len(self.study.labels) - 2, self.study.breaks[0] - 1
        return float(self.cosines[row, col]), float(self.correlation[row, col])

    @property
    def predicted(self) -> np.ndarray:
        """The limiting covariance of the two final outputs."""
        last = _last_words(self.study)
        return self.covariance[np.ix_(last, last)]

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

    @property
    def inside_predicted(self) -> np.ndarray:
        """The same for the Gaussian: 1 - exp(-r^2 / 2)."""
        return 1 - np.exp(-0.5 * np.array([1.0, 4.0, 9.0]))


def _last_words(study: Study) -> list[int]:
    """The rows of the outputs after each sentence."""
    return [study.breaks[0] - 1, len(study.labels) - 1]


def rnn_numbers(experiment: Experiment, *, samples: int, width: int) -> RnnNumbers:
    """The limit, 100 simulated covariances, and the final outputs of `samples` networks."""
    study = paper_studies()[0]
    net, inputs = study.net, study.inputs
    vectors = np.concatenate([s.vectors for s in sentences()])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    covariance = kernel(net)(inputs)
    mark, last = fingerprint(net, inputs), _last_words(study)

    def kernels(count: int, seeds: np.random.SeedSequence) -> np.ndarray:
        return empirical_kernel(net, inputs, width, count, seeds, progress=False)

    def outputs(count: int, seeds: np.random.SeedSequence) -> np.ndarray:
        return simulate(net, inputs, width, count, seeds, dtype=np.float32, progress=False)[:, last]

    simulated = experiment.samples("rnn_kernels", f"kernel {mark}", width, NETWORKS, kernels, chunk=10)
    final = experiment.samples("rnn_outputs", f"outputs {mark}", width, samples, outputs, chunk=50)
    return RnnNumbers(
        study=study,
        width=width,
        cosines=unit @ unit.T,
        correlation=as_correlation(covariance),
        covariance=covariance,
        deviation=np.sqrt(((simulated - covariance) ** 2).mean(0)),
        outputs=final.astype(float),
    )


def rnn_figure(experiment: Experiment, *, samples: int, width: int) -> Iterator[str]:
    """Draw panels A to E of the paper, and F, which shows E along its radius; yield the results.

    Panel E has `samples` networks. All networks have one `width`.
    """
    numbers = rnn_numbers(experiment, samples=samples, width=width)
    yield from _findings(numbers)
    words = numbers.study.labels
    for panel, name in zip("ABCD", ("cosines", "correlation", "covariance", "deviation"), strict=True):
        rows = [[word, *row] for word, row in zip(words, getattr(numbers, name), strict=True)]
        write_csv(experiment.folder / f"rnn_{panel}_{name}.csv", ["", *words], rows)
    header = ["after sentence 1", "after sentence 2"]
    write_csv(experiment.folder / "rnn_E_outputs.csv", header, list(numbers.outputs))
    files = experiment.write("rnn", picture(lambda *axes: _draw(axes, numbers), (13.5, 8.6), "ABC\nDEF"))
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


def _draw(axes: Sequence[Axes], numbers: RnnNumbers) -> str:
    """Draw the six panels; returns the caption."""
    lowest = min(0.0, numbers.cosines.min(), numbers.correlation.min())  # A and B have one scale
    maps = (
        (numbers.cosines, "A  cosines of the word vectors", (lowest, 1.0), "cosine"),
        (numbers.correlation, "B  correlation of the limit", (lowest, 1.0), "correlation"),
        (numbers.covariance, "C  covariance of the limit", None, "covariance"),
        (numbers.deviation, "D  deviation of simulations from C", None, "standard deviation"),
    )
    words, breaks = numbers.study.labels, numbers.study.breaks
    for ax, (matrix, title, limits, scale) in zip(axes, maps, strict=False):
        heat_map(ax, matrix, words, title, breaks=breaks, limits=limits, scale=scale)
    labels = ("output after sentence 1, “… the dog”", "output after sentence 2, “… the lazy dog”")
    title = f"E  final outputs of {len(numbers.outputs):,} networks"
    joint_histogram(axes[4], numbers.outputs, numbers.predicted, labels, title)
    radius_histogram(axes[5], numbers.radii, "F  the same, by distance from the centre")
    return _caption(numbers)


def _caption(numbers: RnnNumbers) -> str:
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
        f"limit. (E) The two final outputs of {len(numbers.outputs):,} random networks, and the limit's "
        f"level curves: {shares}% of them lie inside 1, 2, 3 sigma; the Gaussian has {wanted}%. (F) Their "
        "distances from the centre, and the density that the limit predicts."
    )
