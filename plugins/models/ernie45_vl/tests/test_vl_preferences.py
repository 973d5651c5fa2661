"""Preference rows with images: both completions see the prompt's images, each from its own positions; references and
mismatched pairs are those of the same images."""

import json
from itertools import pairwise

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_formats import messages, preference
from erniecore_preference.encoder import PairEncoder, RatedEncoder
from erniecore_preference.grouping import mismatched

import erniecore
from erniecore.api import RowError
from erniecore.api.data import Origin
from erniecore.api.method import IGNORE
from erniecore.data.collate import collate

NAMES = ("red", "green", "blue")


@pytest.fixture(scope="module")
def model(home):
    return erniecore.load_model(home / "base")


@pytest.fixture(scope="module")
def tokenizer(home):
    return erniecore.load_tokenizer(home / "base")


def ask(text="<image>What color is it?"):
    return {"role": "user", "content": text}


def parsed(home, row, rows=messages):
    return rows.parse(row, Origin(str(home / "rows.jsonl"), 1))


def rated(home, answer, *images, label=True, text=None):
    text = text or "<image>" * len(images) + "What color is it?"
    turns = [ask(text), {"role": "assistant", "content": answer}]
    return parsed(home, {"messages": turns, "images": [f"img/{i}.png" for i in images], "label": label})


def batch_of(tokenizer, *rows):
    laid = [list(row) for row in rows]
    return tokenizer.chat_template.complete(collate(laid, pad_id=0), laid)


def logits(model, batch):
    given = {"position_ids": batch.position_ids, "startend_row_indices": batch.startend_row_indices, **batch.inputs}
    features = model.features(
        paddle.to_tensor(batch.input_ids), **{name: paddle.to_tensor(values) for name, values in given.items()}
    )
    return model.logits(features.hidden).numpy()


def test_both_completions_see_the_images_as_in_rows_of_their_own(home, model, tokenizer):
    row = {
        "messages": [ask("<image>What?"), {"role": "assistant", "content": "red"}, ask("And<image>this, or<image>?")],
        "images": ["img/1.png", "img/2.png", "img/3.png"],
        "chosen": "Say green. It is green.",
        "rejected": "blue",
    }
    record = parsed(home, row)
    (sample,) = PairEncoder(tokenizer, 400).encode(record)
    assert len(sample.media) == 3
    other = RatedEncoder(tokenizer, 400).encode(rated(home, "red", 5))
    packed = logits(model, batch_of(tokenizer, [*other, sample]))[0, len(other[0]) :]
    side = sample.fields["completion"]
    for which, answer in ((1, record.chosen), (2, record.rejected)):
        turns = [*row["messages"], {"role": "assistant", "content": answer[0].content}]
        alone = parsed(home, {"messages": turns, "images": row["images"], "label": True})
        (expected,) = RatedEncoder(tokenizer, 400).encode(alone)
        mine = (side == 0) | (side == which)
        np.testing.assert_array_equal(sample.input_ids[mine], expected.input_ids)
        np.testing.assert_allclose(packed[mine], logits(model, batch_of(tokenizer, [expected]))[0], atol=1e-5, rtol=0)


def test_mismatched_pairs_are_rows_with_the_images_of_their_prompts(home, tokenizer):
    encoder = RatedEncoder(tokenizer, 400)
    texts = {("red", 1): "red", ("blue", 2): "blue", ("green", 1, 2): "Say green. green"}
    samples = [encoder.encode(rated(home, answer, *images, label=False))[0] for (_, *images), answer in texts.items()]
    samples += encoder.encode(rated(home, "red", text="Say red."))
    batch = batch_of(tokenizer, samples[:2], samples[2:])
    (crossed,) = mismatched([batch])
    by_answer = {}
    for ids, labels in zip(crossed.input_ids, crossed.labels, strict=True):
        starts = [*np.flatnonzero(crossed.fields["sample"][0]), len(ids)]
        for place, (begin, end) in enumerate(pairwise(starts)):
            by_answer[place] = tokenizer.decode(labels[begin:end][labels[begin:end] != IGNORE].tolist())
    asked = [*[images for _, *images in texts], None]
    made = [
        encoder.encode(rated(home, by_answer[i], *images) if images else rated(home, by_answer[i], text="Say red."))[0]
        for i, images in enumerate(asked)
    ]
    assert sorted(by_answer.values()) == sorted([*texts.values(), "red"])
    assert [by_answer[i] for i in range(4)] != [*texts.values(), "red"]
    expected = batch_of(tokenizer, made)
    for name in ("input_ids", "labels", "position_ids", "startend_row_indices"):
        np.testing.assert_array_equal(getattr(crossed, name), getattr(expected, name), err_msg=name)
    assert crossed.inputs.keys() == expected.inputs.keys()
    for name, values in expected.inputs.items():
        np.testing.assert_array_equal(crossed.inputs[name], values, err_msg=name)


