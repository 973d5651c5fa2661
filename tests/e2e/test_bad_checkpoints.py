"""Checkpoints that are damaged, missing or of other settings or data, through the command line."""

import json
import os
import shutil

import pytest

from erniecore.errors import Exit

SIX = {"train__max_steps": 6, "checkpoint__every": 2}


def newest(trained):
    return trained / "ckpt" / "step-00000006"


def flip(path, at=-500):
    data = bytearray(path.read_bytes())
    data[at] ^= 64
    path.write_bytes(data)


DAMAGE = {
    "weights": (lambda c: flip(next(c.glob("model-*"))), "model-00001-of-00001.safetensors: model."),
    "moments": (lambda c: flip(next(c.glob("optim-*"))), "optim-00001-of-00001.safetensors: "),
    "header": (lambda c: flip(next(c.glob("model-*")), 20), "model-00001-of-00001.safetensors"),
    "end": (lambda c: os.truncate(next(c.glob("optim-*")), 9000), "optim-00001-of-00001.safetensors"),
    "state": (lambda c: flip(c / "state.json", 30), "state.json"),
    "no state": (lambda c: (c / "state.json").unlink(), "state.json"),
    "no weights": (lambda c: next(c.glob("model-*")).unlink(), "model-00001-of-00001.safetensors"),
    "manifest": (lambda c: (c / "MANIFEST.json").write_text("{"), "MANIFEST.json"),
}


@pytest.mark.parametrize("case", DAMAGE.values(), ids=DAMAGE)
def test_damaged_newest_is_passed_over_aloud(ernie, runner, trained, case):
    damage, name = case
    expected = runner.tensors(6)
    damage(newest(trained))
    found = ernie("ckpt", "verify", trained)
    assert found.code == Exit.CHECKPOINT
    assert name in found.out
    outcome = ernie("run", *runner.words(**SIX))
    assert outcome.code == 0, outcome.err
    notes = "\n".join(line for line in outcome.out.splitlines() if line.startswith("note"))
    assert "step-00000006 is damaged and passed over" in notes
    assert name in notes
    assert "step-00000004 is whole and used instead" in notes
    assert runner.tensors(6) == expected
    assert ernie("ckpt", "verify", trained).code == 0


def test_all_damaged_is_an_error_that_names_each(refuses, runner, trained, snapshot):
    for path in (trained / "ckpt").glob("step-*"):
        flip(next(path.glob("model-*")))
    before = snapshot(trained / "ckpt")
    steps = ("step-00000002", "step-00000004", "step-00000006")
    refuses(["run", *runner.words(**SIX)], Exit.CHECKPOINT, *steps, remedy="start anew in another run.out")
    assert snapshot(trained / "ckpt") == before


def test_worthless_pointer_to_the_newest_does_not_matter(ernie, runner, trained):
    (trained / "ckpt" / "latest.json").write_text("{")
    outcome = ernie("run", *runner.words(**SIX | {"train__max_steps": 8}))
    assert outcome.code == 0, outcome.err
    assert "continuing from" in outcome.out
    assert "step-00000006" in outcome.out


def test_must_without_a_checkpoint(refuses, runner):
    words = ["run", *runner.words(**SIX), "--resume", "must"]
    refuses(words, Exit.CHECKPOINT, runner.directory / "out" / "ckpt", remedy="start with --resume auto")


def test_named_checkpoint_that_is_none(refuses, runner):
    words = ["run", *runner.words(**SIX), "--resume"]
    refuses([*words, runner.home / "base"], Exit.CHECKPOINT, runner.home / "base", remedy="ckpt/step-00000120")
    refuses([*words, "nowhere/step-1"], Exit.CHECKPOINT, "nowhere/step-1", remedy="ckpt/step-00000120")


def test_named_checkpoint_is_not_exchanged_for_another(refuses, runner, trained):
    flip(next(newest(trained).glob("model-*")))
    words = ["run", *runner.words("elsewhere", **SIX), "--resume", newest(trained)]
    refuses(words, Exit.CHECKPOINT, "model-00001-of-00001.safetensors", remedy="sha256 differs")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"train__learning_rate": 1e-4}, "train.learning_rate: 0.003 -> 0.0001"),
        ({"run__seed": 7}, "run.seed: 42 -> 7"),
        ({"train__batch_size": 3}, "train.batch_size: 2 -> 3"),
        ({"data__packing": "none"}, "data.packing: 'greedy' -> 'none'"),
    ],
)
def test_settings_that_change_the_result_are_named(refuses, runner, trained, snapshot, change, place):
    before = snapshot(trained / "ckpt")
    words = ["run", *runner.words(**SIX | change)]
    refuses(words, Exit.USAGE, place, newest(trained), remedy="use the old values, or choose another run.out")
    assert snapshot(trained / "ckpt") == before


def test_other_model_is_named(refuses, runner, trained):
    words = ["run", *runner.words(**SIX, model__path=runner.home / "moe")[1:]]
    refuses(words, Exit.USAGE, "model.path", newest(trained), remedy="choose another run.out")


def test_changed_data_file_is_named(refuses, ernie, runner, snapshot):
    data = shutil.copy(runner.home / "train.jsonl", runner.directory / "train.jsonl")
    words = ["run", *runner.words(**SIX, data__train=data)]
    assert ernie(*words).code == 0
    before = snapshot(runner.directory / "out" / "ckpt")
    rows = (runner.directory / "train.jsonl").read_text().splitlines(keepends=True)
    (runner.directory / "train.jsonl").write_text("".join(rows[1:] + rows[:1]))  # the same size
    refuses([*words, "train.max_steps=8"], Exit.DATA, f"where   {data}", "sha256", remedy="restore the file")
    assert snapshot(runner.directory / "out" / "ckpt") == before


def test_unfinished_save_is_no_checkpoint(ernie, runner, trained):
    expected = runner.tensors(6)
    newest(trained).rename(trained / "ckpt" / ".tmp-step-00000006-0123abcd")
    next((trained / "ckpt" / ".tmp-step-00000006-0123abcd").glob("optim-*")).unlink()
    outcome = ernie("run", *runner.words(**SIX))
    assert outcome.code == 0, outcome.err
    assert runner.tensors(6) == expected


def test_manifest_that_points_outside_is_refused(ernie, trained, tmp_path):
    path = newest(trained) / "MANIFEST.json"
    (tmp_path / "secret").write_text("mine")
    path.write_text(path.read_text().replace("model-00001-of-00001.safetensors", "../../../secret"))
    json.loads(path.read_text())
    outcome = ernie("ckpt", "verify", newest(trained))
    assert outcome.code == Exit.CHECKPOINT
    assert "mine" not in outcome.out + outcome.err
