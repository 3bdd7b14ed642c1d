"""The kernels of netsor beside those of neural-tangents, where both can compute them.

pip install netsor neural-tangents 'jax==0.4.30' 'jaxlib==0.4.30' 'tf2jax==0.3.6' 'numpy<2.3'
python examples/comparison/compare_neural_tangents.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import neural_tangents
import numpy as np
from neural_tangents import stax

import netsor as ns

jax.config.update("jax_enable_x64", True)
RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((6, 10))
IMAGES = RNG.standard_normal((4, 6, 6, 3))
READOUT = stax.Dense(1, W_std=1.0, b_std=0.0)
LAYERS = ("BatchNorm", "MaxPool", "RNN", "GRU", "LSTM")


def perceptron(phi: Any) -> Any:
    layer = (stax.Dense(1, W_std=1.2, b_std=0.5), phi)
    return stax.serial(*layer, *layer, *layer, READOUT)


def convolution(*end: Any, between: tuple[Any, ...] = ()) -> Any:
    layer = (stax.Conv(1, (3, 3), padding="SAME", W_std=1.2, b_std=0.5), stax.Relu())
    return stax.serial(*layer, *between, *layer, *end, READOUT)


def residual(blocks: int) -> Any:
    branch = stax.serial(stax.Dense(1, W_std=1.0, b_std=1.0), stax.Relu())
    block = (stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
    return stax.serial(stax.Dense(1, W_std=1.0, b_std=0.0), *(block * blocks), READOUT)


def rows() -> list[tuple[str, Callable[[], Any], ns.Network, np.ndarray]]:
    var = {"var_w": 1.44, "var_b": 0.25}
    mlp, cnn = ns.zoo.mlp, ns.zoo.cnn
    return [
        ("mlp, relu", lambda: perceptron(stax.Relu()), mlp(3, ns.relu, **var), VECTORS),
        ("mlp, erf", lambda: perceptron(stax.Erf()), mlp(3, ns.erf, **var), VECTORS),
        ("mlp, gelu", lambda: perceptron(stax.Gelu()), mlp(3, ns.gelu, **var), VECTORS),
        ("mlp, tanh, degree 25", lambda: perceptron(_tanh(25)), mlp(3, ns.tanh, **var), VECTORS),
        ("mlp, tanh, degree 100", lambda: perceptron(_tanh(100)), mlp(3, ns.tanh, **var), VECTORS),
        ("cnn, average pool", lambda: convolution(stax.GlobalAvgPool()), cnn(2, **var), IMAGES),
        ("cnn, flatten", lambda: convolution(stax.Flatten()), cnn(2, readout="flatten", **var), IMAGES),
        ("cnn, mean pool", _mean_pool, cnn(2, pool="mean", **var), IMAGES),
        ("resnet, 1 block", lambda: residual(1), ns.zoo.resnet(1), VECTORS),
        ("resnet, 2 blocks", lambda: residual(2), ns.zoo.resnet(2), VECTORS),
    ]


def _tanh(degree: int) -> Any:
    return stax.ElementwiseNumerical(jax.numpy.tanh, deg=degree)


def _mean_pool() -> Any:
    pool = stax.AvgPool((2, 2), (2, 2))
    return convolution(stax.GlobalAvgPool(), between=(pool,))


def main() -> None:
    print(f"neural-tangents {neural_tangents.__version__}, jax {jax.__version__}, float64\n")
    print(f"{'network':22} {'largest difference':>20}  {'netsor: error':>14}  distance to simulation: both")
    for name, make, net, x in rows():
        ours = ns.kernel(net).evaluate(x)
        try:
            theirs = np.asarray(make()[2](x, None, "nngp"))
        except Exception as error:
            print(f"{name:22} neural-tangents: {type(error).__name__}: {str(error).splitlines()[0][:70]}")
            continue
        gap = np.abs(theirs - ours.value).max() / np.abs(ours.value).max()
        error = ours.error.max() / np.abs(ours.value).max()
        mean = ns.empirical_kernel(net, x, width=512, samples=200, seed=0).mean(0)
        far = [np.linalg.norm(mean - k) / np.linalg.norm(k) for k in (ours.value, theirs)]
        print(f"{name:22} {gap:20.1e}  {error:14.1e}  netsor {far[0]:.4f}, neural-tangents {far[1]:.4f}")
    missing = [layer for layer in LAYERS if not hasattr(stax, layer)]
    print(f"\nnames that neural_tangents.stax does not have: {', '.join(missing)}")


if __name__ == "__main__":
    main()
