"""Batches of one shape (`data.static_shapes`): the numbers of the run without, and how much of the batches is padding."""

import json

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint

from erniecore.errors import ConfigError


def steps(result):
    return [event for event in result.events if event["event"] in ("step", "eval")]


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("base", {"data__packing": "none"}),
        ("base", {"data__packing": "padding-free"}),
        ("base", {"data__packing": "greedy", "train__accumulation": 2}),
        ("moe", {"data__packing": "none", "model__router_aux_loss": 0.01}),
    ],
)
def test_padding_changes_no_number(runner, model, changes):
    path = {"model__path": runner.home / model} if model != "base" else {}
    name = {"model__name": "ernie45-moe"} if model != "base" else {}
    common = {
        "train__max_steps": 3,
        "train__batch_size": 4,
        "optimizer__epsilon": 1e-5,
        "data__eval": runner.home / "eval.jsonl",
        **changes,
        **path,
        **name,
    }
    plain = runner.run("plain", **common)
    static = runner.run("static", data__static_shapes="true", **common)
    for one, other in zip(steps(plain), steps(static), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)
        assert other.get("tokens") == one.get("tokens")
    before, after = (
        load_checkpoint(result.out / "ckpt" / "step-00000003").tensors["model"] for result in (plain, static)
    )
    for key in before:
        np.testing.assert_allclose(after[key], before[key], atol=1e-5, rtol=0)
    plain_fill, fill = (
        json.loads((result.out / "data_report.json").read_text())["fill_rate"] for result in (plain, static)
    )
    assert 0 < fill < plain_fill


def test_batches_that_a_method_makes_are_refused(runner):
    rl = {"method__name": "grpo", "rewards__exact-match": "{}", "method__max_new_tokens": 4}
    with pytest.raises(ConfigError, match="lengths") as caught:
        runner.run(data__static_shapes="true", **rl)
    assert [problem.key.partition("=")[0] for problem in caught.value.problems] == ["data.static_shapes"]
