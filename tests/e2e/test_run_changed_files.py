"""A run that continues finds the base, tokenizer, template, adapter and other models that its checkpoint was made with, and an
adapter finds its base: what has changed is named, and accepted by name.
"""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from erniecore.errors import Exit

LORA = {"adapter__name": "lora", "adapter__rank": 4}
PAIRS = {
    "method__name": "dpo",
    "data__train": "pairs.jsonl",
    "data__packing": "none",
    "train__batch_size": 1,
}
KINDS = {"full": {}, "lora": LORA, "dpo": PAIRS, "lora dpo": {**LORA, **PAIRS}}


def edit_config(model):
    path = model / "config.json"
    path.write_text(path.read_text().replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 1e-03'))


def scale_weights(model):
    (path,) = model.glob("*.safetensors")
    tensors = {name: (array * 1.5).astype(array.dtype) for name, array in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def edit_tokenizer(model):
    path = model / "special_tokens_map.json"
    path.write_text(path.read_text() + "\n")


def edit_template(model):
    path = model / "chat_template.jinja"
    path.write_text(path.read_text() + "{# changed #}" if path.exists() else "{{ messages[0].content }}")


CHANGES = {
    "config": (edit_config, "base", "config.json"),
    "weights": (scale_weights, "base", "model.safetensors"),
    "tokenizer": (edit_tokenizer, "tokenizer", "special_tokens_map.json"),
    "template": (edit_template, "template", "chat_template.jinja"),
}


@pytest.fixture(scope="module", params=KINDS)
def begun(request, home, tmp_path_factory, runner_class):
    """A run of each kind that stopped after its first step: its runner, the command, its model."""
    directory = tmp_path_factory.mktemp("begun")
    model = shutil.copytree(home / "base", directory / "model")
    rows = [{"prompt": f"{i} plus {i}", "chosen": str(2 * i), "rejected": str(3 * i)} for i in range(1, 10)]
    (directory / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {key: directory / value if key == "data__train" else value for key, value in KINDS[request.param].items()}
    runner = runner_class(home, directory)
    words = ["run", *runner.words(**{"model__path": model, "train__max_steps": 2, **changes})]
    words = [word for word in words if not (word == "method.name=sft" and "method__name" in changes)]
    return runner, words, model


def test_every_change_is_refused_by_name_and_can_be_accepted(begun, ernie, refuses):
    runner, words, model = begun
    stopped = ernie(*words, "run.until=1")
    assert stopped.code == Exit.PREEMPTED, stopped.err
    whole = shutil.copytree(model, runner.directory / "whole")
    for change, part, file in CHANGES.values():
        change(model)
        found = refuses(
            words, Exit.USAGE, "ERN-C021", f"{part} {file}: ", " -> ", remedy=f"run.accept_changes=[{part}]"
        )
        assert len(runner.events("step")) == 1, found
        shutil.rmtree(model)
        shutil.copytree(whole, model)
    edit_config(model)
    edit_tokenizer(model)
    refuses(
        [*words, "run.accept_changes=[tokenizer]"], Exit.USAGE, "base config.json: ", remedy="accept_changes=[base]"
    )
    assert ernie(*words, "run.accept_changes=[base,tokenizer]").code == 0
    (note,) = [n for n in runner.events("run_start")[-1]["notes"] if n.startswith("accepted")]
    assert "base config.json: " in note
    assert "tokenizer special_tokens_map.json: " in note
    assert ernie(*words).code == 0  # the next checkpoint has the fingerprint of what it continued with
    state = json.loads((runner.directory / "out" / "ckpt" / "step-00000002" / "state.json").read_text())
    assert {"base", "tokenizer", "plugins"} <= state["fingerprint"].keys()
    assert "erniecore" in state["fingerprint"]["plugins"]


def test_an_adapter_knows_its_base(runner, ernie, refuses, home):
    model = shutil.copytree(home / "base", runner.directory / "model")
    words = {"model__path": model, "train__max_steps": 1, **LORA}
    assert ernie("run", *runner.words(**words)).code == 0
    out = runner.directory / "out"
    scale_weights(model)
    (model / "erniecore_manifest.json").unlink()
    merged, asked = runner.directory / "merged", ["--prompt", "1", "--max-new-tokens", 1]
    refuses(["merge", out, "--out", merged], Exit.USAGE, "ERN-C021", model, "not", remedy="--base DIR")
    refuses(["generate", "--model", out, *asked], Exit.USAGE, "ERN-C021", model, remedy="--model BASE --adapter DIR")
    refuses(["export", out, "--out", merged], Exit.USAGE, "ERN-C021", model, remedy="--adapter DIR")
    named = ernie("generate", "--model", model, "--adapter", out, *asked)
    assert named.code == 0, named.err
    assert "ERN-C021" in named.err
    done = ernie("merge", out, "--base", model, "--out", merged)
    assert done.code == 0, done.err
    assert "is not the base that the adapter was trained on" in done.err
    again = {**words, "adapter__path": out / "adapter", "train__max_steps": 2}
    assert ernie("run", *runner.words("next", **again), "run.until=1").code == Exit.PREEMPTED
    path = out / "adapter" / "adapter_model.safetensors"
    save_file({name: array * np.float32(2) for name, array in load_file(path).items()}, path, metadata={"format": "pt"})
    refuses(["run", *runner.words("next", **again)], Exit.USAGE, f"{path}: ", remedy="accept_changes=[adapter]")


def test_the_cache_of_hashes_is_only_a_cache(runner, ernie, home, monkeypatch, tmp_path):
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    cache.mkdir()
    (cache / "erniecore").write_text("in the way")
    assert ernie("run", *runner.words(train__max_steps=1)).code == 0
    assert os.listdir(cache) == ["erniecore"]
