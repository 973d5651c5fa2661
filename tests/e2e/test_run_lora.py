"""Adapters through the command line: train, resume bit for bit, use beside the base, merge, use merged."""

import io
import json
import sys

import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_ernie45.templating import builtin_source

import erniecore
from erniecore.cli.app import main
from erniecore.errors import Exit

#: model directory of the home -> plugin, and what else its run needs
MODELS = {"base": "ernie45", "moe": "ernie45-moe"}


@pytest.fixture(scope="module", params=MODELS)
def base(request):
    return request.param


def words(runner, base, **changes):
    name = {"model.name": MODELS[base], "model.path": runner.home / base, "adapter.name": "lora", "adapter.rank": 4}
    settings = {k.replace(".", "__"): v for k, v in name.items()}
    return runner.words(**{**settings, "train__learning_rate": 0.02, **changes})[1:]


def answer(ernie, *words):
    outcome = ernie("generate", *words, "--prompt", "3 plus 4", "--max-new-tokens", 6, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["ids"]


def test_train_use_merge(ernie, runner, base):
    out, merged = runner.directory / "out", runner.directory / "merged"
    outcome = ernie("run", *words(runner, base))
    assert outcome.code == 0, outcome.err
    assert {p.name for p in (out / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "erniecore_manifest.json",
        "chat_template.jinja", *(p.name for p in (runner.home / "tok").iterdir()),
    }  # fmt: skip
    assert not (out / "model").exists()
    losses = [e["loss"] for e in runner.events("step")]
    assert losses[-1] < losses[0]

    beside = answer(ernie, "--model", runner.home / base, "--adapter", out)
    assert beside == answer(ernie, "--model", out)
    outcome = ernie("merge", out, "--out", merged, "--json")
    assert outcome.code == 0, outcome.err
    done = json.loads(outcome.out)
    assert 0 < done["difference"] <= 1e-4 * max(done["largest"], 1)
    assert answer(ernie, "--model", merged) == beside
    assert ernie("export", merged, "--out", runner.directory / "again").code == 0


def test_an_adapter_is_used_with_the_prompts_that_it_was_trained_with(ernie, runner):
    """Another chat template than the base's goes with it: beside its base, merged and from Python."""
    out, merged, base = runner.directory / "out", runner.directory / "merged", runner.home / "base"
    assert (
        ernie("run", *words(runner, "base", model__template="thinking", data__max_seq_len=256, train__max_steps=1)).code
        == 0
    )
    wanted = builtin_source("thinking")
    assert erniecore.load_tokenizer(base).chat_template.source != wanted
    assert erniecore.load_tokenizer(out).chat_template.source == wanted
    assert erniecore.open_model(out).tokenizer.chat_template.source == wanted
    assert erniecore.open_model(base, adapter=out).tokenizer.chat_template.source == wanted
    assert ernie("merge", out, "--out", merged).code == 0
    assert erniecore.load_tokenizer(merged).chat_template.source == wanted

    (out / "adapter" / "chat_template.jinja").write_text("{{ messages }}")
    assert ernie("generate", "--model", out, "--prompt", "x").code == Exit.CHECKPOINT  # not what was written


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(ernie, runner):
    """As adapters of others are, and ours of before."""
    out = runner.directory / "out"
    assert (
        ernie("run", *words(runner, "base", model__template="thinking", data__max_seq_len=256, train__max_steps=1)).code
        == 0
    )
    manifest = out / "adapter" / "erniecore_manifest.json"
    content = json.loads(manifest.read_text())
    del content["provenance"]["tokenizer"]
    manifest.write_text(json.dumps(content))
    source = erniecore.load_tokenizer(runner.home / "base").chat_template.source
    assert erniecore.load_tokenizer(out).chat_template.source == source


def test_merging_twice_is_refused(ernie, refuses, runner):
    out, merged = runner.directory / "out", runner.directory / "merged"
    assert ernie("run", *words(runner, "base", train__max_steps=2)).code == 0
    assert ernie("merge", out, "--base", runner.home / "base", "--out", merged).code == 0
    again = ["merge", out / "adapter", "--base", merged, "--out", runner.directory / "twice"]
    refuses(again, Exit.USAGE, "merged into this base already", merged, remedy="use it as it is")
    assert not (runner.directory / "twice").exists()


def test_export_of_an_adapter_run_says_merge(ernie, refuses, runner):
    assert ernie("run", *words(runner, "base", train__max_steps=1)).code == 0
    out = runner.directory / "out"
    refuses(["export", out, "--out", runner.directory / "x"], Exit.USAGE, "an adapter beside", remedy="ernie merge")


def test_plan_and_checkpoint_count_the_adapter(ernie, runner, base):
    outcome = ernie("run", *words(runner, base, train__max_steps=1), "--dry-run", "--json")
    assert outcome.code == 0, outcome.err
    plan = json.loads(outcome.out)
    assert ernie("run", *words(runner, base, train__max_steps=1)).code == 0
    assert plan["parameters"]["trainable"] == runner.events("run_start")[0]["trainable"]
    checkpoint = load_checkpoint(runner.directory / "out" / "ckpt" / "step-00000001")
    assert all(".lora." in name for name in checkpoint.tensors["model"])
    assert plan["checkpoint"] == runner.events("checkpoint")[0]["bytes"]


def test_pattern_that_matches_nothing(refuses, runner):
    named = words(runner, "base", adapter__targets="qproj")
    refuses(["run", *named], Exit.USAGE, "adapter.targets", "'qproj' matches no layer", remedy="did you mean q_proj?")


def test_damaged_adapter_is_refused(ernie, refuses, runner):
    assert ernie("run", *words(runner, "base", train__max_steps=1)).code == 0
    file = runner.directory / "out" / "adapter" / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-9] ^= 64
    file.write_bytes(data)
    generate = ["generate", "--model", runner.directory / "out", "--prompt", "x"]
    refuses(generate, Exit.CHECKPOINT, "adapter_model.safetensors", remedy="fetch or train it again")


def test_preferences_with_an_adapter(runner, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    rows = [
        {"instruction": f"{a} plus {b}", "chosen": f"that makes {a + b}", "rejected": f"{a + b}"}
        for a in range(8)
        for b in range(5)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data__train": pairs, "method__name": "dpo", "adapter__name": "dora", "train__batch_size": 4}
    runner.run(**settings, method__beta=0.5, train__learning_rate=0.02)
    first, *_, last = runner.events("step")
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)  # ln 2: the policy is its reference
    assert last["rewards/margins"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora-plus", "dora"])
def test_killed_run_continues_bit_for_bit(runner, base, adapter):
    settings = {"adapter__name": adapter, "adapter__init": "pissa", "adapter__dropout": 0.1, "checkpoint__every": 2}
    settings |= {"model__path": runner.home / base, "adapter__rank": 2, "model__name": MODELS[base]}
    runner.complete("straight", **settings)
    runner.kill_at(5, "killed", **settings)
    runner.complete("killed", **settings)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")


def test_several_adapters_on_one_base_are_switched_in_a_chat(runner, tmp_path, monkeypatch, capsys):
    places = []
    for name, seed in (("first", 1), ("second", 2)):
        settings = {"train__max_steps": 8, "run__seed": seed, "adapter__rank": 4, "train__learning_rate": 0.02}
        erniecore.run(overrides=words(runner, "base", **settings, run__out=tmp_path / name), console="none")
        places.append(tmp_path / name)
    lines = ["/adapter", "1 plus 2", "/adapter second", "/reset", "1 plus 2", "/adapter off", "/adapter sekond"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    capsys.readouterr()
    options = ["--adapter", str(places[0]), "--adapter", f"second={places[1] / 'adapter'}", "--max-new-tokens", "6"]
    code = main(["chat", "--model", str(runner.home / "base"), *options, "--temperature", "0"])
    err = capsys.readouterr().err
    assert code == 0, err
    assert "first, second, off" in err
    assert "did you mean second?" in err
    model = erniecore.load_model(runner.home / "base", adapter=places[0])
    assert model.adapter_names() == ["default"]
    erniecore.load_adapter(model, places[1], "second")
    assert model.adapter_names() == ["default", "second"]
