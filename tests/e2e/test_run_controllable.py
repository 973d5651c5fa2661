"""Controllable language modeling through the command line: a model writes what it is asked for, and plain text too."""

import json
import random

import pytest
from erniecore_model_init.new_model import init_model

from erniecore.errors import ConfigError, ErnieError

WORDS = {"weather": ("snow", "rain"), "animals": ("fox", "dog")}
SIZE = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=8"


def row(rng):
    topic, genre = rng.choice(list(WORDS)), rng.choice(("list", "story"))
    found = rng.choices(WORDS[topic], k=rng.randint(1, 3))
    return {
        "body": (" then " if genre == "story" else " and ").join(found) + " plus",
        "genre": genre,
        "topic": topic,
    }


@pytest.fixture(scope="module")
def trained(home, runner_class, tmp_path_factory):
    """A runner with the finished run ``out`` of a model with four soft tokens."""
    runner = runner_class(home, tmp_path_factory.mktemp("controllable"))
    rng = random.Random(1)
    rows = [row(rng) for _ in range(200)]
    (runner.directory / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    init_model("ernie45", f"{SIZE},vocab_size=324", home / "tok", runner.directory / "new", seed_value=1)
    runner.chosen = {
        "method__name": "controllable",
        "method__genres": "{list: 2, story: 2}",
        "model__path": runner.directory / "new",
        "data__train": runner.directory / "rows.jsonl",
        "data__packing": "none",
        "train__batch_size": 8,
        "train__learning_rate": 0.01,
    }
    runner.run(**runner.chosen, train__max_steps=160, data__eval_fraction=0.1, method__plain=0.1, method__dropout=0.2)
    return runner


def written(ernie, trained, *words):
    outcome = ernie("write", "--model", trained.directory / "out", "--max-new-tokens", 24, *words, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_the_topic_that_is_asked_for_is_written(trained, ernie):
    for topic in WORDS:
        options = ("--topic", topic, "--temperature", 0.5)
        texts = " ".join(written(ernie, trained, *options, "--seed", seed)["text"] for seed in range(6))
        count = {name: sum(texts.count(word) for word in words) for name, words in WORDS.items()}
        assert count[topic] > 2 * (sum(count.values()) - count[topic]), (topic, texts)
    assert "weather" not in written(ernie, trained)["text"]  # plain text, and no prompt of its own


def test_genre_and_beginning(trained, ernie):
    found = written(ernie, trained, "--genre", "story", "--topic", "animals", "--words", 4, "--begin", "fox")
    assert found["text"].startswith("fox")
    assert found["prompt_ids"][1:3] == [322, 323]  # soft tokens of the second genre, behind 320 ids
    assert json.loads((trained.directory / "out/attributes.json").read_text()) == {"genres": {"list": 2, "story": 2}}
    path = trained.directory / "out" / "model"
    assert ernie("write", "--model", path, "--genre", "list", "--max-new-tokens", 2).code == 0
    assert ernie("generate", "--model", path, "--raw", "--prompt", "fox", "--max-new-tokens", 2).code == 0


def test_held_out_texts_can_be_read_without_attributes(trained):
    """A model that has learned what attributes say loses more without them; nothing is learned in the one step."""
    base = {"model__path": trained.directory / "out/model", "train__learning_rate": 1e-12, "data__eval_fraction": 0.2}
    losses = {}
    for plain in ("false", "true"):
        chosen = {**trained.chosen, **base, "method__eval_plain": plain, "train__max_steps": 1}
        losses[plain] = trained.run(f"read-{plain}", **chosen).metrics["eval/loss"]
    assert losses["false"] < losses["true"] - 0.05, losses


def test_it_continues_bit_for_bit(trained):
    from erniecore.errors import Preempted

    with pytest.raises(Preempted):
        trained.run("parts", **trained.chosen, train__max_steps=4, run__until=2)
    trained.run("parts", **trained.chosen, train__max_steps=4)
    trained.run("whole", **trained.chosen, train__max_steps=4)
    assert trained.tensors(4, "parts") == trained.tensors(4, "whole")
    assert trained.curve("parts") == trained.curve("whole")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method__genres": "{list: 2}"}, "no soft tokens"),
        ({"method__genres": "{list: 2, story: 2, song: 1}", "data__max_drop": 1}, "the soft tokens need 325 ids"),
        ({"method__genres": "{list: 64, story: 2}"}, "expected 1 to 63"),
    ],
)
def test_refusals(trained, changes, text):
    with pytest.raises((ConfigError, ErnieError)) as caught:
        trained.run("refused", **{**trained.chosen, **changes})
    assert text in str(caught.value) + str(caught.value.found)


def test_an_unknown_genre_is_named(trained, ernie):
    outcome = ernie("write", "--model", trained.directory / "out", "--genre", "novel")
    assert outcome.code == 2
    assert "no soft tokens" in outcome.err
