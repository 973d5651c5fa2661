"""Frozen parameters keep every bit, have no optimizer state, and change nothing about how the others learn."""

import pytest
from erniecore_checkpoint.reader import load_checkpoint

from erniecore.errors import ConfigError

FROZEN = ("embed_tokens", "layers.0.")
FREEZE = {"train__freeze": "['*embed_tokens*','*layers.0.*']"}


def is_frozen(name):
    return any(part in name for part in FROZEN)


def arrays(runner, out, step, group="model"):
    found = load_checkpoint(runner.directory / out / "ckpt" / f"step-{step:08d}").tensors[group]
    return {name: array.tobytes() for name, array in found.items()}


def test_one_step_changes_what_is_trained_as_if_nothing_were_frozen(runner):
    """AdamW is elementwise, so that without a global norm a parameter learns the same beside frozen ones."""
    changes = {"train__max_steps": 1, "train__max_grad_norm": 0, "train__schedule": "constant"}
    runner.run("whole", **changes)
    runner.run("part", **changes, **FREEZE)
    whole, part = arrays(runner, "whole", 1), arrays(runner, "part", 1)
    assert {name for name in whole if is_frozen(name)}
    assert {name for name in whole if whole[name] == part[name]} == {name for name in whole if not is_frozen(name)}
    assert not [name for name in arrays(runner, "part", 1, "optim") if is_frozen(name)]
    assert [name for name in arrays(runner, "whole", 1, "optim") if is_frozen(name)]


def test_frozen_parameters_keep_every_bit_and_the_plan_knows_them(runner):
    runner.run("few", train__max_steps=1, **FREEZE)
    runner.run("many", train__max_steps=4, **FREEZE)
    before, after = arrays(runner, "few", 1), arrays(runner, "many", 4)
    assert {name for name in before if before[name] == after[name]} == {name for name in before if is_frozen(name)}
    start = runner.events("run_start", "many")[0]
    (method,) = [text for label, text in start["plan"] if label == "method"]
    assert 0 < start["trainable"] < start["parameters"]
    assert f"{start['trainable'] / 1000:.1f} k trainable" in method


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"parallel__name": "hybrid", "parallel__sharding": 2, "launcher__nproc": 2}])
def test_a_stopped_run_continues_bit_for_bit(runner, layout):
    changes = {**FREEZE, **layout, "train__max_steps": 4}
    runner.complete("whole", **changes)
    process = runner.start(warm=True, run__until=2, **changes)
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    runner.complete(**changes)
    assert runner.tensors(4) == runner.tensors(4, "whole")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train__freeze": "['*embed_token.*']"}, "no trained parameter fits '\\*embed_token.\\*'; .*embed_tokens"),
        ({"train__freeze": "['*']"}, "nothing is left to train"),
        ({**FREEZE, "adapter__name": "lora"}, "adapter.targets says what it trains"),
    ],
)
def test_what_cannot_be_frozen_is_refused(runner, changes, said):
    with pytest.raises(ConfigError, match=said):
        runner.run(**changes)
