"""The 256 values and the update against numpy, what comes back from a checkpoint, and how near it is to AdamW."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_adamw8bit.config import AdamW8bitConfig
from erniecore_adamw8bit.dynamic import dequantized, quantized, values_of
from erniecore_adamw8bit.optimizer import AdamW8bit
from erniecore_adamw8bit.plugin import plugin

from erniecore.api.adamw import AdamW
from erniecore.api.optimizer import AdamWConfig, ParameterRole, ParameterSpec, ShardSpec, TrainedParameter

#: of values 0, 1, 126, 127, 128, 254, 255, and of 0, 1, 2, 3, 128, 254, 255
GOLDEN_SIGNED = [-0.99296875, -0.97890625, -5.5e-7, 0.0, 5.5e-7, 0.99296875, 1.0]
GOLDEN_UNSIGNED = [0.0, 3.25e-7, 7.75e-7, 2.125e-6, 0.110546875, 0.996484375, 1.0]
#: of all magnitudes
GOLDEN_SUMS = (75.105263, 75.105263)
EVERYTHING = {"min_size": 0, "embeddings": True}


def drawn(size, seed=0):
    """Numbers of many magnitudes, some zero."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=size) * 10.0 ** rng.uniform(-8, 2, size)
    return np.where(rng.random(size) < 0.1, 0.0, found).astype(np.float32)


def reference(x, block, signed):
    """What a block stands for, in float64 but for the division; nearest by looking at all 256 values."""
    values = values_of(signed).astype(np.float64)
    found = np.zeros(len(x))
    for start in range(0, len(x), block):
        part = x[start : start + block]
        scale = part[np.abs(part).argmax()]
        if abs(scale) >= 1e-30:
            ratios = (part / scale).astype(np.float64)
            nearest = np.abs(ratios[:, None] - values).argmin(axis=1)
            found[start : start + block] = values[nearest] * np.float64(scale)
    return found


def kept(x, block, signed):
    return dequantized(*quantized(paddle.to_tensor(x), block, signed=signed), block, signed=signed).numpy()


def test_values_are_those_of_bitsandbytes():
    """Both ends and the middle, and sums over all, of ``create_dynamic_map`` of bitsandbytes 0.50."""
    signed, unsigned = values_of(True), values_of(False)
    assert len(signed) == len(unsigned) == len(np.unique(signed)) == len(np.unique(unsigned)) == 256
    np.testing.assert_allclose(signed[[0, 1, 126, 127, 128, 254, 255]], GOLDEN_SIGNED, rtol=1e-6)
    np.testing.assert_allclose(unsigned[[0, 1, 2, 3, 128, 254, 255]], GOLDEN_UNSIGNED, rtol=1e-6)
    assert np.abs(signed).sum(dtype=np.float64) == pytest.approx(GOLDEN_SUMS[0], rel=1e-6)
    assert unsigned.sum(dtype=np.float64) == pytest.approx(GOLDEN_SUMS[1], rel=1e-6)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("size", "block"), [(1000, 64), (7, 16), (256, 256), (1, 16)])
def test_blocks_stand_for_the_nearest_values(size, block, signed):
    x = drawn(size) if signed else np.abs(drawn(size))
    np.testing.assert_allclose(kept(x, block, signed), reference(x, block, signed), rtol=1e-6, atol=0)


@pytest.mark.parametrize("signed", [True, False])
def test_what_was_quantized_once_comes_back_bit_for_bit(signed):
    """Also with extremes of either sign, of equal magnitude, all zero, very small, very large."""
    parts = [
        drawn(960),
        np.zeros(64),
        np.full(64, -3.0),
        [-2.0, 2.0, 1.999, -0.001] * 16,
        drawn(64) * 1e-32,
        drawn(64) * 1e30,
    ]
    x = np.concatenate(parts).astype(np.float32)
    x = x if signed else np.abs(x)
    once = kept(x, 64, signed)
    assert kept(once, 64, signed).tobytes() == once.tobytes()
    largest = np.abs(x.reshape(-1, 64)).max(axis=1)
    np.testing.assert_array_equal(np.abs(once.reshape(-1, 64)).max(axis=1), np.where(largest < 1e-30, 0, largest))