def test_equal_texts_with_other_images_are_other_samples(home, tokenizer):
    encoder = RatedEncoder(tokenizer, 400)
    one, two = (encoder.encode(rated(home, "red", i))[0] for i in (1, 7))
    np.testing.assert_array_equal(one.input_ids, two.input_ids)
    assert len(mismatched([batch_of(tokenizer, [one, two])])) == 1
    assert mismatched([batch_of(tokenizer, [one, one])]) == []


WHAT = "What color is it?"
ANSWERS = {"chosen": "A", "rejected": "B"}
PART = [{"type": "image_url", "image_url": {"url": "a"}}, {"type": "text", "text": WHAT}]
WHOLE = {side: {"role": "assistant", "content": text} for side, text in ANSWERS.items()}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ask()], "images": ["a"], **ANSWERS},
        {"prompt": f"<image>{WHAT}", "images": ["a"], **ANSWERS},
        {"prompt": [ask([{"type": "image"}, PART[1]])], "images": ["a"], **ANSWERS},
        {**{side: [ask(), said] for side, said in WHOLE.items()}, "images": "a"},
        {side: [ask(PART), said] for side, said in WHOLE.items()},
        {
            "input": {"messages": [ask(PART)]},
            "preferred_output": [WHOLE["chosen"]],
            "non_preferred_output": [WHOLE["rejected"]],
        },
    ],
)
def test_forms_of_rows(row):
    rows = messages if "messages" in row else preference
    record = rows.parse(row, Origin("some/rows.jsonl", 1))
    assert record.prompt[0].content == "<image>What color is it?"
    assert [(m.source, m.base) for m in record.prompt[0].media] == [("a", "some")]
    assert [record.chosen[0].content, record.rejected[0].content] == ["A", "B"]
    again = rows.parse(rows.write(record), record.origin)
    assert [m.source for m in again.prompt[0].media] == ["a"]


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"prompt": "What?", "images": ["a"], "chosen": "A", "rejected": "B"}, "$.images"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "chosen": "A", "rejected": "B"}, "$.images"),
        (
            {
                "prompt": "What?",
                "chosen": [
                    {"role": "assistant", "content": "A"},
                    {"role": "user", "content": [{"type": "image", "image": "a"}]},
                    {"role": "assistant", "content": "B"},
                ],
                "rejected": "B",
            },
            "$.chosen[1].content[0].image",
        ),
        ({"prompt": "<audio>?", "audios": ["a"], "chosen": "A", "rejected": "B"}, "$.audios"),
    ],
)
def test_what_is_refused(row, where):
    with pytest.raises(RowError) as error:
        preference.parse(row, Origin("some/rows.jsonl", 1))
    assert error.value.where == where


def losses(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"]


def settings(home, rows, out, *more):
    data = [f"data.train={rows}", "data.max_seq_len=96", "log.report=false", f"run.out={out}"]
    steps = ["train.batch_size=2", "train.accumulation=2", "train.max_steps=4", "train.warmup_ratio=0"]
    return [f"model.path={home / 'base'}", *data, *steps, "adapter=lora", "train.learning_rate=0.02", *more]


@pytest.fixture(scope="module")
def pairs(home):
    """Rows of equal texts whose images differ."""
    file = home / "pairs.jsonl"
    with file.open("w") as lines:
        for i in (1, 7, 2, 5, 3, 11):
            row = {"prompt": "<image>What color is it?", "images": [f"img/{i}.png"]}
            lines.write(json.dumps({**row, "chosen": NAMES[i % 3], "rejected": NAMES[(i + 1) % 3]}) + "\n")
    return file


def test_dpo_learns_from_images_and_its_reference_may_be_computed_before(home, pairs, tmp_path):
    for name in ("live", "precomputed"):
        words = ["method=dpo", f"method.reference={name}", "train.max_steps=8", "train.learning_rate=0.01"]
        erniecore.run(None, settings(home, pairs, tmp_path / name, *words))
    live, computed = losses(tmp_path / "live"), losses(tmp_path / "precomputed")
    assert live[0] == pytest.approx(np.log(2), abs=1e-6)
    assert np.mean(live[-3:]) < live[0] - 0.01
    np.testing.assert_allclose(computed, live, atol=1e-5)


def test_kto_learns_from_images(home, pairs, tmp_path):
    rows = tmp_path / "rated.jsonl"
    with rows.open("w") as lines:
        for i, line in enumerate(pairs.read_text().splitlines()):
            row = json.loads(line)
            good = {"prompt": row["prompt"], "images": [str(home / row["images"][0])], "label": bool(i % 2)}
            lines.write(json.dumps({**good, "completion": row["chosen" if i % 2 else "rejected"]}) + "\n")
    roots = f"model.media_roots={json.dumps([str(home)])}"
    longer = ["train.accumulation=3", "train.max_steps=12", "train.learning_rate=0.01"]
    erniecore.run(None, settings(home, rows, tmp_path / "run", "method=kto", roots, *longer))
    found = losses(tmp_path / "run")
    assert found[0] == pytest.approx(0.5, abs=1e-6)
    assert np.mean(found[-3:]) < 0.49
