"""Which numbers of which events are curves."""

import math

import pytest
from erniecore_curves import measured


@pytest.mark.parametrize(
    ("event", "every", "curves"),
    [
        (
            {"event": "step", "time": 1.0, "step": 2, "loss": 0.5, "tokens": 3},
            1,
            {"train/loss": 0.5},
        ),
        (
            {"event": "step", "step": 1, "moe/load": 2, "": 1.0, "skipped": 1, "eta": 9.0},
            1,
            {"train/moe/load": 2.0, "train": 1.0},
        ),
        ({"event": "step", "step": 3, "loss": 0.5}, 2, {}),
        ({"event": "eval", "step": 3, "loss": 0.5, "note": "text"}, 2, {"eval/loss": 0.5}),
        ({"event": "step", "step": 1, "loss": math.nan, "grad_norm": math.inf, "lr": 1}, 1, {"train/lr": 1.0}),
        ({"event": "warning", "step": 1, "loss": 0.5}, 1, {}),
    ],
)
def test_numbers_of_steps_and_evaluations(event, every, curves):
    assert measured(event, every) == curves
