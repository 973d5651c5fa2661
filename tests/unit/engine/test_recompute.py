"""Recomputation: the same numbers and the same random stream, with less stored."""

import numpy as np
import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
import pytest

from erniecore.engine.training.recompute import GRANULARITIES, recompute, set_recompute
from erniecore.errors import ConfigError


class Block(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = paddle.nn.Linear(8, 8), 0

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return F.dropout(F.gelu(self.linear(x)), 0.5) * scale, x.sum()


def gradients(block, x, run):
    paddle.seed(5)
    block.clear_gradients()
    y, total = run(block, x, scale=3.0)
    after_forward = float(paddle.rand([1]).sum())
    ((y * y).sum() + total).backward()
    return block.linear.weight.grad.numpy().copy(), after_forward, float(paddle.rand([1]).sum())


def plain(function, *args, **kwargs):
    return function(*args, **kwargs)


@pytest.mark.parametrize("frozen_input", [False, True])
def test_gradients_and_random_stream_are_bit_equal(frozen_input, caplog):
    block, x = Block(), paddle.randn([4, 8])
    x.stop_gradient = frozen_input
    expected = gradients(block, x, plain)
    assert block.calls == 1
    found = gradients(block, x, recompute)
    assert block.calls == 3
    assert (expected[0] == found[0]).all()
    assert expected[1:] == found[1:]
    assert caplog.records == []


def test_without_gradients_it_is_a_plain_call():
    block = Block()
    with paddle.no_grad():
        y, _ = recompute(block, paddle.randn([2, 8]))
    assert y.shape == [2, 8]
    assert block.calls == 1


def test_gradients_accumulate_over_two_uses():
    block, x = Block(), paddle.randn([4, 8])
    once = gradients(block, x, recompute)[0]
    paddle.seed(5)
    y, total = recompute(block, x, scale=3.0)
    ((y * y).sum() + total).backward()
    np.testing.assert_allclose(block.linear.weight.grad.numpy(), 2 * once, rtol=1e-5)


class Model:
    def __init__(self):
        self.granularity = ""

    def set_recompute(self, granularity):
        self.granularity = granularity


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_granularity_reaches_the_model(granularity):
    model = Model()
    set_recompute(model, granularity)
    assert model.granularity == granularity


def test_model_that_cannot_recompute_is_refused_only_when_asked_to():
    set_recompute(object(), "none")
    with pytest.raises(ConfigError, match=r"train\.recompute"):
        set_recompute(object(), "full")


def test_unknown_granularity_is_refused():
    with pytest.raises(ConfigError, match="atention"):
        set_recompute(Model(), "atention")


def peak(run):
    from paddle.base import core

    blocks, x = [Block() for _ in range(6)], paddle.randn([4096, 8])
    core.host_memory_stat_reset_peak_value("Allocated", 0)
    before = core.host_memory_stat_current_value("Allocated", 0)
    for block in blocks:
        x, _ = run(block, x)
    x.sum().backward()
    return core.host_memory_stat_peak_value("Allocated", 0) - before


def test_less_memory_is_in_use():
    assert peak(recompute) < 0.75 * peak(plain)
