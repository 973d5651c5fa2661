"""Bits that flipped and files that were cut, in everything that a run leaves: named where it is looked at, and never continued
from, merged or loaded. Where nothing says what the bytes were, the file is refused or is whole as it is."""

import json
import shutil

import pytest
from hostile_files import assert_refused, damage

from erniecore.errors import Exit

pytestmark = pytest.mark.area("flips and cuts of checkpoints, adapters, models, token files")
SETTINGS = ["train.max_steps=4", "checkpoint.every=2", "data.max_seq_len=64", "train.batch_size=2", "eval.every=0"]


@pytest.fixture(scope="session")
def trained(talker, made, tmp_path_factory):
    """What runs leave: ``full`` and ``lora`` of four steps with checkpoints at 2 and 4, ``packed`` quantized weights, and
    ``tokens`` of token files."""
    home = tmp_path_factory.mktemp("trained")
    model, rows = talker / "model", talker / "rows.jsonl"
    run = ["run", "--model", model, "--method", "sft", "--data", rows, *SETTINGS]
    (home / "corpus.txt").write_text("copy this\n" * 40)
    for words in (
        [*run, "--out", home / "full"],
        [*run, "--out", home / "lora", "--adapter", "lora"],
        ["quantize", model, "--to", "wint8", "--out", home / "packed"],
        ["data", "build", home / "corpus.txt", "--tokenizer", model, "--out", home / "tokens" / "t"],
    ):
        made(*words)
    return home


def assert_named(outcome, file):
    """``ernie ckpt verify`` says which file is not as it was written."""
    assert outcome.code == Exit.CHECKPOINT, outcome
    assert "DAMAGED" in outcome.out
    assert file in outcome.out


KINDS = [*(("flip", seed) for seed in range(5)), *(("cut", seed) for seed in range(3)), ("hole", 0), ("extra", 0)]
CHECKPOINT = ["MANIFEST.json", "state.json", "model", "optim"]


@pytest.mark.parametrize(("kind", "seed"), KINDS)
@pytest.mark.parametrize("part", CHECKPOINT)
@pytest.mark.parametrize("run", ["full", "lora"])
def test_a_damaged_checkpoint_is_named_and_passed_over(ernie, talker, trained, box, run, part, kind, seed):
    out = shutil.copytree(trained / run, box / run)
    shutil.rmtree(out / "model", ignore_errors=True)
    shutil.rmtree(out / "adapter", ignore_errors=True)
    events = [line for line in (out / "events.jsonl").read_text().splitlines() if '"run_end"' not in line]
    (out / "events.jsonl").write_text("\n".join(events) + "\n")
    newest = out / "ckpt" / "step-00000004"
    file = next(path for path in sorted(newest.iterdir()) if path.name.startswith(part))
    if not damage(file, kind, seed):
        file.write_bytes(b"")
    assert_named(ernie("ckpt", "verify", newest), file.name)
    words = ["run", "--model", talker / "model", "--method", "sft", "--data", talker / "rows.jsonl", *SETTINGS]
    more = ["--adapter", "lora"] if run == "lora" else []
    outcome = ernie(*words, *more, "--out", out)
    assert_refused(outcome, {0})
    assert "step-00000004 is damaged and passed over" in outcome.out + outcome.err
    assert "step-00000002 is whole and used instead" in outcome.out + outcome.err
    weights = "adapter/adapter_model.safetensors" if run == "lora" else "model/model.safetensors"
    assert (out / weights).read_bytes() == (trained / run / weights).read_bytes()


@pytest.mark.parametrize(("kind", "seed"), KINDS)
@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "erniecore_manifest.json"])
def test_a_damaged_adapter_is_never_loaded(ernie, talker, trained, box, file, kind, seed):
    adapter = shutil.copytree(trained / "lora" / "adapter", box / "adapter")
    if not damage(adapter / file, kind, seed):
        (adapter / file).write_bytes(b"")
    outcome = ernie("merge", adapter, "--base", talker / "model", "--out", box / "merged")
    if (
        file == "erniecore_manifest.json"
    ):  # it has no hash of its own: the adapter is what it was, or the manifest is no JSON
        assert_refused(outcome, {0, Exit.CHECKPOINT, Exit.PLUGIN, Exit.USAGE})
    else:
        assert_refused(outcome, {Exit.CHECKPOINT}, file)


@pytest.mark.parametrize(("kind", "seed"), KINDS)
@pytest.mark.parametrize("file", ["config.json", "weights", "tokenizer.model", "tokenizer_config.json"])
@pytest.mark.parametrize("home", ["model", "packed"])
def test_a_damaged_model_is_named(ernie, talker, trained, box, home, file, kind, seed):
    model = shutil.copytree(talker / home if home == "model" else trained / home, box / home)
    weights = file == "weights"
    file = next(model.glob("*.safetensors")).name if weights else file
    if not damage(model / file, kind, seed):
        (model / file).write_bytes(b"")
    assert_named(ernie("ckpt", "verify", model), file)
    outcome = ernie("generate", "--model", model, "--prompt", "copy", "--max-new-tokens", "1")
    # the weights have hashes that are looked at; of the other files only what cannot be is refused
    assert_refused(outcome, {Exit.CHECKPOINT} if weights else {0, *Exit} - {Exit.BUG})


@pytest.mark.parametrize(("kind", "seed"), KINDS)
@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_damaged_token_file_is_an_error_or_other_tokens(ernie, talker, trained, box, suffix, kind, seed):
    files = shutil.copytree(trained / "tokens", box / "tokens")
    damage(files / f"t{suffix}", kind, seed)
    words = ["run", "--model", talker / "model", "--method", "pt", "--data", files / "t", "--out", box / "run"]
    outcome = ernie(*words, "train.max_steps=1", "data.max_seq_len=16", "eval.every=0", "train.batch_size=1")
    lengths_agree = suffix == ".bin" and kind in ("flip", "hole")
    assert_refused(outcome, {0, Exit.DATA} if lengths_agree else {0, Exit.DATA, Exit.USAGE})


def test_the_run_continues_where_nothing_is_damaged(ernie, talker, trained, box):
    out = shutil.copytree(trained / "full", box / "full")
    outcome = ernie("ckpt", "verify", out)
    assert outcome.code == 0, outcome
    report = json.loads(ernie("ckpt", "verify", out, "--json").out)
    assert report
