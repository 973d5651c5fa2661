"""Rows with images in methods that generate: completions to a prompt see its images, and so does who learns from them."""

import json
import math
import shutil

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint

import erniecore

#: images of three colors under the same words
FILES = (1, 2, 3)


@pytest.fixture(scope="module")
def asked(home):
    """Beside the images a text."""
    file = home / "online.jsonl"
    with file.open("w") as lines:
        for i in FILES:
            turns = [{"role": "user", "content": "<image>What color is it?"}, {"role": "assistant", "content": "red"}]
            lines.write(json.dumps({"messages": turns, "images": [f"img/{i}.png"]}) + "\n")
        turns = [{"role": "user", "content": "Say red."}, {"role": "assistant", "content": "red"}]
        lines.write(json.dumps({"messages": turns}) + "\n")
    return file


def run(home, asked, out, method, *more):
    words = [
        f"model.path={home / 'base'}",
        f"method={method}",
        "rewards={length-penalty: {free: 1, limit: 8}}",
        f"data.train={asked}",
        "data.max_seq_len=96",
        "method.max_new_tokens=8",
        "train.batch_size=2",
        "train.accumulation=2",
        "train.learning_rate=0.001",
        "log.report=false",
        f"run.out={out}",
        *more,
    ]
    erniecore.run(None, words, console="none")


def steps(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "step"]


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("grpo", ["method.group_size=4", "method.zero_variance=keep"]),
        ("rloo", ["method.group_size=4"]),
        ("upo", ["method.group_size=4", "method.pairs=online"]),
    ],
)
def test_learner_and_sampler_see_the_same_images(home, asked, tmp_path, method, more):
    """The log-probabilities of both agree, also where a completion has a begin or end token of images."""
    run(home, asked, tmp_path / "run", method, "train.max_steps=2", *more)
    found = steps(tmp_path / "run")
    assert len(found) == 2
    assert all(step["sampling_gap"] < 1e-6 for step in found)
    assert all(step["length"] > 1 for step in found)
    report = json.loads((tmp_path / "run" / "data_report.json").read_text())["train"]
    assert (report["kept"], report["dropped"]) == (4, 0)


def test_pairs_of_completions_are_learned_from_with_their_images(home, asked, tmp_path):
    """The first loss is that of equal models; the tower learns, which only images reach."""
    parts, rewards = "model.train=[text,vision,resampler]", "rewards={regex: {pattern: '[ae]', whole: false}}"
    more = [rewards, parts, "method.group_size=4", "train.max_steps=2", "checkpoint.every=1", "checkpoint.keep=2"]
    run(home, asked, tmp_path / "run", "online-dpo", *more)
    found = steps(tmp_path / "run")
    assert found[0]["zero_variance"] < 1
    assert found[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert found[1]["loss"] != pytest.approx(math.log(2), abs=1e-6)
    one, two = (load_checkpoint(tmp_path / "run" / "ckpt" / f"step-{n:08d}").tensors["model"] for n in (1, 2))
    name = "vision_model.patch_embed.proj.weight"
    assert (np.asarray(one[name]) != np.asarray(two[name])).any()


def test_a_run_that_goes_on_within_a_rollout_has_its_images(home, asked, tmp_path):
    """Completions are learned from twice; the checkpoint is between."""
    words = ["method.group_size=4", "method.updates_per_rollout=2", "train.max_steps=2", "checkpoint.every=1"]
    run(home, asked, tmp_path / "run", "grpo", *words)
    last = tmp_path / "run" / "ckpt" / "step-00000002"
    whole = {(g, n): a.tobytes() for g, found in load_checkpoint(last).tensors.items() for n, a in found.items()}
    shutil.rmtree(last)
    (tmp_path / "run" / "ckpt" / "latest.json").unlink()
    run(home, asked, tmp_path / "run", "grpo", *words, "run.resume=must")
    again = {(g, n): a.tobytes() for g, found in load_checkpoint(last).tensors.items() for n, a in found.items()}
    assert again == whole
