"""Rows with images in reward models and distillation: both see what stands behind the placeholders, and say so where they
do not."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_distill.opening import same_reading
from erniecore_formats import preference
from erniecore_model_init.new_model import init_model
from erniecore_preference.grouping import completions_of
from erniecore_reward.encoder import RewardEncoder
from erniecore_reward.objective import rewards_of
from erniecore_reward.scoring import RewardModel

import erniecore
from erniecore.api import ConfigError
from erniecore.api.data import Origin
from erniecore.api.training import collate
from erniecore.cli.app import main

NAMES = ("red", "green", "blue")
ASKED = "<image>What color is it?"


@pytest.fixture(scope="module")
def pairs(home):
    """Pairs whose texts are the same where their images are not: only who sees them learns which is better."""
    file = home / "judged.jsonl"
    with file.open("w") as lines:
        for i in (1, 7, 2, 5, 3, 11):
            row = {"prompt": ASKED, "images": [f"img/{i}.png"]}
            lines.write(json.dumps({**row, "chosen": NAMES[i % 3], "rejected": NAMES[(i + 1) % 3]}) + "\n")
    return file


def settings(home, rows, out, *more):
    data = [f"data.train={rows}", "data.max_seq_len=96", "log.report=false", f"run.out={out}"]
    steps = [
        "train.batch_size=2",
        "train.accumulation=3",
        "train.warmup_ratio=0",
        "train.learning_rate=0.01",
        "data.max_drop=1",
    ]
    return [f"model.path={home / 'base'}", "adapter=lora", *data, *steps, *more]


def steps(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "step"]


@pytest.fixture(scope="module")
def judge(home, pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("judge") / "run"
    erniecore.run(None, settings(home, pairs, out, "method=reward", "train.max_steps=20"))
    return out


def test_a_reward_model_learns_which_color_an_image_has(judge):
    found = [step["loss"] for step in steps(judge)]
    assert found[0] > 0.5
    assert np.mean(found[-3:]) < 0.2


def test_scores_are_those_of_training_and_follow_the_image(home, pairs, judge, capsys):
    model = RewardModel.open(judge, batch_size=4)
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    records = [messages_of_pair(home, row) for row in rows]
    tokenizer = model.turns.tokenizer
    samples = [[RewardEncoder(tokenizer, 96).encode(record)[0]] for record in records]
    batch = tokenizer.chat_template.complete(collate(samples, pad_id=0), samples)
    with paddle.no_grad():
        expected = rewards_of(model.model, batch, completions_of(batch))[0].numpy()
    asked = [[*r.prompt, *side] for r in records for side in (r.chosen, r.rejected)]
    np.testing.assert_allclose(model.scores(asked), expected, atol=1e-5, rtol=0)
    assert main(["score", "--model", str(judge), "--data", str(pairs), "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([[t["chosen"], t["rejected"]] for t in told], expected.reshape(-1, 2), atol=1e-5)
    assert sum(t["margin"] > 0 for t in told) == len(told)
    one, other = (model.scores([[*r.prompt, *records[0].chosen]])[0] for r in (records[0], records[2]))
    assert abs(one - other) > 0.1


def messages_of_pair(home, row):
    return preference.parse(row, Origin(str(home / "judged.jsonl"), 1))


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_images(home, tmp_path):
    words = ["method=distill", f"method.teacher={home / 'base'}", "method.alpha=1", "train.max_steps=1"]
    erniecore.run(None, settings(home, home / "rows.jsonl", tmp_path / "run", *words))
    (step,) = steps(tmp_path / "run")
    report = json.loads((tmp_path / "run" / "data_report.json").read_text())["train"]
    assert report["kept"] == 24
    assert step["kl"] == pytest.approx(0, abs=1e-6)
    assert step["teacher/agreement"] == 1


def test_a_cached_teacher_knows_samples_by_their_images(home, tmp_path):
    """The losses of the model itself, in whatever company a sample was asked for; then without a teacher. Rows of the same
    text have images of different colors."""
    file = home / "asked.jsonl"
    with file.open("w") as lines:
        for i in (1, 2, 3, 5, 6, 7):
            turns = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "red"}]
            lines.write(json.dumps({"messages": turns, "images": [f"img/{i}.png"]}) + "\n")
        turns = [{"role": "user", "content": "Say red."}, {"role": "assistant", "content": "red"}]
        lines.write(json.dumps({"messages": turns}) + "\n")
    words = [
        "method=distill",
        f"method.teacher={home / 'base'}",
        "method.top_k=8",
        "method.alpha=0.5",
        "train.max_steps=4",
    ]
    words += ["data.max_seq_len=96", "train.learning_rate=0.05", "train.accumulation=2"]
    cached = [*words, f"method.cache={tmp_path / 'cache'}"]
    runs = {"online": words, "filled": cached, "read": [*cached, "data.packing=none", "train.batch_size=1"]}
    for name, settled in runs.items():
        erniecore.run(None, settings(home, file, tmp_path / name, *settled), console="none")
    online, filled = ([step["kl"] for step in steps(tmp_path / name)] for name in ("online", "filled"))
    np.testing.assert_allclose(filled, online, rtol=1e-4, atol=1e-7)
    assert online[-1] > 1e-6  # the student has moved
    sizes = [
        json.loads(line)["samples"]
        for name in ("filled", "read")
        for line in (tmp_path / name / "events.jsonl").read_text().splitlines()
        if json.loads(line)["event"] == "teacher_cache"
    ]
    assert sizes == [7, 7]  # what was packed before is found by itself


def test_a_teacher_of_texts_is_refused_at_the_first_image(home, tmp_path):
    init_model("ernie45", "tiny", home / "base", tmp_path / "reader", seed_value=3)
    words = ["method=distill", f"method.teacher={tmp_path / 'reader'}", "train.max_steps=1"]
    with pytest.raises(ConfigError, match="rows have images, which this teacher does not read"):
        erniecore.run(None, settings(home, home / "rows.jsonl", tmp_path / "run", *words))


def test_who_reads_images_alike(home, tmp_path):
    student = erniecore.load_tokenizer(home / "base")
    assert same_reading(student, erniecore.load_tokenizer(home / "base"))
    init_model("ernie45", "tiny", home / "base", tmp_path / "reader", seed_value=3)
    assert not same_reading(student, erniecore.load_tokenizer(tmp_path / "reader"))
