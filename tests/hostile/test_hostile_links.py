"""Links in model directories and adapters: those of a hub cache are followed, those to other places are refused by name."""

import shutil

import pytest
from hostile_files import assert_refused

from erniecore.errors import Exit

FILES = ["config.json", "model.safetensors", "tokenizer.model", "tokenizer_config.json", "generation_config.json",
         "chat_template.jinja", "special_tokens_map.json", "erniecore_manifest.json"]  # fmt: skip


def linked(place, target):
    """``place`` as a link to its content at ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        shutil.move(place, target)
    else:
        target.write_text("{}")
    place.symlink_to(target)


@pytest.mark.area("weights, index, pickle")
@pytest.mark.parametrize("file", FILES)
def test_a_link_out_of_a_model_directory_is_refused(answers, model, box, file):
    linked(model / file, box / "elsewhere" / file)
    assert_refused(answers(), {Exit.CHECKPOINT}, "ERN-K022", file, "ERNIE_FOLLOW_LINKS=1")


@pytest.mark.area("weights, index, pickle")
@pytest.mark.parametrize(
    "target", ["../secret", "/etc/hostname", "sub/../../x", "../model2/config.json", "/proc/self/environ"]
)
def test_a_link_to_nowhere_or_to_other_files_is_refused(answers, model, target):
    (model / "notes.txt").symlink_to(target)
    assert_refused(answers(), {Exit.CHECKPOINT}, "ERN-K022", "notes.txt")


@pytest.mark.area("weights, index, pickle")
def test_links_are_followed_for_who_asks(ernie, model, box):
    for file in FILES:
        if (model / file).exists():
            linked(model / file, box / "elsewhere" / file)
    words = ["generate", "--model", model, "--prompt", "copy", "--max-new-tokens", "1"]
    assert ernie(*words, environ={"ERNIE_FOLLOW_LINKS": "0"}).code == Exit.CHECKPOINT
    assert ernie(*words, environ={"ERNIE_FOLLOW_LINKS": "1"}).code == 0


COMMANDS = {
    "generate": ["generate", "--model", "model", "--prompt", "copy", "--max-new-tokens", "1"],
    "eval": ["eval", "--model", "model", "--data", "rows.jsonl"],
    "run": ["run", "--model", "model", "--method", "sft", "--data", "rows.jsonl", "--out", "run", "train.max_steps=1",
            "data.max_seq_len=64", "eval.every=0"],
    "export": ["export", "model", "--out", "exported"],
    "quantize": ["quantize", "model", "--to", "wint8", "--out", "packed"],
    "plan": ["plan", "--model", "model", "--method", "sft", "--data", "rows.jsonl", "data.max_seq_len=64"],
    "data check": ["data", "check", "rows.jsonl", "--model", "model", "--method", "sft"],
}  # fmt: skip


@pytest.mark.area("weights, index, pickle")
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_a_flag_to_follow_links(ernie, model, rows, box, name):
    for file in FILES:
        if (model / file).exists():
            linked(model / file, box / "elsewhere" / file)
    assert_refused(ernie(*COMMANDS[name]), {Exit.CHECKPOINT}, "ERN-K022", "--follow-links")
    assert_refused(ernie(*COMMANDS[name], "--follow-links"), {0})


@pytest.mark.area("weights, index, pickle")
@pytest.mark.parametrize("how", ["snapshot", "linked snapshot", "out of the cache"])
def test_the_cache_of_the_hub_is_read(ernie, model, box, how):
    home = box / "hub" / "models--baidu--tiny"
    snapshot = home / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blobs = box / "hub" / "models--other" / "blobs" if how == "out of the cache" else home / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.move(file, blobs / str(number))
        up = "../../../models--other/blobs" if how == "out of the cache" else "../../blobs"
        (snapshot / file.name).symlink_to(f"{up}/{number}")
    if how == "linked snapshot":
        (box / "mine").symlink_to(snapshot)
        snapshot = box / "mine"
    outcome = ernie("generate", "--model", snapshot, "--prompt", "copy", "--max-new-tokens", "1")
    assert_refused(outcome, {Exit.CHECKPOINT} if how == "out of the cache" else {0})


@pytest.mark.area("weights, index, pickle")
def test_links_inside_a_directory_are_followed(answers, model):
    (model / "store").mkdir()
    shutil.move(model / "model.safetensors", model / "store" / "w")
    (model / "model.safetensors").symlink_to("store/w")
    assert answers().code == 0
