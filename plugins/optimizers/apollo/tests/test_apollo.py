"""The update against float64 numpy, what the projection depends on, and what is kept."""

import hashlib

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_apollo.apollo import Apollo
from erniecore_apollo.config import ApolloConfig
from erniecore_apollo.plugin import plugin
from erniecore_ops.random_values import Distribution, table_of

from erniecore.api import ConfigError
from erniecore.api.adamw import AdamW
from erniecore.api.optimizer import AdamWConfig, ParameterRole, ParameterSpec, ShardSpec, TrainedParameter
from erniecore.api.testing import SingleProcess

SHAPES = {"wide": (6, 10), "tall": (10, 6), "square": (6, 6), "experts": (3, 6, 8)}


def made(name, config, role=None, **spec):
    shape = SHAPES[name]
    tensor = paddle.to_tensor(np.random.default_rng(1).normal(size=shape).astype(np.float32))
    tensor.stop_gradient = False
    role = role or (ParameterRole.EXPERTS if len(shape) == 3 else ParameterRole.MATRIX)
    given = TrainedParameter(name, tensor, role, ShardSpec(shape, **spec), factor=0.5, weight_decay=0.1)
    return Apollo([given], config, SingleProcess()), given


def gradient(shape, step):
    """Of a size that jumps from step to step, so that its growth is limited."""
    return (np.random.default_rng(step + 5).normal(size=shape) * (1 + 3 * (step % 3))).astype(np.float32)


def train(optimizer, given, steps, scale=0.7):
    for step in steps:
        given.parameter.grad = paddle.to_tensor(gradient(given.parameter.shape, step))
        optimizer.step(0.02, scale)
        optimizer.clear_gradients()


def projection(name, shape, axis, config, step):
    """P of one period, by Philox and the table of normal quantiles."""
    period, side = (step - 1) // config.period, shape[axis]
    text = f"{config.seed}/apollo/{name}/{period}".encode()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    size = int(np.prod(shape[:-2])) * config.rank * side
    raw = np.random.Philox(counter=0, key=key).random_raw(-(-size // 4)).view("<u2")[:size]
    table = table_of(Distribution("normal", 0.0, 1.0)) / np.sqrt(config.rank)
    return table[raw].reshape(*shape[:-2], config.rank, side)


def reference(name, config, steps, scale=0.7):
    """Algorithm 1 in float64, one matrix after the other, with its columns as channels: others are transposed."""
    shape = SHAPES[name]
    axis = -2 if shape[-2] <= shape[-1] else -1
    weights = np.random.default_rng(1).normal(size=shape).astype(np.float32).astype(np.float64)
    found = []
    for index, start in enumerate(weights.reshape(-1, *shape[-2:])):
        weight = start if axis == -2 else start.T
        first = second = last = 0.0
        for step in steps:
            p = projection(name, shape, axis, config, step).reshape(-1, config.rank, shape[axis])[index]
            g = scale * gradient(shape, step).astype(np.float64).reshape(-1, *shape[-2:])[index]
            g = g if axis == -2 else g.T
            low = p @ g
            first, second = 0.9 * first + 0.1 * low, 0.999 * second + 0.001 * low**2
            direction = first / (np.sqrt(second) + 1e-8)
            along = 0 if config.scaling == "channel" else None
            update = g * np.linalg.norm(direction, axis=along) / (np.linalg.norm(low, axis=along) + 1e-8)
            norm = np.linalg.norm(update)
            shrink = max(norm / (last + 1e-8), config.growth) / config.growth if last else 1.0
            update, last = update / shrink, norm / shrink
            correction = config.factor * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weight = weight * (1 - 0.01 * 0.1) - 0.01 * correction * update
        found.append(weight if axis == -2 else weight.T)
    return np.stack(found).reshape(shape)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("settings", [{}, {"scaling": "tensor", "rank": 1, "factor": 11.3}])
def test_the_update_is_that_of_the_paper(name, settings):
    config = ApolloConfig(**{"rank": 3, "period": 2, "seed": 4, **settings})
    optimizer, given = made(name, config)
    train(optimizer, given, range(1, 6))
    expected = reference(name, config, range(1, 6))
    np.testing.assert_allclose(given.parameter.numpy(), expected, atol=3e-5 * config.factor)


@pytest.mark.parametrize(("growth", "expected"), [(1.01, 1.01), (1e9, 1.9 / 1.999**0.5)])
def test_the_growth_of_an_update_is_limited(growth, expected):
    """Adam of the same gradient twice: its moments grow by 1.9 and 1.999."""
    optimizer, given = made("wide", ApolloConfig(rank=3, growth=growth))
    norms = []
    for _ in range(2):
        given.parameter.grad = paddle.to_tensor(gradient([6, 10], 1))
        optimizer.step(0.02)
        norms.append(optimizer.state_tensors()["wide.norm"].item())
    assert norms[1] / norms[0] == pytest.approx(expected, rel=1e-4)


def test_matrices_of_no_more_than_the_rank_are_adamw_bit_for_bit():
    for config, role in ((ApolloConfig(rank=6), None), (ApolloConfig(rank=2), ParameterRole.EMBEDDING)):
        optimizer, given = made("wide", config, role)
        train(optimizer, given, range(1, 4))
        other = made("wide", ApolloConfig(), role)[1]
        adamw = AdamW([other], AdamWConfig())
        train(adamw, other, range(1, 4))
        assert (given.parameter.numpy() == other.parameter.numpy()).all()


def test_what_is_kept_is_of_the_rank():
    optimizer, _ = made("experts", ApolloConfig(rank=2))
    kept = {name: list(tensor.shape) for name, tensor in optimizer.kept_tensors().items()}
    assert kept == {
        "experts.first": [3, 2, 8],
        "experts.second": [3, 2, 8],
        "experts.norm": [3, 1, 1],
        "experts.projection": [3, 2, 6],
    }
    spec = ParameterSpec("w", (2048, 8192), "bfloat16", ParameterRole.MATRIX)
    (planned,) = plugin.ernie_optimizer_bytes(ApolloConfig(), [spec])
    assert planned.state == 4 * (2 * 256 * 8192 + 256 * 2048 + 1)


def test_experts_that_are_divided_are_refused():
    with pytest.raises(ConfigError, match="all experts on every rank"):
        made("experts", ApolloConfig(rank=2), axis=0, count=2)
