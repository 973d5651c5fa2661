"""Runs with products of lower precision: near those in float32, recorded, and continued bit for bit."""

import pytest

from erniecore import kernels
from erniecore.errors import UsageError

#: matrices of at least 32 rows, columns and depth are those that kernels round
SETTINGS = {"train__batch_size": 4, "train__accumulation": 2, "checkpoint__every": 3}


def tiles():
    """Whether the kernels here round anything."""
    choice = kernels.choose("cpu", {}, "high")
    warnings = kernels.use(choice, lambda: 1)
    kernels.use(kernels.REFERENCES, lambda: 1)
    return not any("train.matmul_precision" in warning for warning in warnings)


def test_high_is_near_highest_and_recorded(runner):
    losses = {}
    for precision in ("highest", "high", "medium"):
        runner.run(precision, train__matmul_precision=precision, **SETTINGS)
        losses[precision] = [event["loss"] for event in runner.events("step", precision)]
        resolved = (runner.directory / precision / "resolved.yaml").read_text()
        assert f"matmul_precision: {precision}" in resolved
        said = any("matmul_precision" in event["message"] for event in runner.events("warning", precision))
        assert said == (precision != "highest" and not tiles())
    assert losses["high"] == pytest.approx(losses["highest"], abs=1e-3)
    assert losses["medium"] == pytest.approx(losses["highest"], abs=3e-2)
    assert (losses["high"] != losses["highest"]) == (losses["medium"] != losses["high"]) == tiles()


@pytest.mark.parametrize("changes", [{}, {"train__recompute": "full"}, {"adapter__name": "lora"}])
def test_stopped_run_continues_bit_for_bit(runner, changes):
    settings = {**SETTINGS, **changes, "train__matmul_precision": "high"}
    runner.complete("straight", **settings)
    process = runner.start("stopped", warm=True, run__until=4, **settings)
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    runner.complete("stopped", **settings)
    assert runner.curve("stopped") == runner.curve("straight")
    assert runner.tensors(8, "stopped") == runner.tensors(8, "straight")


def test_another_precision_is_another_run(runner):
    runner.run(train__matmul_precision="high", train__max_steps=2)
    with pytest.raises(UsageError, match=r"train\.matmul_precision"):
        runner.run(train__matmul_precision="highest", train__max_steps=2)


def test_a_precision_that_nothing_is_faster_with_is_a_warning(runner):
    runner.run(train__matmul_precision="high", train__max_steps=1, device__kernels__matmul="reference")
    (said,) = [e["message"] for e in runner.events("warning") if "matmul_precision" in e["message"]]
    assert "products are float32 as with highest" in said
