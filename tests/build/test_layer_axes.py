"""Layers act on the last index axes: one batch (B, H, W, C) equals its images one by one.

The simulations below share their weights, so the two sides are equal to rounding, at any width.
"""

from collections.abc import Callable

import numpy as np
import pytest

import netsor as ns

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((3, 5, 4, 2))
SEQUENCES = RNG.standard_normal((3, 6, 2))
GRAPH = ns.normalized_adjacency([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [0, 1, 0, 0]])
U, V, W, v = ns.Matrix(), ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)
pixels, conv2, conv1, conv32 = (
    ns.Conv2d(1, var_b=0.3),
    ns.Conv2d(3, var_b=0.1),
    ns.Conv1d(3),
    ns.Conv2d((3, 2)),
)
graph = ns.GraphConv(1.0, 0.1)

IMAGE_LAYERS: dict[str, Callable] = {
    "dense": ns.Dense(1.0, 0.5),
    "conv2d": ns.Conv2d(3, var_b=0.1),
    "conv2d of a block": lambda x: conv2(ns.relu(U @ x)),
    "conv2d of a convolution": lambda x: conv32(ns.tanh(pixels(x))),
    "conv2d, valid": ns.Conv2d((3, 2), padding="valid"),
    "conv2d, circular, dilated": ns.Conv2d(2, dilation=2, padding="circular"),
    "conv2d, stride": ns.Conv2d(3, stride=2),
    "conv2d, padding 1": ns.Conv2d(3, stride=2, padding=1),
    "conv2d, padding by axis": ns.Conv2d(3, padding=(2, 0)),
    "max_pool": lambda x: ns.max_pool(pixels(x), 2),
    "max_pool of a product": lambda x: ns.max_pool(ns.relu(U @ x), 2),
    "max_pool, same": lambda x: ns.max_pool(pixels(x), 3, 2, "same"),
    "max_pool, padding 1": lambda x: ns.max_pool(pixels(x), 3, 2, 1),
    "max_pool, width only": lambda x: ns.max_pool(pixels(x), (2,)),
    "mean_pool": lambda x: ns.mean_pool(pixels(x), (2, 1)),
    "mean_pool, same": lambda x: ns.mean_pool(ns.relu(pixels(x)), 2, 1, "same"),
    "mean_pool, padding 1": lambda x: ns.mean_pool(ns.relu(pixels(x)), 2, 1, 1),
    "global_mean_pool": lambda x: ns.global_mean_pool(ns.relu(pixels(x))),
    "global_max_pool": lambda x: ns.global_max_pool(pixels(x)),
    "upsample": lambda x: ns.upsample(ns.relu(pixels(x)), 2),
    "pad": lambda x: ns.pad(ns.relu(pixels(x)), ((1, 0), (0, 2))),
    "flatten": lambda x: W @ ns.flatten(ns.relu(pixels(x)), dims=2),
    "layernorm": lambda x: ns.layernorm(pixels(x)),
    "max_pool of data": lambda x: U @ ns.max_pool(x, 2),
    "mean_pool of data": lambda x: U @ ns.mean_pool(x, 2, 1, 1),
    "upsample of data": lambda x: U @ ns.upsample(x, 2),
    "global_mean_pool of data": lambda x: U @ ns.global_mean_pool(x),
    "pad of data": lambda x: U @ ns.pad(x, ((1, 2),)),
    "flatten of data": lambda x: ns.tanh(V @ ns.flatten(x, dims=2)),
    "pool of a pool": lambda x: ns.mean_pool(ns.max_pool(pixels(x), 2), (2, 1)),
}
SEQUENCE_LAYERS: dict[str, Callable] = {
    "conv1d": ns.Conv1d(3, var_b=0.2),
    "conv1d, padding 2": ns.Conv1d(3, padding=2),
    "conv1d of a block": lambda x: conv1(ns.erf(U @ x)),
    "max_pool": lambda x: ns.max_pool(ns.relu(conv1(x)), 2),
    "mean_pool": lambda x: ns.mean_pool(conv1(x), 2),
    "upsample": lambda x: ns.upsample(conv1(x), 2),
    "global_mean_pool": lambda x: ns.global_mean_pool(ns.relu(conv1(x))),
    "global_max_pool": lambda x: ns.global_max_pool(U @ x, dims=1),
    "attention": ns.Attention(causal=True),
    "attention, two heads": ns.Attention(heads=2, tied=True, skip=True),
    "graph": lambda x: graph(x[..., :4, :], GRAPH),
    "flatten": lambda x: W @ ns.flatten(ns.tanh(conv1(x)), dims=1),
}


def outputs(net: Callable, inputs: np.ndarray) -> np.ndarray:
    return ns.simulate(ns.network(net), list(inputs), width=16, samples=2, seed=0)


@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_a_batch_of_images_is_its_images(name: str) -> None:
    layer = IMAGE_LAYERS[name]

    def net(x):
        return v @ ns.tanh(layer(x))

    alone = outputs(net, IMAGES)
    assert np.allclose(outputs(net, IMAGES[None]), alone, atol=1e-12)
    further = np.stack([IMAGES[:2], IMAGES[1:]])[None]  # two axes in front
    both = np.concatenate([alone.reshape(2, 3, -1)[:, :2], alone.reshape(2, 3, -1)[:, 1:]], axis=1)
    assert np.allclose(outputs(net, further), both.reshape(2, -1), atol=1e-12)


@pytest.mark.parametrize("name", SEQUENCE_LAYERS)
def test_a_batch_of_sequences_is_its_sequences(name: str) -> None:
    layer = SEQUENCE_LAYERS[name]

    def net(x):
        return v @ ns.tanh(layer(x))

    assert np.allclose(outputs(net, SEQUENCES[None]), outputs(net, SEQUENCES), atol=1e-12)


