"""Learning rates against values worked out by hand."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.api import EmptyConfig, hookimpl
from erniecore.api.schedule import SchedulePlugin
from erniecore.config.core import TrainSection
from erniecore.engine.training.schedule import factor_of, learning_rate, warmup_length
from erniecore.errors import PluginBroken
from erniecore.host import assemble


def rates(total, **settings):
    section = TrainSection(learning_rate=1.0, **settings)
    return [learning_rate(step, total, section) for step in range(1, total + 1)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "min_lr": 0.2}, [1.0, 0.8, 0.6, 0.4]),
        ({"schedule": "linear", "warmup_steps": 2}, [0.5, 1.0, 1.0, 0.5]),
        ({"schedule": "cosine"}, [1.0, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]),
        ({"schedule": "cosine", "min_lr": 0.5}, [1.0, 0.5 + (1 + 2**-0.5) / 4, 0.75, 0.5 + (1 - 2**-0.5) / 4]),
        ({"schedule": "polynomial", "power": 2.0}, [1.0, 0.5625, 0.25, 0.0625]),
        ({"schedule": "cosine-with-restarts", "cycles": 2}, [1.0, 0.5, 1.0, 0.5]),
        (
            {"schedule": "cosine-with-restarts", "min_lr": 0.5},
            [1.0, 0.5 + (1 + 2**-0.5) / 4, 0.75, 0.5 + (1 - 2**-0.5) / 4],
        ),
        ({"schedule": "inverse-sqrt", "warmup_steps": 2}, [0.5, 1.0, 1.0, (2 / 3) ** 0.5]),
        (
            {"schedule": "inverse-sqrt", "warmup_steps": 1, "min_lr": 0.2},
            [1, 1, 0.2 + 0.8 * 0.5**0.5, 0.2 + 0.8 * 3**-0.5],
        ),
        ({"schedule": "inverse-sqrt"}, [(10_000 / (10_000 + past)) ** 0.5 for past in range(4)]),
        ({"schedule": "constant"}, [1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "constant-with-warmup", "warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0]),
        ({"schedule": "wsd", "decay_steps": 2}, [1.0, 1.0, 1.0, 0.5]),
        ({"schedule": "wsd", "decay_steps": 2, "decay_shape": "1-sqrt"}, [1.0, 1.0, 1.0, 1 - 0.5**0.5]),
        ({"schedule": "wsd", "decay_steps": 2, "decay_shape": "half-life"}, [1.0, 1.0, 1.0, (0.05**0.5 - 0.05) / 0.95]),
        ({"schedule": "wsd", "decay_steps": 2, "warmup_steps": 2}, [0.5, 1.0, 1.0, 0.5]),
        ({"schedule": "wsd", "decay_steps": 4, "min_lr": 0.2}, [1.0, 0.8, 0.6, 0.4]),
    ],
)
def test_four_steps_by_hand(settings, expected):
    assert rates(4, **settings) == pytest.approx(expected, abs=1e-12)


def test_wsd_tail_is_a_tenth_unless_said_otherwise():
    assert rates(20, schedule="wsd") == pytest.approx([1.0] * 19 + [0.5])


def test_every_restart_begins_at_the_peak():
    """49 · (1 / 49) is 0.9999999999999999: a quotient would put the lowest rate where a cycle begins."""
    assert rates(49, schedule="cosine-with-restarts", cycles=49) == [1.0] * 49
    made = rates(100, schedule="cosine-with-restarts", cycles=3, warmup_steps=10)
    assert [step for step, rate in enumerate(made, 1) if rate == 1.0] == [10, 11, 41, 71]


def test_inverse_sqrt_does_not_depend_on_the_end():
    settings = TrainSection(learning_rate=1.0, schedule="inverse-sqrt", warmup_steps=4)
    assert learning_rate(17, 20, settings) == learning_rate(17, 10, settings) == pytest.approx(0.5)


def test_warmup_ratio_rounds_up_and_steps_win():
    assert warmup_length(25, TrainSection(warmup_ratio=0.1)) == 3
    assert warmup_length(25, TrainSection(warmup_ratio=0.1, warmup_steps=7)) == 7


@pytest.mark.parametrize("schedule", ["linear", "cosine", "polynomial", "wsd", "cosine-with-restarts", "inverse-sqrt"])
def test_single_step_run_learns(schedule):
    assert rates(1, schedule=schedule) == [1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "cosine-with-restarts", "polynomial", "wsd"])
def test_beyond_the_end_stays_at_the_minimum(schedule):
    settings = TrainSection(learning_rate=1.0, min_lr=0.1, schedule=schedule)
    assert learning_rate(5000, 100, settings) == pytest.approx(0.1)


def test_steps_start_at_one():
    with pytest.raises(ValueError):
        learning_rate(0, 10, TrainSection())


@given(
    st.sampled_from(["linear", "cosine", "polynomial", "inverse-sqrt", "constant", "constant-with-warmup", "wsd"]),
    st.integers(1, 200),
    st.integers(0, 60),
    st.floats(0, 1),
    st.sampled_from(["linear", "1-sqrt"]),
    st.integers(0, 300),
)
def test_rate_stays_between_zero_and_the_peak_and_never_grows_after_warmup(schedule, total, warmup, low, shape, tail):
    made = rates(total, schedule=schedule, warmup_steps=warmup, min_lr=low, decay_shape=shape, decay_steps=tail)
    after = made[warmup:] if schedule != "constant" else made
    assert all(0 < rate <= 1 + 1e-12 for rate in made)
    assert all(rate >= low - 1e-12 for rate in after)
    assert all(a >= b - 1e-12 for a, b in pairwise(after))


class Told(SchedulePlugin):
    name, summary = "told", "what it is told"

    @hookimpl
    def ernie_schedule_factor(self, step: int, warmup: int) -> float:
        return [1.0, 0.25, 1.5, math.nan, -0.1, None][step + warmup]


def test_the_factor_of_a_plugin_is_checked():
    host, settings = assemble({"schedule": [Told()]}), SimpleNamespace(schedules={"told": EmptyConfig()})
    section = TrainSection(learning_rate=1.0, min_lr=0.2, schedule="told")
    factor = factor_of(host, host.plugins, settings)
    assert [learning_rate(step, 6, section, factor) for step in (1, 2)] == pytest.approx([1.0, 0.4])
    for step in (3, 4, 5, 6):
        with pytest.raises(PluginBroken, match="no number from 0 to 1") as caught:
            learning_rate(step, 6, section, factor)
        assert f"step {step - 1}, length 6, warmup 0" in caught.value.found
    assert factor_of(host, [], settings) is None
