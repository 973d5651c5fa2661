"""Adapters from elsewhere: descriptions of other types, factors that do not fit, manifests that point to other places."""

import json
import shutil

import pytest
from hostile_files import JSON_TEXTS, SPECIAL, WRONG, assert_refused, edit, shown, special

from erniecore.errors import Exit

pytestmark = pytest.mark.area("adapters")
REFUSED = {Exit.CHECKPOINT, Exit.PLUGIN, Exit.USAGE, Exit.ENVIRONMENT, Exit.MEMORY, Exit.NUMERICS}


@pytest.fixture(scope="session")
def saved(talker, made, tmp_path_factory):
    """An adapter that a run left."""

    out = tmp_path_factory.mktemp("saved") / "run"
    words = [
        "run",
        "--model",
        talker / "model",
        "--method",
        "sft",
        "--data",
        talker / "rows.jsonl",
        "--adapter",
        "lora",
    ]
    words += ["--out", out, "train.max_steps=1", "data.max_seq_len=64", "eval.every=0"]
    made(*words)
    return out / "adapter"


@pytest.fixture
def adapter(saved, box):
    """A copy without hashes of its files."""
    home = shutil.copytree(saved, box / "adapter")
    (home / "erniecore_manifest.json").unlink()
    return home


@pytest.fixture
def merges(ernie, talker, adapter):
    """Merge it into the model of the session."""
    return lambda *more: ernie("merge", adapter, "--base", talker / "model", "--out", adapter.parent / "merged", *more)


def rewrite_origin(adapter, **facts):
    """Change what the adapter's manifest says of where it comes from."""
    manifest = adapter / "erniecore_manifest.json"
    edit(manifest, provenance={**json.loads(manifest.read_text())["provenance"], **facts})


@pytest.fixture
def whole(saved, box):
    """A copy with its manifest."""
    return shutil.copytree(saved, box / "adapter")


OTHERS = {
    "no digest": ({"fingerprint": {}}, "no digest"),
    "digests of other things": ({"fingerprint": {"plugins": {}}}, "no digest"),
    "no text as digest": ({"fingerprint": {"base": None}}, "no digest"),
    "an empty digest": ({"fingerprint": {"base": ""}}, "ERN-C021"),
    "another digest": ({"fingerprint": {"base": "0" * 64}}, "ERN-C021"),
    "no base": ({"base": ""}, "does not say where its base is"),
    "a number as base": ({"base": 5}, "does not say where its base is"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_base_elsewhere_is_the_one_of_the_digest_or_asked_for(ernie, talker, whole, name):
    facts, said = OTHERS[name]
    rewrite_origin(whole, **facts)
    words = ["generate", "--prompt", "copy", "--max-new-tokens", "1"]
    outcome = ernie(*words, "--model", whole)
    assert_refused(outcome, {Exit.USAGE}, said)
    assert "--model BASE --adapter" in outcome.err
    assert_refused(ernie(*words, "--model", talker / "model", "--adapter", whole), {0})


def test_a_base_of_the_digest_is_used_as_the_run_left_it(ernie, whole):
    assert_refused(ernie("generate", "--model", whole, "--prompt", "copy", "--max-new-tokens", "1"), {0})


def test_a_base_within_the_directory_is_used(ernie, talker, whole):
    shutil.copytree(talker / "model", whole / "base")
    rewrite_origin(whole, base="base", fingerprint={})
    assert_refused(ernie("generate", "--model", whole, "--prompt", "copy", "--max-new-tokens", "1"), {0})


def test_the_adapter_works_before_it_is_damaged(merges):
    assert merges().code == 0


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_a_description_that_is_no_json_object(merges, adapter, text):
    (adapter / "adapter_config.json").write_bytes(JSON_TEXTS[text])
    assert_refused(merges(), REFUSED, "adapter_config.json")


KEYS = ["r", "lora_alpha", "target_modules", "peft_type", "rank_pattern", "alpha_pattern", "modules_to_save", "bias",
        "use_rslora", "use_dora", "target_parameters", "fan_in_fan_out", "exclude_modules", "layers_to_transform"]  # fmt: skip


@pytest.mark.parametrize("value", [*WRONG, None, 10**399, -(10**12), "(a+)+$"], ids=shown)
@pytest.mark.parametrize("key", KEYS)
def test_values_of_another_type_in_the_description(merges, adapter, key, value):
    edit(adapter / "adapter_config.json", **{key: value})
    assert_refused(merges(), {0, *REFUSED})


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "lora_config.json"])
def test_what_is_no_file_is_never_read(merges, adapter, file, kind):
    special(adapter / file, kind)
    assert_refused(merges(), {0, *REFUSED} if file == "lora_config.json" else REFUSED)


@pytest.mark.parametrize("text", ["cut", "deep lists", "list", "number", "not UTF-8", "empty"])
def test_a_manifest_that_is_no_manifest(merges, adapter, text):
    (adapter / "erniecore_manifest.json").write_bytes(JSON_TEXTS[text])
    assert_refused(merges(), {0, *REFUSED})


@pytest.mark.parametrize("value", [*WRONG, {"base": 5}, {"base": "x" * 5000}, {"adapter": "\x1b[31m"}, {"adapter": "x" * 5000},
                                   {"adapter": 5}, {"quantizer": ["x"]}], ids=shown)  # fmt: skip
def test_a_manifest_of_another_type(merges, ernie, adapter, value):
    content = {"kind": "erniecore-model", "format": 1, "provenance": value, "files": value}
    (adapter / "erniecore_manifest.json").write_text(json.dumps(content))
    assert_refused(merges(), {0, *REFUSED})
    assert_refused(ernie("generate", "--model", adapter, "--prompt", "x", "--max-new-tokens", "1"), REFUSED)


@pytest.mark.parametrize("name", ["../outside/secret.txt", "/etc/hostname", "a/../../x", "\x1b[31m", "x" * 5000, ""])
def test_a_manifest_lists_files_of_its_own_directory(merges, adapter, name):
    files = {name: {"bytes": 5, "sha256": "0" * 64}}
    content = {"kind": "erniecore-model", "format": 1, "provenance": {}, "files": files}
    (adapter / "erniecore_manifest.json").write_text(json.dumps(content))
    assert_refused(merges(), REFUSED)
