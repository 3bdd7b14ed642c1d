"""One kernel in many threads, after a fork, and interrupted in the middle: in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import netsor as ns

RNG = np.random.default_rng(0)
CASES = {
    "mlp": (ns.zoo.mlp(depth=3), RNG.standard_normal((300, 10))),
    "tanh": (ns.zoo.mlp(depth=2, phi=ns.tanh), RNG.standard_normal((40, 5))),
    "sentences of different lengths": (
        ns.zoo.simple_rnn(),
        [RNG.standard_normal((t, 3)) for t in (3, 5, 4)],
    ),
    "gru": (ns.zoo.gru(), [RNG.standard_normal((t, 3)) for t in (3, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_eight_threads_share_a_kernel(name: str) -> None:
    net, x = CASES[name]
    wanted = ns.kernel(net).evaluate(x)
    K = ns.kernel(net)
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda _: K(x), range(16)))
        results = list(pool.map(lambda _: K.evaluate(x), range(8)))
    scale = np.abs(wanted.value).max()
    for value in [*values, *(result.value for result in results)]:
        np.testing.assert_allclose(value, wanted.value, rtol=0, atol=1e-14 * scale)
    for result in results:
        np.testing.assert_allclose(result.error, wanted.error, rtol=1e-6, atol=1e-14 * scale)


FORK = """
import os, sys
import numpy as np, netsor as ns
x = np.random.default_rng(0).standard_normal((600, 20))
K, G = ns.kernel(ns.zoo.mlp(depth=3)), ns.kernel(ns.zoo.gru(), points=256)
t = [x[:3], x[:4]]
before = K(x), K(x), G(t)
child = os.fork()
if child == 0:
    same = np.array_equal(K(x), before[1]) and np.array_equal(G(t), before[2])
    os._exit(0 if same else 7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert np.array_equal(K(x), before[1])
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork here")
def test_a_fork_after_use() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


LONG = """
import signal
import numpy as np, netsor as ns
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
x = np.random.default_rng(0)
print("begins", flush=True)
{call}
"""
CALLS = {
    "tiles": "ns.kernel(ns.zoo.mlp(depth=60))(x.standard_normal((9000, 20)))",
    "samples": "ns.kernel(ns.zoo.gru(), points=2**15)([x.standard_normal((30, 3)) for _ in range(4)])",
    "plan": "ns.kernel(ns.zoo.mlp(depth=30000)).plan(x.standard_normal((2, 3)))",
}


@pytest.mark.parametrize(
    "name", ["tiles", *(pytest.param(n, marks=pytest.mark.slow) for n in CALLS if n != "tiles")]
)
def test_an_interrupt_stops_it(name: str) -> None:
    code = LONG.format(call=CALLS[name])
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "begins\n"
    time.sleep(2.0)
    assert run.poll() is None, "too short to be interrupted"
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
