"""The moving average: its formula, and evaluation with it without a trace."""

import numpy as np
import paddle  # noqa: TID253
import pytest

from erniecore.engine.training.ema import Ema
from erniecore.errors import CheckpointError


def weights(value=1.0):
    tensor = paddle.full([2, 3], value)
    tensor.stop_gradient = False
    return {"w": tensor}


def test_constant_weights_stay_constant():
    made = weights(0.3)
    ema = Ema(made.items(), 0.9)
    for _ in range(50):
        ema.update()
    np.testing.assert_allclose(ema.state_arrays()["w"], 0.3, rtol=1e-6)


def test_equals_a_virtual_decay_of_the_updates():
    # report: averaged weights = start + sum of updates weighted by 1 - alpha^age
    alpha, made = 0.8, weights(0.0)
    ema = Ema(made.items(), alpha)
    updates = np.random.default_rng(0).normal(size=12)
    for delta in updates:
        made["w"].set_value(made["w"] + float(delta))
        ema.update()
    age = np.arange(len(updates), 0, -1)
    np.testing.assert_allclose(ema.state_arrays()["w"], (updates * (1 - alpha**age)).sum(), rtol=1e-5)


def test_applied_shows_the_average_and_gives_the_weights_back():
    made = weights(1.0)
    ema = Ema(made.items(), 0.5)
    made["w"].set_value(paddle.full([2, 3], 2.0))
    ema.update()
    with ema.applied():
        np.testing.assert_allclose(made["w"].numpy(), 1.5)
    assert (made["w"].numpy() == 2.0).all()
    assert not made["w"].stop_gradient


def test_applied_gives_the_weights_back_after_an_error():
    made = weights(1.0)
    ema = Ema(made.items(), 0.5)
    made["w"].set_value(paddle.full([2, 3], 2.0))
    with pytest.raises(KeyError), ema.applied():
        raise KeyError
    assert (made["w"].numpy() == 2.0).all()


def test_later_updates_do_not_change_the_saved_state():
    made = weights(1.0)
    ema = Ema(made.items(), 0.5)
    saved = ema.state_arrays()
    made["w"].set_value(paddle.full([2, 3], 2.0))
    ema.update()
    assert (saved["w"] == 1.0).all()


def test_state_goes_round():
    made = weights(1.0)
    ema, other = Ema(made.items(), 0.5), Ema(weights(5.0).items(), 0.5)
    other.load_state_arrays(ema.state_arrays())
    assert (other.state_arrays()["w"] == 1.0).all()
    with pytest.raises(CheckpointError):
        other.load_state_arrays({})
