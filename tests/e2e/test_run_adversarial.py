"""The adversarial method through the command line: rows by a weak model, a judge that tells them from natural text, and
completions ranked by it."""

import json
import random

import numpy as np
import paddle  # noqa: TID253
import pytest

CITIES, WEATHER = ("oslo", "lima", "cairo", "delhi"), ("snow", "rain", "sun")


def paragraph(rng):
    """Three sentences that agree: the weather of the first is said again in the last."""
    weather, city = rng.choice(WEATHER), rng.choice(CITIES)
    return f"there was {weather} in {city}. we went to {city}. it was the {weather} of {city}."


@pytest.fixture(scope="module")
def judged(home, runner_class, tmp_path_factory):
    """A runner with a weak model ``weak``, its rows, and the run ``judge``; also the runner's outcome of ``generate-rows``."""
    from erniecore.cli.app import main

    runner = runner_class(home, tmp_path_factory.mktemp("adversarial"))
    at, rng = runner.directory, random.Random(1)
    texts = [paragraph(rng) for _ in range(120)] + ["one sentence only."]
    (at / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    common = {"data__train": at / "texts.jsonl", "train__batch_size": 8, "data__packing": "none"}
    runner.run("weak", method__name="pt", **common, train__max_steps=20, train__learning_rate=0.01)
    words = ["--model", at / "weak", "--data", at / "texts.jsonl", "--out", at / "rows.jsonl", "--max-new-tokens", 40]
    assert main([str(word) for word in ["generate-rows", *words]]) == 0
    chosen = {**common, "method__name": "adversarial", "data__train": at / "rows.jsonl", "data__eval_fraction": 0.2}
    chosen |= {"train__max_steps": 90, "train__learning_rate": 0.01, "model__path": at / "weak/model"}
    result = runner.run("judge", **chosen)
    return runner, result


def test_rows_come_in_pairs(judged):
    runner, _ = judged
    rows = [json.loads(line) for line in (runner.directory / "rows.jsonl").read_text().splitlines()]
    assert len(rows) % 2 == 0
    assert 40 < len(rows) <= 240
    for natural, generated in zip(rows[::2], rows[1::2], strict=True):
        assert (natural["generated"], generated["generated"]) == (False, True)
        start = natural["paragraph"].index(".") + 1
        assert generated["paragraph"][:start] == natural["paragraph"][:start]  # at least the first sentence is kept


def test_the_judge_tells_them_apart(judged):
    _, result = judged
    assert result.metrics["eval/accuracy"] > 0.6
    assert result.metrics["eval/adversarial_loss"] < 0.65  # chance is ln 2, 0.693
    assert result.metrics["eval/lm_loss"] < 3  # 5.8 before any training
    assert "eval/perplexity" not in result.metrics


def test_natural_text_is_ranked_before_generated(judged, ernie):
    """The area under the curve over rows that no run has read."""
    from erniecore_adversarial.judge import Judge

    at, rng = judged[0].directory, random.Random(99)
    texts = "".join(json.dumps({"text": paragraph(rng)}) + "\n" for _ in range(30))
    (at / "new.jsonl").write_text(texts)
    words = ["--data", at / "new.jsonl", "--out", at / "new-rows.jsonl", "--max-new-tokens", 40, "--seed", 5]
    assert ernie("generate-rows", "--model", at / "weak", *words).code == 0
    rows = [json.loads(line)["paragraph"] for line in (at / "new-rows.jsonl").read_text().splitlines()]
    natural, generated = rows[::2], rows[1::2]
    scores = Judge.open(at / "judge", batch_size=7).log_natural([*natural, *generated])
    assert all(score <= 0 for score in scores)
    wins = [a > b for a in scores[: len(natural)] for b in scores[len(natural) :]]
    assert sum(wins) / len(wins) > 0.7
    alone = Judge.open(at / "judge", batch_size=1).log_natural(natural[:2])
    assert alone == pytest.approx(scores[:2], abs=1e-5)


def test_completions_are_ranked(judged, ernie):
    runner, _ = judged
    at = runner.directory
    words = ["rerank", "--model", at / "weak", "--judge", at / "judge", "--prompt", "there was snow in", "--raw"]
    outcome = ernie(*words, "--samples", 4, "--max-new-tokens", 12, "--json")
    assert outcome.code == 0, outcome.err
    found = [json.loads(line) for line in outcome.out.splitlines()]
    scores = [row["log_natural"] for row in found]
    assert scores == sorted(scores, reverse=True)
    assert sorted(row["sample"] for row in found) == [0, 1, 2, 3]
    assert len({row["text"] for row in found}) > 1
    assert ernie("generate", "--model", at / "judge", "--raw", "--prompt", "there", "--max-new-tokens", 3).code == 0


def test_what_is_ranked_first_is_likelier_to_a_better_model(judged, ernie):
    """The better half of the samples of each prompt has a lower negative log-likelihood under a model that was trained longer,
    on other text, and that the judge has never seen."""
    from erniecore.api.run import open_model

    runner, _ = judged
    at, rng = runner.directory, random.Random(77)
    texts = "".join(json.dumps({"text": paragraph(rng)}) + "\n" for _ in range(120))
    (at / "other.jsonl").write_text(texts)
    keys = {"data__train": at / "other.jsonl", "train__batch_size": 8, "data__packing": "none", "train__max_steps": 80}
    runner.run("better", method__name="pt", model__path=at / "weak/model", train__learning_rate=0.01, **keys)
    better = open_model(at / "better/model")
    halves = [], []
    for weather in WEATHER:
        words = ["rerank", "--model", at / "weak", "--judge", at / "judge", "--prompt", f"there was {weather} in"]
        outcome = ernie(*words, "--raw", "--samples", 8, "--max-new-tokens", 30, "--json")
        assert outcome.code == 0, outcome.err
        found = [json.loads(line)["text"] for line in outcome.out.splitlines()]
        for half, chosen in zip(halves, (found[:4], found[4:]), strict=True):
            half += [likelihood(better, f"there was {weather} in{text}") for text in chosen]
    assert np.mean(halves[0]) < np.mean(halves[1]) - 0.1


def likelihood(bundle, text):
    """Negative log-likelihood of a text per token."""
    ids = paddle.to_tensor([bundle.tokenizer.encode(text)])
    log_p = paddle.nn.functional.log_softmax(bundle.model(ids)[0, :-1].astype("float32"), axis=-1).numpy()
    return -log_p[np.arange(len(log_p)), ids.numpy()[0, 1:]].mean()


def test_it_is_a_reward(judged, runner, home):
    """GRPO with the judge as its reward function."""
    chosen = {"method__name": "grpo", "method__group_size": 4, "method__max_new_tokens": 6, "train__max_steps": 1}
    chosen |= {
        "rewards__natural-text__model": judged[0].directory / "judge",
        "model__path": judged[0].directory / "judge/model",
    }
    result = runner.run(**chosen)
    assert result.metrics["reward/natural-text"] < 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("rerank", "--judge", "{weak}", "--prompt", "a"), "cannot judge texts"),
        (("rerank", "--judge", "{judge}", "--prompt", "a", "--temperature", "0"), "all alike"),
        (("generate-rows", "--data", "{rows}", "--out", "{rows}"), "the file exists"),
    ],
)
def test_refusals(judged, ernie, words, text):
    at = judged[0].directory
    places = {"weak": at / "weak", "judge": at / "judge", "rows": at / "rows.jsonl"}
    outcome = ernie(*(word.format(**places) for word in words), "--model", at / "weak")
    assert outcome.code in (2, 5)
    assert text in outcome.err
