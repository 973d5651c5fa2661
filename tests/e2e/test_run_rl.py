"""Reinforcement learning from settings to a model directory: rollouts, scores, updates, kill and resume, adapters."""

import json

import pytest

import erniecore
from erniecore.errors import ErnieError


@pytest.fixture
def rl(runner):
    """The runner, with the settings of small rollouts."""
    plain = runner.words

    def words(out="out", **changes):
        keys = {
            "method__group_size": 4,
            "method__max_new_tokens": 6,
            "rewards__exact-match__weight": 1.0,
            "rewards__regex": "{pattern: '[0-4]', whole: false}",  # differs between the answers of a random model
            "train__max_steps": 4,
            "train__learning_rate": 1e-3,
            "method__name": "grpo",
            **changes,
        }
        return [word for word in plain(out, **keys) if word != "method.name=sft"]

    runner.words = words
    return runner


def test_every_step_reports_what_was_tried(rl):
    result = rl.run(eval__every=2, data__eval=rl.home / "eval.jsonl")
    steps = rl.events("step")
    names = {
        "reward",
        "reward/std",
        "reward/exact-match",
        "reward/regex",
        "reward/regex/std",
        "solved",
    }
    names |= {"length", "truncated", "entropy", "zero_variance", "clipped", "log_ratio", "sampling_gap"}
    assert names <= steps[0].keys()
    for step in steps:
        assert step["clipped"] == 0  # the policy that learns is the one that tried
        assert step["log_ratio"] == 0
        assert 0 < step["sampling_gap"] < 1e-4
        assert step["reward"] == pytest.approx(step["reward/exact-match"] + step["reward/regex"])
    evaluation = rl.events("eval")
    assert evaluation[0]["loss"] == pytest.approx(-evaluation[0]["reward"])
    assert "perplexity" not in evaluation[0]
    model = erniecore.load_model(result.out / "model")
    assert model.architecture["num_hidden_layers"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "model"), [("grpo", "ernie45"), ("grpo", "ernie45-moe"), ("rloo", "ernie45"), ("online-dpo", "ernie45")]
)
def test_killed_run_continues_bit_for_bit_in_the_middle_of_a_rollout(rl, method, model):
    base = rl.home / ("base" if model == "ernie45" else "moe")
    more = {
        "method__name": method,
        "model__name": model,
        "model__path": base,
        "method__updates_per_rollout": 3,
        "train__max_steps": 8,
        "checkpoint__every": 1,
        **({} if method == "online-dpo" else {"method__kl": 0.05}),
    }
    rl.complete("whole", **more)
    rl.kill_at(5, "killed", **more)
    rl.complete("killed", **more)
    assert rl.curve("killed") == rl.curve("whole")
    assert rl.tensors(8, "killed") == rl.tensors(8, "whole")
    steps = rl.events("step", "whole")
    assert [("reward" in s) for s in steps] == [True, False, False] * 2 + [True, False]
    assert steps[0]["reward/std"] > 0
    if method == "online-dpo":
        assert steps[0]["pairs/loss"] == pytest.approx(0.693147, abs=1e-5)
        assert steps[2]["pairs/loss"] != steps[0]["pairs/loss"]
    else:
        assert steps[2]["log_ratio"] > 0


#: all of ERNIE 5.0's parts together
ERNIE5 = {
    "method__ratio": "sequence",
    "method__mismatch": "[0.5, 5]",
    "method__rollout_noise": 0.1,
    "method__hint_probability": 0.8,
    "method__hint_decay": 0.5,
    "method__pass_rate_samples": 2,
    "method__curriculum": "[[1, 0.0], [5, 0.1]]",
    "method__positives_reduction": 0.5,
    "method__positives_entropy": 9,
    "method__positives_accuracy": 0.3,
    "method__solved_at": 0.5,
}


@pytest.mark.slow
def test_killed_run_continues_with_its_pool_and_its_pass_rates(rl):
    more = {
        **ERNIE5,
        "method__rollout_pool": 3,
        "method__max_new_tokens": 12,
        "method__updates_per_rollout": 2,
        "train__max_steps": 8,
        "checkpoint__every": 1,
    }
    rl.complete("whole", **more)
    rl.kill_at(5, "killed", **more)
    rl.complete("killed", **more)
    assert rl.curve("killed") == rl.curve("whole")
    assert rl.tensors(8, "killed") == rl.tensors(8, "whole")
    (begin,) = rl.events("begin", "whole")
    assert begin["kind"] == "pass-rates"
    assert 0 < begin["mean"] < 1
    assert len(rl.events("begin", "killed")) == 1  # the initial weights are gone
    rollouts = [step for step in rl.events("step", "whole") if "reward" in step]
    assert rollouts[0]["begun_earlier"] == 0
    assert max(step["begun_earlier"] for step in rollouts) > 0
    assert rollouts[0]["hinted"] > 0
    assert rollouts[-1]["sampling_gap"] > 1e-3


