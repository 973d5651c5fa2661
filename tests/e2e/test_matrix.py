"""Everything composes: every installed method on every text model, with the adapters in turn, trains, continues bit for
bit, and ends as a directory that loads; ``make test-all`` takes every adapter with each. The lists come from the
installed plugins, so a new one joins by itself; what cannot be combined is declared here, with the error that the user
reads.
"""

import json
import shutil

import numpy as np
import pytest
from erniecore_conformance.toys.tokenizer import ToyTokenizer

import erniecore
from erniecore import registry
from erniecore.errors import ErnieError
from erniecore.types.records import Conversation, Document, Preference, UnpairedPreference

METHODS = sorted(entry.name for entry in registry.entries("method"))
ADAPTERS = ("none", "lora", "dora")
#: adapters of linear layers with one method; what they are set to where that is no rank
OTHERS = {"vera": {"adapter.rank": 8, "adapter.d_initial": 1.0}, "oft": {"adapter.block_size": 8}}
#: plugin -> model directory of the home, in the order in which the adapters take turns
MODELS = {"ernie45": "base", "ernie45-moe": "moe"}
#: what a method needs beside the common settings
NEEDS = {
    "distill": {"method.teacher": "{model}"},
    "elastic-pt": {"method.selected": "[1]"},
    "elastic-sft": {"method.selected": "[1]"},
    # these models have no module for understanding: the objective for whole documents alone
    "ernie3-pretrain": {
        **{f"method.{weight}": 0 for weight in ("kmlm", "reorder", "distance", "uktp")},
        "method.segment_length": 0,
    },
    "grpo": {"method.group_size": 2, "method.max_new_tokens": 4, "rewards.exact-match.weight": 1},
    "kto": {"train.batch_size": 4},
    # a random model is never right; the reward has to differ, for without a pair there is no loss
    "online-dpo": {
        "method.group_size": 8,
        "method.max_new_tokens": 4,
        "rewards.regex": "{pattern: '[a-m]', whole: false}",
    },
    "online-distill": {"method.students.small": "{model}"},
    "rloo": {"method.group_size": 2, "method.max_new_tokens": 4, "rewards.exact-match.weight": 1},
    "upo": {"method.group_size": 2, "method.max_new_tokens": 4, "rewards.exact-match.weight": 1},
}
#: (method, adapter, model) with "*" for any -> a part of the error
EXCEPTIONS: dict[tuple[str, str, str], str] = {
    # one axis for both models: a dense one has none of the experts, and this one too few layers for another depth
    ("elastic-pt", "*", "ernie45"): "the model has no routed experts",
    ("elastic-sft", "*", "ernie45"): "the model has no routed experts",
    # a student of a process of its own: plugins/methods/remote_distill/tests/test_remote_distill_runs.py
    ("remote-distill", "*", "*"): "a student needs it",
}


def rows_for(accepts):
    """Rows of the first kind of record that a method takes, in a format that is recognized."""
    sums = [(a, b) for a in range(6) for b in range(4)]
    if Conversation in accepts:
        return [{"messages": [turn("user", f"{a} plus {b}"), turn("assistant", f"{a + b}")]} for a, b in sums]
    if Preference in accepts:
        return [{"instruction": f"{a} plus {b}", "chosen": f"that makes {a + b}", "rejected": "no"} for a, b in sums]
    if UnpairedPreference in accepts:
        turns = [[turn("user", f"{a} plus {b}"), turn("assistant", f"{a + b}")] for a, b in sums]
        return [{"messages": messages, "label": i % 2 == 0} for i, messages in enumerate(turns)]
    assert Document in accepts, accepts
    return [{"text": f"{a} plus {b} makes {a + b}. the quick brown fox jumps over dogs"} for a, b in sums]


def turn(role, content):
    return {"role": role, "content": content}


def accepts_of(method):
    plugin = registry.load("method", method)
    given = {
        "config": plugin.Config.model_construct(),
        "tokenizer": ToyTokenizer(),
        "max_length": 64,
        "too_long": "auto",
    }
    build = plugin.ernie_build_encoder
    names = build.__code__.co_varnames[1 : build.__code__.co_argcount]
    return build(**{name: given[name] for name in names}).accepts


