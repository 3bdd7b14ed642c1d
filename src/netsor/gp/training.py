"""The ensemble of infinitely wide networks trained by gradient descent, at any time.

Under gradient flow at `rate` on the squared loss |f(x) - y|^2 / (2 size), an infinitely wide network is
linear in its parameters, and the ensemble over initial weights stays Gaussian (Lee et al. 2019, "Wide Neural
Networks of Any Depth Evolve as Linear Models"). With the kernel K and the tangent kernel Theta of a network,

    A_t = Theta_*X (Theta + noise)^-1 (1 - exp(-rate t (Theta + noise) / size))
    mean_t = A_t y,    cov_t = K_** + A_t K A_t^T - A_t K_X* - K_*X A_t^T.

The noise is a ridge: it adds |change of the parameters|^2 noise / (2 size) to the loss. If only the last
layer is trained, Theta is K, and at infinite time the mean is that of `ns.gp.fit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from netsor import arguments
from netsor.build.joint_program import as_inputs
from netsor.build.network import Network
from netsor.build.tangent_network import TangentNetwork
from netsor.errors import DataError
from netsor.gp.factor import InferenceError, check_noise, checked_variance, needed_jitter, warn_of_jitter
from netsor.gp.regression import Prediction
from netsor.gp.targets import OnData, arrange, check_consistent, output_sizes, reals
from netsor.limits.inputs import InputSet
from netsor.limits.kernel import KernelFn, kernel, ntk


@dataclass(frozen=True, repr=False)
class Trained(OnData):
    """An ensemble of infinitely wide networks in training; made by `train`.

    Attributes
    ----------
    kernel, tangent
        K and Theta of the network.
    x, y, sizes, flat
        As for `GP`.
    rate, time
        Rate of gradient flow, and default time of predictions.
    nugget : float
        The ridge: the noise, or the jitter if that is larger.
    exact : bool
        Whether no part of either kernel is sampled.
    """

    tangent: KernelFn
    rate: float
    time: float
    nugget: float
    exact: bool
    prior: np.ndarray = field(compare=False)
    theta: np.ndarray = field(compare=False)

    def __repr__(self) -> str:
        return f"<ensemble of {self.kernel.net.name}, trained on {len(self.x)} inputs>"

    def _repr_html_(self) -> str:
        from netsor.display import curves, panel, table
        from netsor.display.charts import Curve

        times = np.geomspace(1e-2, 1e5, 60) / self.rate
        losses = self.loss(times)
        seen = losses > 1e-10 * losses.max()  # below are rounding errors
        curve = Curve("", times[seen].tolist(), losses[seen].tolist())
        facts = [("rate", f"{self.rate:g}"), ("largest stable step", f"{self.max_rate:.4g}")]
        facts += [("ridge", f"{self.nugget:.3g}"), ("loss before training", f"{self.loss(0.0):.4g}")]
        chart = curves([curve], "expected loss in training", "time", "loss")
        return panel(repr(self)[1:-1], f'<div class="row">{chart}{table((), facts)}</div>')

    @property
    def max_rate(self) -> float:
        """2 size / largest eigenvalue of Theta + noise: the largest stable step of gradient descent."""
        return 2 * self.y.size / (float(np.linalg.eigvalsh(self.theta)[-1]) + self.nugget)

    def predict(self, x: InputSet, time: float | None = None, *, cov: bool = False) -> Prediction:
        """Return mean and standard deviation of the ensemble at new inputs, after a time of training.

        Parameters
        ----------
        x, cov
            As for `GP.predict`.
        time
            The time of training; by default that of `train`.

        Returns
        -------
        Prediction
            `mean`, `std` and `cov`.
        """
        return self._predictions(as_inputs(x), [_check_time(self.time if time is None else time)], cov)[0]

    def _predictions(self, inputs: list[Any], times: list[float], cov: bool = False) -> list[Prediction]:
        """Predictions at several times from one computation of the kernels."""
        sizes = output_sizes(self.kernel.net, inputs)
        (prior, cross, unconditioned), (theta, reach) = self._blocks(inputs)
        spectrum, before = np.linalg.eigh(theta), self.kernel.mean(inputs)[:, None]
        predictions = []
        for time in times:
            step = reach @ self._progress(spectrum, time)  # A_t
            mean = before + step @ self.centred
            # The network at time t is f_* + A_t (y - f_X) with f at initialisation: cov_t follows.
            moved = step @ prior
            covariance = unconditioned + moved @ step.T - step @ cross.T - cross @ step.T
            scale = np.diagonal(unconditioned) + np.sum(moved * step, axis=1)
            variance = checked_variance(
                np.diagonal(covariance), scale, self.nugget, "a variance of the ensemble", "tangent kernel"
            )
            shown = covariance if cov else None
            predictions.append(Prediction(self._shaped(mean), np.sqrt(variance), shown, sizes))
        return predictions

    def loss(
        self, times: ArrayLike, x: InputSet | None = None, y: ArrayLike | Sequence[ArrayLike] | None = None
    ) -> np.ndarray:
        """Return E |f_t - y|^2 / (2 size) over the ensemble, in the shape of `times`.

        Parameters
        ----------
        times
            A time, or an array of them.
        x, y
            Inputs and targets; by default those of training.
        """
        if (x is None) != (y is None):
            raise DataError(
                "inputs without targets, or targets without inputs", remedy="Give both, or neither."
            )
        inputs = self.x if x is None else as_inputs(x)
        wanted = self.y if y is None else arrange(y, output_sizes(self.kernel.net, inputs))[0]
        asked = [_check_time(float(time)) for time in reals(times, "the times").reshape(-1)]
        losses = [
            np.sum((p.mean.reshape(wanted.shape) - wanted) ** 2 + p.std[:, None] ** 2) / (2 * wanted.size)
            for p in self._predictions(inputs, asked)
        ]
        return np.reshape(losses, np.shape(times))

    def _progress(self, spectrum: tuple[np.ndarray, np.ndarray], time: float) -> np.ndarray:
        """(Theta + noise)^-1 (1 - exp(-rate t (Theta + noise) / size)), by the spectrum of Theta."""
        values, vectors = spectrum  # (rows,), (rows, rows)
        speeds = np.clip(values, 0.0, None) + self.nugget  # negative eigenvalues are rounding
        elapsed = self.rate * time / self.y.size
        if elapsed == inf and not np.all(speeds > 0):
            raise InferenceError(
                "the tangent kernel is singular", remedy="Give a noise > 0, or a finite time."
            )
        # expm1 keeps its digits for small arguments; (1 - exp(-t s)) / s tends to t for s -> 0.
        safe = np.where(speeds > 0, speeds, 1.0)
        factors = np.where(speeds > 0, -np.expm1(-elapsed * safe) / safe, elapsed)
        return (vectors * factors) @ vectors.T

    def _blocks(self, inputs: list[Any]) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """(K, K_*X, K_**) and (Theta, Theta_*X); sampled kernels are evaluated jointly on all inputs."""
        self.unchanged.check()
        if not self.exact:
            return self._joint(self.kernel, inputs), self._joint(self.tangent, inputs)[:2]
        blocks = self.prior, self.kernel(inputs, self.x), self.kernel(inputs)
        return blocks, (self.theta, self.tangent(inputs, self.x))


def train(
    net: Network,
    x: InputSet,
    y: ArrayLike | Sequence[ArrayLike],
    *,
    rate: float = 1.0,
    time: float = inf,
    noise: float = 0.0,
    rates: Any = None,
    layers: str = "all",
    **options: Any,
) -> Trained:
    """Train the ensemble of an infinitely wide network on data; the module docstring has the formulas.

    Parameters
    ----------
    net
        A network of `ns.network` or of an importer.
    x, y
        As for `ns.gp.fit`.
    rate, time
        The rate of gradient flow, or the step of gradient descent if `time` counts steps, and the default
        time of predictions.
    noise
        The ridge.
    rates
        Learning rates by parameter name, or a convention, as for `ns.tangent`.
    layers
        "all", or "last": only the readout is trained, and Theta is K.
    options
        Options of both kernels, as for `ns.kernel`.

    Returns
    -------
    Trained
        The ensemble, for predictions and losses at any time.

    Raises
    ------
    DataError
        An input, target or option is invalid.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> x = np.linspace(-1, 1, 6)[:, None]
    >>> model = ns.gp.train(ns.zoo.mlp(2), x, np.sin(3 * x[:, 0]))
    >>> bool(abs(model.predict(x).mean - np.sin(3 * x[:, 0])).max() < 1e-6)
    True
    >>> before, after = model.loss([0.0, 1e4])
    >>> bool(after < before / 100)
    True
    """
    if isinstance(net, TangentNetwork):
        raise DataError(f"{net!r} is trained", remedy="Give the network itself; its tangent is made here.")
    arguments.choice("layers", layers, ("all", "last"))
    rate = arguments.number("rate", rate, above=0)
    plain = kernel(net, **options)
    moving = ntk(net, rates, **options) if layers == "all" else plain
    inputs = as_inputs(x)
    sizes = output_sizes(net, inputs)
    table, flat = arrange(y, sizes)
    level = float(check_noise(noise))
    if level == 0:
        check_consistent(inputs, sizes, table)
    prior = plain.evaluate(inputs)
    theta = prior if layers == "last" else moving.evaluate(inputs)
    jitter = needed_jitter(np.diagonal(theta.value), theta.bound.rms)
    warn_of_jitter(jitter, level, np.diagonal(theta.value))
    nugget = max(level, jitter)
    exact = prior.plan.exact and theta.plan.exact
    _check_time(time)
    values = prior.value, theta.value
    return Trained(plain, inputs, sizes, table, flat, moving, rate, time, nugget, exact, *values)


def _check_time(time: float) -> float:
    remedy = "A time of training is a number >= 0, or infinity."
    return arguments.number("time", time, least=0, infinite=True, remedy=remedy)
