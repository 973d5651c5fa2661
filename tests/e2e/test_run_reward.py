"""Reward models through the command line: train, resume bit for bit, score what the model directory holds, adapters."""

import json
import shutil

import numpy as np
import pytest
from erniecore_reward import RewardModel, score
from safetensors.numpy import load_file

import erniecore
from erniecore.errors import Exit, UsageError

MODELS = {"base": "ernie45", "moe": "ernie45-moe"}


@pytest.fixture(scope="module", params=MODELS)
def base(request):
    return request.param


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A sentence with the sum is preferred to a wrong sum."""
    home = tmp_path_factory.mktemp("reward")
    rows = [
        {"instruction": f"{a} plus {b}", "chosen": f"{a + b} the quick fox", "rejected": f"{a + b + 1}", "margin": 0.5}
        for a in range(0, 30, 2)
        for b in range(0, 30, 3)
    ]
    for name, part in (("train", [r for i, r in enumerate(rows) if i % 5]), ("eval", rows[::5])):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return home


def settings(runner, pairs, base, **changes):
    return {
        "model__name": MODELS[base],
        "model__path": runner.home / base,
        "method__name": "reward",
        "data__train": pairs / "train.jsonl",
        "train__batch_size": 4,
        "train__max_steps": 20,
        **changes,
    }


def conversation(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_train_eval_score_export(ernie, runner, pairs, base):
    result = runner.run(**settings(runner, pairs, base, data__eval=pairs / "eval.jsonl"))
    first, *_, last = runner.events("step")
    assert last["rewards/accuracies"] == result.metrics["eval/rewards/accuracies"] == 1
    assert last["rewards/margins"] > first["rewards/margins"]
    assert "perplexity" not in runner.events("eval")[-1]
    model = result.out / "model"
    config = json.loads((model / "config.json").read_text())
    assert config["architectures"][0].endswith("ForSequenceClassification")
    assert (config["num_labels"], config["problem_type"]) == (1, "regression")
    head = load_file(model / "model.safetensors")["score.weight"]
    assert (head.shape, head.dtype) == ((1, config["hidden_size"]), np.float32)

    outcome = ernie("eval", "--model", model, "--method", "reward", "--data", pairs / "eval.jsonl", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["metrics"]["rewards/accuracies"] == 1
    good, bad = (conversation("3 plus 4", text) for text in ("7 the quick fox", "8"))
    scores = score(model, [good, bad])
    assert scores[0] > scores[1]
    assert ernie("export", model, "--out", runner.directory / "again").code == 0
    assert score(runner.directory / "again", [good, bad]) == scores
    # the checkpoint and a run that goes on from the directory have the head, too
    assert score(result.out / "ckpt" / "step-00000020", [good, bad]) == scores
    on = runner.run("on", **settings(runner, pairs, base, model__path=model, train__max_steps=1))
    assert on.metrics["rewards/accuracies"] == 1


def test_scores_of_files(ernie, refuses, runner, pairs):
    model = runner.run(**settings(runner, pairs, "base")).out / "model"
    outcome = ernie("score", "--model", model, "--data", pairs / "eval.jsonl", "--json")
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["line"] for row in rows] == list(range(1, 31))
    assert all(row["margin"] == row["chosen"] - row["rejected"] > 0 for row in rows)
    shown = ernie("score", "--model", model, "--data", pairs / "eval.jsonl").out
    assert shown.splitlines()[-1] == "30 of 30 pairs in the right order: 1.0000"
    outcome = ernie("score", "--model", model, "--data", runner.home / "eval.jsonl", "--json")
    assert set(json.loads(outcome.out.splitlines()[0])) == {"file", "line", "score"}
    (runner.directory / "bad.jsonl").write_text('{"messages": []}\n')
    refuses(
        ["score", "--model", model, "--data", runner.directory / "bad.jsonl"],
        Exit.DATA,
        "bad.jsonl",
        remedy="ernie data check",
    )


def test_an_adapter_brings_the_head(ernie, runner, pairs, base):
    chosen = settings(runner, pairs, base, adapter__name="lora", adapter__rank=4, train__learning_rate=0.02)
    out, merged = runner.run(**chosen).out, runner.directory / "merged"
    asked = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert (asked["modules_to_save"], asked["task_type"]) == (["score"], "SEQ_CLS")
    rows = [conversation("3 plus 4", text) for text in ("7 the quick fox", "8")]
    beside = score(out, rows)
    assert beside[0] > beside[1]
    (runner.directory / "rows.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    asked = ["--adapter", out, "--data", runner.directory / "rows.jsonl", "--json"]
    outcome = ernie("score", "--model", runner.home / base, *asked)
    assert outcome.code == 0, outcome.err
    assert [json.loads(line)["score"] for line in outcome.out.splitlines()] == beside
    outcome = ernie("merge", out, "--base", runner.home / base, "--out", merged)
    assert outcome.code == 0, outcome.err
    np.testing.assert_allclose(score(merged, rows), beside, atol=1e-4)
    again = {**chosen, "adapter__path": out / "adapter", "train__max_steps": 1}
    assert runner.run("again", **again).metrics["rewards/accuracies"] == 1


def test_the_plan_counts_the_head(ernie, runner, pairs, base):
    for more in ({}, {"adapter__name": "lora", "adapter__rank": 2}):
        words = runner.words(**settings(runner, pairs, base, train__max_steps=1, **more))
        words = [w for w in words if w != "method.name=sft"][1:]
        shutil.rmtree(runner.directory / "out", ignore_errors=True)
        outcome = ernie("run", *words, "--dry-run", "--json")
        assert outcome.code == 0, outcome.err
        plan = json.loads(outcome.out)
        assert ernie("run", *words).code == 0
        start, saved = runner.events("run_start")[0], runner.events("checkpoint")[0]
        assert (plan["parameters"]["trainable"], plan["checkpoint"]) == (start["trainable"], saved["bytes"])


def test_the_average_has_the_head(runner, pairs):
    out = runner.run(**settings(runner, pairs, "base", train__ema=0.5, train__max_steps=4)).out
    tensors = runner.tensors(4)
    averaged = np.frombuffer(tensors["ema", "score.weight"], np.float32)
    head = load_file(out / "model" / "model.safetensors")["score.weight"]
    np.testing.assert_array_equal(head.reshape(-1), averaged)


def test_margins_are_read_when_asked_for(runner, pairs):
    small = {"train__max_steps": 1, "train__learning_rate": 1e-9}
    plain = runner.run("plain", **settings(runner, pairs, "base", **small)).metrics
    wide = runner.run("wide", **settings(runner, pairs, "base", method__margin_weight=4, **small)).metrics
    assert plain["rewards/margins"] == wide["rewards/margins"]
    assert wide["loss"] > plain["loss"] + 0.5


def test_a_language_model_gives_no_scores(ernie, refuses, runner, pairs):
    with pytest.raises(UsageError, match="no reward model"):
        RewardModel.open(runner.home / "base")
    words = ["eval", "--model", runner.home / "base", "--method", "reward", "--data", pairs / "eval.jsonl"]
    refuses(words, Exit.PLUGIN, "no score head", remedy="--method reward")


@pytest.mark.slow
def test_killed_run_continues_bit_for_bit(runner, pairs, base):
    for out in ("straight", "killed"):
        chosen = settings(runner, pairs, base, checkpoint__every=2, train__max_steps=8, train__ema=0.9)
        if out == "killed":
            runner.kill_at(5, out, **chosen)
        runner.complete(out, **chosen)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")
    assert ("model", "score.weight") in runner.tensors(8, "killed")


def test_other_methods_leave_the_head_alone(runner, pairs):
    model = runner.run(**settings(runner, pairs, "base", train__max_steps=2)).out / "model"
    tuned = erniecore.run(overrides=runner.words("tuned", model__path=model, train__max_steps=2), console="none")
    before, after = (load_file(d / "model.safetensors") for d in (model, tuned.out / "model"))
    assert (before["score.weight"] == after["score.weight"]).all()
    assert (before["model.norm.weight"] != after["model.norm.weight"]).any()


def test_a_reward_model_scores_rollouts(runner, pairs):
    model = runner.run(**settings(runner, pairs, "base", train__max_steps=2)).out / "model"
    tried = {
        "method__name": "grpo",
        "method__group_size": 4,
        "method__max_new_tokens": 6,
        "rewards__reward-model__model": model,
        "train__max_steps": 2,
    }
    words = [word for word in runner.words("tried", **tried) if word != "method.name=sft"]
    metrics = erniecore.run(overrides=words, console="none").metrics
    assert metrics["reward"] == metrics["reward/reward-model"]
    assert metrics["reward/std"] > 0
    assert metrics["grad_norm"] > 0
