"""Small instances of every zoo network, and what it means that two estimates agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import netsor as ns
from netsor import zoo
from netsor.limits import Result

__all__ = [
    "BATCHES",
    "CASES",
    "GRAPH",
    "IMAGES",
    "SAMPLED",
    "SAMPLED_ERROR",
    "SEQUENCES",
    "VECTORS",
    "Case",
    "assert_agree",
    "assert_simulated",
    "by_name",
    "largest_error",
    "scale_of",
]

RNG = np.random.default_rng(3)
VECTORS = RNG.standard_normal((3, 4))
SEQUENCES = RNG.standard_normal((4, 3, 3))
BATCHES = RNG.standard_normal((2, 5, 6))
IMAGES = RNG.standard_normal((2, 2, 3, 2))
GRAPH = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])  # the last node has no edge
LONG, SHORT = SEQUENCES[0], SEQUENCES[1][:2]


def hinge(x: np.ndarray) -> np.ndarray:
    """A function of the user's own, with kinks at 0 and 1."""
    return np.abs(x) + np.maximum(x - 1.0, 0.0)


@dataclass(frozen=True)
class Case:
    """A network on a set of inputs."""

    name: str
    net: ns.Network
    inputs: list[Any]


def _mlp(name: str, phi: Any, depth: int = 2) -> Case:
    return Case(f"mlp, {name}", zoo.mlp(depth, phi, var_w=1.5, var_b=0.3), list(VECTORS))


def _cnn(name: str, **options: Any) -> Case:
    return Case(f"cnn, {name}", zoo.cnn(2, **options), list(IMAGES))


def _transformer(name: str, inputs: list[Any], **options: Any) -> Case:
    return Case(f"transformer, {name}", zoo.transformer(**options), inputs)


CASES = [
    _mlp("relu", ns.relu, depth=3),
    _mlp("erf", ns.erf),
    _mlp("gelu", ns.gelu),
    _mlp("tanh", ns.tanh),
    _mlp("silu", ns.silu),
    _mlp("user", lambda h: ns.nonlin(hinge, h)),
    Case("simple_rnn", zoo.simple_rnn(var_w=1.3, var_b=0.2), [LONG, SHORT]),
    Case("gru", zoo.gru(var_w=[1.5, 1.0, 2.0], mean_b=[0.5, 0.0, -0.5]), [LONG, SHORT]),
    Case("gru, random state", zoo.gru(var_h0=0.5), [SHORT]),
    Case("lstm", zoo.lstm(var_w=[1.0, 2.0, 1.5, 1.0], mean_b=[0.0, 1.0, 0.5, 0.0]), [SHORT, LONG[:2]]),
    Case("lstm, three tokens", zoo.lstm(), [LONG]),
    Case("batchnorm_mlp", zoo.batchnorm_mlp(1), list(BATCHES[:, :4])),
    Case("batchnorm_mlp, deep", zoo.batchnorm_mlp(2, ns.abs), [BATCHES[0][:4], BATCHES[1]]),
    Case("batchnorm_mlp, tanh", zoo.batchnorm_mlp(1, ns.tanh), [BATCHES[0][:4], BATCHES[1]]),
    _cnn("gap"),
    _cnn("flatten", readout="flatten"),
    _cnn("strided", stride=2),
    _cnn("dilated", dilation=(1, 2)),
    _cnn("circular", padding="circular"),
    _cnn("valid", kernel=(1, 2), padding="valid"),
    _cnn("mean pool", kernel=2, pool="mean"),
    _cnn("max pool", kernel=2, pool="max"),
    Case("resnet", zoo.resnet(2, var_w=0.5), list(VECTORS)),
    Case("densenet", zoo.densenet(3), list(VECTORS)),
    Case("graph_conv", zoo.graph_conv(2), [(LONG, GRAPH), (SHORT, ns.normalized_adjacency(GRAPH[:2, :2]))]),
    Case(
        "graph_conv, mean",
        zoo.graph_conv(2, readout="mean", var_b=0.2),
        [(LONG, GRAPH), (SEQUENCES[2], ns.normalized_adjacency(GRAPH))],
    ),
    Case("layernorm_mlp", zoo.layernorm_mlp(2), list(VECTORS)),
    Case("layernorm_mlp, phi first", zoo.layernorm_mlp(2, order="phi-norm"), list(VECTORS)),
    _transformer("tied", [LONG, SHORT]),
    _transformer("not causal", [LONG], causal=False, skip="identity"),
    _transformer("untied", [LONG], tied=False, causal=False, skip="identity", var_u=2.0),
    _transformer("two heads", [SHORT], heads=2),
    _transformer("two heads, untied", [SHORT], heads=2, tied=False, var_u=2.0),
    _transformer("two layers", [SHORT], depth=2),
]
SAMPLED = {"gru", "lstm", "lstm, three tokens", "batchnorm_mlp, tanh", "cnn, max pool"}


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