def made(kind, config, shape=(48, 40), dtype="float32"):
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    tensor = paddle.to_tensor(values).astype(dtype)
    tensor.stop_gradient = False
    given = TrainedParameter("w", tensor, ParameterRole.MATRIX, ShardSpec(shape), factor=0.5, weight_decay=0.1)
    return kind([given], config), given


def train(optimizer, given, steps, scale=0.7):
    for step in steps:
        gradient = np.random.default_rng(step + 10).normal(size=given.parameter.shape)
        given.parameter.grad = paddle.to_tensor((gradient * (step % 3 + 1)).astype(np.float32)).astype(
            given.parameter.dtype
        )
        optimizer.step(0.02, scale)
        optimizer.clear_gradients()


def test_the_update_is_adamw_on_the_kept_moments():
    """Five steps in float64 numpy, with the moments rounded to what a block can hold after each."""
    optimizer, given = made(AdamW8bit, AdamW8bitConfig(**EVERYTHING, block_size=64, beta2=0.95, epsilon=1e-6))
    weight = given.parameter.numpy().astype(np.float64).reshape(-1)
    first = second = np.zeros(weight.size)
    for step in range(1, 6):
        g = 0.7 * (np.random.default_rng(step + 10).normal(size=weight.size) * (step % 3 + 1)).astype(np.float32)
        first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
        corrected = first / (1 - 0.9**step), second / (1 - 0.95**step)
        weight = weight * (1 - 0.01 * 0.1) - 0.01 * corrected[0] / (np.sqrt(corrected[1]) + 1e-6)
        first, second = (reference(m.astype(np.float32), 64, signed) for m, signed in ((first, True), (second, False)))
    train(optimizer, given, range(1, 6))
    error = np.abs(given.parameter.numpy().reshape(-1) - weight)
    # a moment that lies between two values to the last bit may be rounded to the other one
    assert np.quantile(error, 0.99) < 1e-6
    assert error.max() < 2e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_stays_near_adamw(dtype):
    near, given = made(AdamW8bit, AdamW8bitConfig(**EVERYTHING), dtype=dtype)
    exact, other = made(AdamW, AdamWConfig(), dtype=dtype)
    start = given.parameter.astype("float32").numpy().copy()
    train(near, given, range(1, 31))
    train(exact, other, range(1, 31))
    moved = other.parameter.astype("float32").numpy() - start
    apart = given.parameter.astype("float32").numpy() - other.parameter.astype("float32").numpy()
    assert 0 < np.sqrt((apart**2).mean()) < 0.05 * np.sqrt((moved**2).mean())


def test_small_parameters_and_embeddings_are_adamw_bit_for_bit():
    for config, shape in ((AdamW8bitConfig(), (48, 40)), (AdamW8bitConfig(min_size=1921), (48, 40))):
        optimizer, given = made(AdamW8bit, config, shape)
        exact, other = made(AdamW, AdamWConfig(), shape)
        train(optimizer, given, range(1, 4))
        train(exact, other, range(1, 4))
        assert (given.parameter.numpy() == other.parameter.numpy()).all()
    assert not AdamW8bitConfig().quantizes((10_000, 64), ParameterRole.EMBEDDING)
    assert AdamW8bitConfig(embeddings=True).quantizes((10_000, 64), ParameterRole.EMBEDDING)


def test_offloaded_state_gives_the_same_bits():
    found = []
    for offload in (False, True):
        optimizer, given = made(AdamW8bit, AdamW8bitConfig(**EVERYTHING, offload=offload))
        train(optimizer, given, range(1, 5))
        found.append((given.parameter.numpy(), optimizer.state_tensors()["w.first"].numpy()))
    assert all((one == other).all() for one, other in zip(*found, strict=True))


def test_plan_of_a_large_matrix_is_two_bytes_and_scales():
    spec = ParameterSpec("w", (64, 100), "bfloat16", ParameterRole.MATRIX)
    (planned,) = plugin.ernie_optimizer_bytes(AdamW8bitConfig(), [spec])
    assert (planned.state, planned.master) == (2 * (6400 + 4 * 25), 4 * 6400)