@pytest.mark.parametrize("name", ["conv2d of a convolution", "max_pool", "mean_pool, padding 1", "flatten"])
def test_the_kernel_of_a_batch_is_that_of_its_images(name: str) -> None:
    layer = IMAGE_LAYERS[name]
    K = ns.kernel(ns.network(lambda x: v @ layer(x)))
    images = IMAGES[:2, :3, :2]
    batch, alone = K.evaluate(images[None]), K.evaluate(list(images))
    scale = np.sqrt(np.outer(np.diagonal(alone.value), np.diagonal(alone.value)))
    assert np.all(np.abs(batch.value - alone.value) <= 4 * (batch.error + alone.error) + 1e-12 * scale)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "padding"), [(3, 1, 1, 1), (3, 2, 1, 1), (2, 1, 2, 3), (4, 3, 1, 2)]
)
def test_padding_by_a_number_counts_as_in_pytorch(kernel, stride, dilation, padding) -> None:
    """Output o reads o stride + j dilation - padding: floor((L + 2 p - d (k - 1) - 1) / s) + 1 outputs."""
    x = SEQUENCES[0]
    conv = ns.Conv1d(kernel, stride, dilation, padding)
    program = ns.program(ns.network(lambda x: v @ conv(x)), x)
    weights = ns.simulation.draw(program, {"n": 3}, np.random.default_rng(1))
    out = ns.simulation.forward(program, weights, keep=True)[program.outputs[0].terms[0].operand].array
    w = next(weights[s.name] for s in program.inputs if s.type.index == (kernel,))
    count = (len(x) + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    padded = np.pad(x, ((padding, padding), (0, 0)))
    plain = [sum(w[j] @ padded[o * stride + j * dilation] for j in range(kernel)) for o in range(count)]
    assert np.allclose(out, plain)


def test_mean_pool_with_a_number_counts_its_zeros() -> None:
    """As PyTorch's average pooling does."""
    conv = ns.Conv1d(1)
    net = ns.network(lambda x: v @ ns.mean_pool(conv(x), 2, 2, 1))
    padded = ns.network(lambda x: v @ ns.mean_pool(ns.pad(conv(x), ((1, 1),)), (2,)))
    x = SEQUENCES[:1]
    assert np.allclose(ns.simulate(net, x, 8, seed=0), ns.simulate(padded, x, 8, seed=0))


def test_pools_of_data_leave_the_channels_alone() -> None:
    image = IMAGES[0]
    pooled = image[:4].reshape(2, 2, 2, 2, 2).max((1, 3))
    net, plain = ns.network(lambda x: v @ (U @ ns.max_pool(x, 2))), ns.network(lambda x: v @ (U @ x))
    assert np.allclose(ns.simulate(net, [image], 8, seed=0), ns.simulate(plain, [pooled], 8, seed=0))


def test_joining_channels_does_not_join_pixels() -> None:
    net = ns.network(lambda x: v @ ns.concat([pixels(x), ns.relu(pixels(x))], axis=-1))
    with pytest.raises(ns.NetsorError, match=r"axis=-1\n[^\n]*\n[^\n]*\n.*axis=.width"):
        ns.program(net, IMAGES[0])


def test_flattening_a_batch_asks_how_much_of_it() -> None:
    with pytest.raises(ns.NetsorError, match="dims=2"):
        ns.program(ns.network(lambda x: v @ ns.flatten(pixels(x))), IMAGES)


def _plain_block(batch: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """A residual block with batchnorm in plain NumPy: kernels of random networks given the body.

    x = U image; y = x + conv2(relu(norm(conv1(x)))), norm over batch and pixels; mean over pixels.
    """
    _, height, width, m = batch.shape
    x = batch @ (rng.standard_normal((n, m)) / np.sqrt(m)).T

    def convolve(x: np.ndarray) -> np.ndarray:
        w = rng.standard_normal((3, 3, n, n)) / np.sqrt(9 * n)
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        out = np.zeros_like(x)
        for i in range(3):
            for j in range(3):
                out += padded[:, i : i + height, j : j + width] @ w[i, j].T
        return out

    h = convolve(x)
    h = (h - h.mean((0, 1, 2))) / h.std((0, 1, 2))
    y = (x + convolve(np.maximum(h, 0))).mean((1, 2))
    return y @ y.T / n


def test_a_residual_block_with_batchnorm_is_a_plain_simulation() -> None:
    first, second = ns.Conv2d(3), ns.Conv2d(3)

    @ns.network
    def block(batch):
        x = U @ batch
        h = ns.batchnorm(first(x), axis=(0, 1, 2))
        return v @ ns.global_mean_pool(x + second(ns.relu(h)))

    batch, n, count = RNG.standard_normal((4, 3, 3, 2)), 256, 60
    ours = ns.empirical_kernel(block, batch[None], width=n, samples=count, seed=0)
    rng = np.random.default_rng(1)
    plain = np.stack([_plain_block(batch, n, rng) for _ in range(count)])
    spread = np.sqrt((ours.var(0, ddof=1) + plain.var(0, ddof=1)) / count)
    z = (ours.mean(0) - plain.mean(0)) / spread
    assert np.sqrt(np.mean(z**2)) < 2
    assert np.abs(z).max() < 5
    limit = ns.kernel(block).evaluate(batch[None])
    z = (plain.mean(0) - limit.value) / np.hypot(plain.std(0, ddof=1) / np.sqrt(count), limit.error)
    bias = np.abs(limit.value).max() / n  # of a network of width n
    assert np.all(np.abs(plain.mean(0) - limit.value) < 5 * np.abs(limit.error) + 5 * spread + 2 * bias), z