# Standard errors come from sixteen repeats. In units of them a difference has Student's distribution with
# fifteen degrees of freedom, of which one in a million is beyond 7.9 (of a Gaussian's, beyond 4.9). Those of
# a whole kernel are about the same, so we do not believe an entry that claims to be better than their root
# mean square. A wrong formula is off by hundreds of units.
SIGMAS = 8.0
ROUNDING = 1e-12  # of the largest entry


# An error that is larger than need be would agree with anything. Without a tolerance the engine aims at 5e-4
# of the largest entry with 4096 points and 16 repeats, and errors fall at least like the root of both; we
# allow ten times that. Exact methods reach eight digits or more.
SAMPLED_ERROR, POINTS, REPEATS = 5e-3, 2**12, 16
EXACT_ERROR = 1e-7


def largest_error(found: Result) -> float:
    """What the errors of a result may be at most, in units of the largest entry."""
    if found.plan.sampling is None:
        return EXACT_ERROR
    drawn = found.plan.sampling.points * found.plan.sampling.repeats
    return SAMPLED_ERROR * max(1.0, np.sqrt(POINTS * REPEATS / drawn))


def assert_agree(
    found: Result | tuple[Any, Any], other: Any, other_error: Any = 0.0, *, largest: float | None = None
) -> None:
    """Two estimates of the same numbers differ as their errors allow, and the first error is not too large.

    A result brings its error, and its plan says how large that may be (`largest_error`). For numbers with
    their errors, and where more is expected, `largest` says it, in units of the largest entry.
    """
    if largest is None:
        assert isinstance(found, Result), "how large may the error be?"
        largest = largest_error(found)
    value, error = (found.value, found.error) if isinstance(found, Result) else found
    value, other, error = np.asarray(value, float), np.asarray(other, float), np.asarray(error, float)
    assert value.shape == other.shape
    assert np.isfinite(value).all()
    assert np.isfinite(other).all()
    size = max(1e-300, np.abs(other).max(initial=0.0))
    allowed = SIGMAS * (_pooled(error) + _pooled(other_error)) + ROUNDING * size
    excess = np.abs(value - other) / allowed
    assert np.all(excess <= 1), f"off by {excess.max():.2f} of what is allowed:\n{value}\n{other}"
    assert np.all(error <= largest * size), f"an error of {error.max() / size:.1e}, expected {largest:.1e}"


def _pooled(error: Any) -> np.ndarray:
    """The errors of a kernel, none below their root mean square; others as they are."""
    error = np.asarray(error, float)
    return np.maximum(error, np.sqrt(np.mean(error**2))) if error.ndim == 2 else error


def scale_of(kernel: np.ndarray) -> np.ndarray:
    """sqrt(K_ii K_jj): the natural unit of each entry."""
    deviations = np.sqrt(np.diagonal(kernel))
    return np.outer(deviations, deviations)


# The kernel of one random network given its body differs from the limit by a random part of order
# 1/sqrt(n), and its average over networks by a bias of order 1/n: the fluctuations of earlier layers enter
# the later ones through the curvature of the expectations. The average over S networks must therefore
# agree to a few standard errors, which we measure, plus the error of the limit, plus c/n. With 1,000
# networks of width 50 we find |c| below 2 in units of sqrt(K_ii K_jj) for all networks here, and below 1
# for most of them; the random part of one network is below 5/sqrt(n), mostly 1 to 2.5. A test costs n^2 S
# and its standard error falls like 1/sqrt(n S), so many narrow networks say more in the same time than a few
# wide ones, until the bias is as large as the error.
BIAS = 2.0
FLUCTUATION = 6.0  # 5.4 where a squared relu has heavy tails


def assert_simulated(case: Case, width: int = 128, networks: int = 500, *, seed: int = 0) -> None:
    """The mean kernel of finite networks agrees with the limit: each entry to 5 standard errors, all to 3."""
    limit = ns.kernel(case.net).evaluate(case.inputs)
    kernels = ns.empirical_kernel(case.net, case.inputs, width, networks, seed=seed, dtype=np.float32)
    scale = scale_of(limit.value)
    spread = kernels.std(axis=0, ddof=1) / np.sqrt(networks)
    assert np.all(spread <= FLUCTUATION / np.sqrt(width * networks) * scale.max()), "it says little"
    gap = np.abs(kernels.mean(axis=0) - limit.value)
    beyond = np.maximum(0.0, gap - SIGMAS * limit.error - (BIAS / width + 1e-5) * scale)
    ratio = np.divide(beyond, spread, out=np.where(beyond > 0, np.inf, 0.0), where=spread > 0)
    assert np.all(ratio <= 5), f"off by {ratio.max():.2f} standard errors"
    assert np.sqrt(np.mean(ratio**2)) <= 3, (
        f"all entries are off, by {np.sqrt(np.mean(ratio**2)):.2f} of them"
    )