@pytest.mark.slow
def test_killed_run_replays_its_experts_whatever_is_recomputed(rl):
    more = {
        "model__name": "ernie45-moe",
        "model__path": rl.home / "moe",
        "method__router_replay": "sampler",
        "method__rollout_mantissa": 2,
        "method__updates_per_rollout": 3,
        "train__max_steps": 6,
        "checkpoint__every": 1,
    }
    rl.complete("whole", **more)
    rl.kill_at(5, "killed", **more)
    rl.complete("killed", **more)
    assert rl.curve("killed") == rl.curve("whole")
    assert rl.tensors(6, "killed") == rl.tensors(6, "whole")
    rl.complete("recomputed", **more, train__recompute="full")
    assert rl.tensors(6, "recomputed") == rl.tensors(6, "whole")


POOL = {**ERNIE5, "method__rollout_pool": 3, "method__max_new_tokens": 12}


@pytest.mark.multiproc
@pytest.mark.parametrize("changes", [ERNIE5, {"method__name": "rloo"}, {"method__name": "online-dpo"}, POOL])
def test_two_processes_learn_as_one_does(rl, changes):
    more = {**changes, "train__max_steps": 3, "data__packing": "none"}
    rl.complete("one", **more, train__accumulation=2)
    rl.complete("two", **more, train__accumulation=1, parallel__name="hybrid", parallel__data=2)
    one, two = (rl.events("step", out) for out in ("one", "two"))
    assert max(step["grad_norm"] for step in one) > 1e-2
    assert [step["loss"] for step in two] == pytest.approx([step["loss"] for step in one], abs=1e-5)
    assert [step["grad_norm"] for step in two] == pytest.approx([step["grad_norm"] for step in one], rel=1e-3)
    for name in ("reward", "length"):
        assert [step[name] for step in two] == pytest.approx([step[name] for step in one])
    if changes is POOL:
        begun = [step["begun_earlier"] for step in one]
        assert begun[0] == 0 < max(begun)
        assert [step["begun_earlier"] for step in two] == pytest.approx(begun)


@pytest.mark.slow
@pytest.mark.multiproc
def test_two_processes_continue_bit_for_bit_with_their_pools_and_completions(rl):
    more = {
        **POOL,
        "method__updates_per_rollout": 2,
        "train__max_steps": 8,
        "checkpoint__every": 1,
        "parallel__name": "hybrid",
        "parallel__data": 2,
    }
    rl.complete("whole", **more)
    for step in (4, 5):  # between two rollouts, and in the middle of one
        rl.kill_at(step, "killed", **more)
    rl.complete("killed", **more)
    assert rl.curve("killed") == rl.curve("whole")
    assert rl.tensors(8, "killed") == rl.tensors(8, "whole")
    assert max(step.get("begun_earlier", 0) for step in rl.events("step", "whole")) > 0


def test_repeated_updates_add_steps_to_an_epoch(rl):
    rl.run(method__updates_per_rollout=2, train__max_steps=None, train__epochs=0.1, data__packing="none")
    assert rl.events("run_start")[0]["total_steps"] == 2 * 5  # 90 rows, 2 per step, a tenth of them


@pytest.mark.parametrize("method", ["grpo", "upo", "rloo", "online-dpo"])
def test_an_adapter_learns_from_rollouts_and_is_exported(rl, method, ernie):
    kl = {} if method == "online-dpo" else {"method__kl": 0.1}
    result = rl.run(method__name=method, adapter__name="lora", adapter__rank=2, **kl)
    assert (result.out / "adapter" / "adapter_config.json").is_file()
    steps = rl.events("step")
    if method == "rloo":  # an estimate that can be negative
        assert steps[0]["kl"] == pytest.approx(0, abs=1e-6)
        assert steps[-1]["kl"] != steps[0]["kl"]
    elif kl:
        assert steps[0]["kl"] == 0
        assert steps[-1]["kl"] > 0
    if method in ("upo", "online-dpo"):
        assert steps[0]["pairs/loss"] == pytest.approx(0.693147, abs=1e-5)


def test_upo_learns_from_pairs_of_the_data(rl, tmp_path):
    rows = [{"instruction": f"{a} plus 1", "chosen": f"{a + 1}", "rejected": "no"} for a in range(30)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = {"method__name": "upo", "method__pairs": "offline", "data__train": tmp_path / "pairs.jsonl"}
    rl.run(train__max_steps=12, train__learning_rate=3e-3, **more)
    steps = rl.events("step")
    assert steps[0]["pairs/loss"] == pytest.approx(0.693147, abs=1e-5)
    assert steps[-1]["pairs/margin"] > 0
    assert steps[-1]["pairs/accuracy"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards__exact-match__weight": None, "rewards__regex": None}, "no reward function is selected"),
        ({"method__max_new_tokens": 64}, "leaves no room for a prompt"),
        ({"rewards__regex": "{pattern: '('}"}, "is no regular expression"),
        ({"rewards__reward-model": "{weight: 2}"}, "rewards.reward-model.model=DIR"),
        ({"rewards__regex": "{weight: 2}"}, "rewards.regex.pattern is required"),
        (
            {"method__name": "dpo", "method__group_size": None, "method__max_new_tokens": None},
            "does not use reward functions",
        ),
        ({"rewards__exact-mach": "{}"}, "exact-match"),
    ],
)
def test_impossible_settings_are_refused(rl, changes, message):
    with pytest.raises(ErnieError, match=message):
        rl.run(**changes)