@pytest.fixture
def words(home, tmp_path):
    """Settings of one combination, as ``section.key=value``."""

    def make(method, adapter, model):
        data = tmp_path / "train.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows_for(accepts_of(method))))
        directory = home / MODELS[model]
        settings = {
            "method.name": method,
            "model.name": model,
            "model.path": directory,
            "data.train": data,
            "data.max_seq_len": 64,
            "train.batch_size": 2,
            "train.max_steps": 3,
            "train.learning_rate": 1e-3,
            "checkpoint.every": 2,
            "run.out": tmp_path / "run",
            "log.report": "false",
            **({} if adapter == "none" else {"adapter.name": adapter, **OTHERS.get(adapter, {"adapter.rank": 2})}),
            **NEEDS.get(method, {}),
        }
        return [f"{key}={str(value).replace('{model}', str(directory))}" for key, value in settings.items()]

    return make


def declared(*combination):
    """The error that a combination is known to give."""
    matches = (c for c in EXCEPTIONS if all(x in ("*", y) for x, y in zip(c, combination, strict=True)))
    return next((EXCEPTIONS[c] for c in matches), None)


def combinations(adapter):
    """(method, model) for one adapter; those that have another one by turns are marked."""
    found = []
    for i, method in enumerate(METHODS):
        for j, model in enumerate(MODELS):
            its_turn = ADAPTERS[(i + j) % len(ADAPTERS)] == adapter
            found.append(pytest.param(method, model, marks=[] if its_turn else pytest.mark.combination))
    return found


# One class per adapter, because a class is what one of several test processes takes.
@pytest.mark.slow
class TestWithoutAdapter:
    @pytest.mark.parametrize(("method", "model"), combinations("none"))
    def test_trains_continues_and_exports(self, words, tmp_path, home, method, model):
        trains_continues_and_exports(words, tmp_path, home, method, "none", model)


@pytest.mark.slow
class TestLora:
    @pytest.mark.parametrize(("method", "model"), combinations("lora"))
    def test_trains_continues_and_exports(self, words, tmp_path, home, method, model):
        trains_continues_and_exports(words, tmp_path, home, method, "lora", model)


@pytest.mark.slow
class TestDora:
    @pytest.mark.parametrize(("method", "model"), combinations("dora"))
    def test_trains_continues_and_exports(self, words, tmp_path, home, method, model):
        trains_continues_and_exports(words, tmp_path, home, method, "dora", model)


@pytest.mark.slow
class TestOthers:
    @pytest.mark.parametrize(("adapter", "model"), [(name, model) for name in OTHERS for model in MODELS])
    def test_trains_continues_and_exports(self, words, tmp_path, home, adapter, model):
        trains_continues_and_exports(words, tmp_path, home, "sft", adapter, model)
        events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
        said = [e["message"] for e in events if e["event"] == "warning" and e["kind"] == "adapter"]
        assert any("stacks of routed experts" in text for text in said) == (model == "ernie45-moe")


def test_adapters_take_turns():
    """Every method has two adapters in every run of the tests, and every adapter meets every model."""
    chosen = {(*case.values, adapter) for adapter in ADAPTERS for case in combinations(adapter) if not case.marks}
    assert len(chosen) == len(METHODS) * len(MODELS)
    assert {(model, adapter) for _, model, adapter in chosen} == {(m, a) for m in MODELS for a in ADAPTERS}
    assert all(len({a for m, _, a in chosen if m == method}) == len(MODELS) for method in METHODS)


def trains_continues_and_exports(words, tmp_path, home, method, adapter, model):
    settings = words(method, adapter, model)
    if message := declared(method, adapter, model):
        with pytest.raises(ErnieError, match=message):
            erniecore.run(overrides=settings, console="none")
        return
    result = erniecore.run(overrides=settings, console="none")
    assert np.isfinite(result.metrics["loss"])
    whole = tensors(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/ckpt/step-00000003")
    (tmp_path / "run/ckpt/latest.json").unlink()
    erniecore.run(overrides=[*settings, "run.resume=must"], console="none")
    assert tensors(tmp_path / "run") == whole

    finished = tmp_path / "run/model"
    if adapter != "none":
        finished = merged(tmp_path / "run", home / MODELS[model], tmp_path / "merged")
    exported = erniecore.export(finished, tmp_path / "hf", to="hf")
    ids = erniecore.generate(erniecore.load_model(exported), [[5, 6, 7]], max_new_tokens=2)
    assert np.shape(ids)[0] == 1


def tensors(run):
    """Everything in the last checkpoint, as bytes."""
    from erniecore_checkpoint.reader import load_checkpoint

    checkpoint = load_checkpoint(run / "ckpt/step-00000003")
    return {(g, n): array.tobytes() for g, members in checkpoint.tensors.items() for n, array in members.items()}


def merged(run, base, out):
    from erniecore.cli.app import main

    assert main(["merge", str(run), "--base", str(base), "--out", str(out)]) == 0
    return out
