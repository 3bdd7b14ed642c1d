"""A search for variances ends where nothing is gained any more, and names those that ended at the bounds."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from netsor.errors import NetsorWarning

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 3))
NOISE = RNG.standard_normal(20)  # targets that have nothing to do with the inputs
AT_BOUNDS = "largest at the bounds of"


@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
@pytest.mark.parametrize("method", ["jax", "differences", "nelder-mead"])
def test_a_flat_likelihood_ends_the_search(method: str) -> None:
    """From noise no variance can be learned: the optimum is a plateau of many dimensions.

    The largest likelihood is that of a noise equal to the mean square, in closed form.
    """
    if method == "jax":
        pytest.importorskip("jax")
    values: list[float] = []
    found = ns.gp.tune(
        ns.kernel(ns.zoo.mlp(2)), X, NOISE, method=method, progress=lambda _, value: values.append(value)
    )
    best = -10 * (np.log(2 * np.pi * np.mean(NOISE**2)) + 1)
    assert found.converged
    assert found.value == pytest.approx(best, abs=2e-2)
    reached = next(k for k, value in enumerate(values) if value > max(values) - 1e-4)
    assert len(values) - reached < (300 if method == "nelder-mead" else 30)


@pytest.mark.parametrize("method", ["differences", "nelder-mead"])
def test_variances_at_the_bounds_are_named(method: str) -> None:
    """A linear function wants a relu network without a kink in sight: a bias without end."""
    with pytest.warns(NetsorWarning, match=f"(?s){AT_BOUNDS}.*b1 = .*fixed=") as seen:
        ns.gp.tune(
            ns.kernel(ns.zoo.mlp(1)),
            X,
            X @ [1.0, 2.0, 3.0],
            method=method,
            bounds=(1e-2, 1e2),
            progress=False,
        )
    assert seen[0].filename == __file__


def test_an_optimum_inside_is_silent_and_so_is_data_without_noise() -> None:
    """Warnings are errors in this suite."""
    x = np.linspace(-1, 1, 10)[:, None]
    found = ns.gp.tune(
        ns.kernel(ns.zoo.mlp(1, ns.erf)), x, np.sin(2 * x[:, 0]), fixed=["W1", "b1"], progress=False
    )
    assert found.noise < 2e-5  # at the lowest bound: there is none
    assert 1e-3 < found.params["v"] < 1e3
