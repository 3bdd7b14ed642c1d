"""Sampled limits in little memory: the workspace keeps to its bound; an interrupt leaves nothing behind."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from effort import peak
from limit_cases import assert_agree
from netsor import zoo
from netsor.limits.on_numpy import recording
from netsor.limits.sampling import chunks
from netsor.limits.sampling import kernel as sampled_kernel
from netsor.limits.sampling.kernel import Averages

RNG = np.random.default_rng(5)
TOKENS = RNG.standard_normal((10, 8, 3))
TWO = [TOKENS[0][:4], TOKENS[1][:3]]


def peak_bytes(kernel: Any, inputs: Any) -> int:
    kernel(inputs)  # modules that are loaded at the first run do not count
    return peak(lambda: kernel(inputs))


@pytest.mark.parametrize("net", [zoo.gru(), zoo.lstm()], ids=["GRU", "LSTM"])
def test_the_workspace_keeps_to_its_bound(net: ns.Network) -> None:
    free = ns.kernel(net, points=2**12, repeats=4)
    wanted = free(TOKENS)
    assert peak_bytes(free, TOKENS) > 40 * 2**20
    kernel = ns.kernel(net, points=2**12, repeats=4, memory=22 * 2**20)
    assert peak_bytes(kernel, TOKENS) < 22 * 2**20 + wanted.nbytes
    np.testing.assert_allclose(kernel(TOKENS), wanted, rtol=0, atol=1e-12 * wanted.max())


def test_memory_of_repeats_is_free_at_once() -> None:
    """Not when the garbage collector comes: engine, sampler and tables point at each other."""
    gc.disable()
    try:
        kernels = (ns.kernel(zoo.gru(), points=2**10, repeats=n, memory=2**23) for n in (2, 5))
        few, many = (peak_bytes(kernel, TOKENS) for kernel in kernels)
    finally:
        gc.enable()
    assert many < 1.1 * few


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ns.NetsorError, match=r"needs a workspace of [\d.]+ MB") as caught:
        ns.kernel(zoo.gru(), memory=2**14)(TOKENS)
    assert "memory=16384 allows 0.0156 MB" in str(caught.value)
    assert "fewer or shorter inputs" in str(caught.value)


def test_samples_of_networks_with_index_axes() -> None:
    """Where blocks are drawn pair by pair: fewer repeats at a time, then a refusal."""
    net, x = zoo.cnn(2, kernel=2, pool="max"), RNG.standard_normal((2, 2, 3, 2))
    wanted = ns.kernel(net, points=2**8, repeats=4)(x)
    found = ns.kernel(net, points=2**8, repeats=4, memory=200_000)(x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * wanted.max())
    with pytest.raises(ns.NetsorError, match="needs a workspace of more than"):
        ns.kernel(net, points=2**8, repeats=4, memory=20_000)(x)


def test_limits_of_variables_in_little_memory() -> None:
    free, bound = (ns.limit(zoo.gru(), TOKENS[0], points=2**11, memory=m) for m in (None, 2**23))
    name = free.program.outputs[-1].terms[0].operand
    assert bound.moment(name, name) == pytest.approx(free.moment(name, name), rel=1e-12)


@pytest.mark.parametrize("net", [zoo.gru(), zoo.lstm()], ids=["GRU", "LSTM"])
@pytest.mark.parametrize(
    "inputs",
    [
        [TOKENS[0][:3]],
        TOKENS[:3, :1],
        [TOKENS[0][:1]],
        [np.repeat(TOKENS[0][:1], 4, axis=0), TOKENS[0][[0, 1, 0, 1]]],
        np.zeros((2, 3, 3)),
        [np.zeros((3, 3)), TOKENS[0][:3], np.zeros((2, 3))],
        [np.eye(3), np.eye(3)[::-1], np.eye(3)],
        [TOKENS[k][: k % 5 + 1] for k in range(8)],
    ],
    ids=["one", "length one", "one of length one", "repeated", "zeros", "some zeros", "units", "lengths"],
)
def test_special_inputs(net: ns.Network, inputs: Any) -> None:
    found = ns.kernel(net, points=2**11, repeats=4).evaluate(inputs)
    small = ns.kernel(net, points=2**11, repeats=4, memory=5 * 2**20)(inputs)
    size = np.abs(found.value).max()
    np.testing.assert_allclose(small, found.value, rtol=0, atol=1e-12 * size)
    every = ns.kernel(net, method="sample", points=2**11, seed=1).evaluate(inputs)
    assert_agree(found, every.value, every.error)
    assert np.linalg.eigvalsh(found.value).min() > -1e-12 * size


def test_no_variance_at_all() -> None:
    """Without biases and inputs all states are 0."""
    for net in (zoo.gru(var_b=0.0), zoo.lstm(var_b=0.0)):
        np.testing.assert_array_equal(ns.kernel(net, points=2**6)(np.zeros((2, 3, 3))), np.zeros((6, 6)))


# Progress and interrupts


def counting_bar(calls: list[Any], stop_after: int | None = None):
    @contextmanager
    def bar(progress: bool | None, total: int, title: str, *_: Any):
        assert progress is True

        def advance(*_: Any, **__: Any) -> None:
            calls.append(1)
            if len(calls) == stop_after:
                raise KeyboardInterrupt

        calls_before = len(calls)
        yield advance
        assert len(calls) - calls_before == total, "the bar ends where it should"

    return bar


@pytest.mark.parametrize("memory", [None, 3 * 2**20])
def test_progress_reaches_its_end(memory: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(sampled_kernel, "bar", counting_bar(calls))
    ns.kernel(zoo.gru(), points=2**9, repeats=6, memory=memory, progress=True)(TWO)
    assert calls


@pytest.mark.parametrize("memory", [None, 5 * 2**20])
@pytest.mark.parametrize("after", [1, 5])
def test_an_interrupt_leaves_no_threads(
    memory: int | None, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_kernel, "bar", counting_bar([], stop_after=after))
    for module in (chunks, recording):
        monkeypatch.setattr(module, "cores", lambda: 3)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        ns.kernel(zoo.gru(), points=2**10, memory=memory, progress=True)(TOKENS[:4])
    assert threading.active_count() == before


# Averages


def test_averages_of_some_at_a_time() -> None:
    stack = 1e6 + RNG.standard_normal((7, 2, 3))
    found = Averages()
    for part in (stack[:1], stack[1:5], stack[5:]):
        found.add(part)
    np.testing.assert_allclose(found.mean, stack.mean(0), rtol=1e-14)
    student = stats.t.ppf(stats.norm.cdf(2.0), 6) / 2.0
    np.testing.assert_allclose(found.error, student * stack.std(0, ddof=1) / np.sqrt(7), rtol=1e-9)
