"""Losses and gradients that are not finite: exit 7, the place, and weights that were never updated with them."""

import shutil

import numpy as np
import pytest
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint
from safetensors.numpy import load_file, save_file

from erniecore.errors import Exit

#: the first update makes every weight about 1e30; what follows overflows
WILD = {
    "train__learning_rate": 1e30,
    "train__max_grad_norm": 0,
    "train__schedule": "constant",
    "train__max_steps": 20,
    "train__max_rollbacks": 0,
    "checkpoint__every": 1,
}


def test_diverged_run_stops_with_the_place(refuses, runner):
    outcome = refuses(["run", *runner.words(**WILD)], Exit.NUMERICS, "4 in a row", remedy="lower train.learning_rate")
    assert "where   " in outcome.err
    assert str(runner.home / "train.jsonl") + ":" in outcome.err
    assert outcome.out.count("warn   numerics") == 3
    skips = [event["skipped"] for event in runner.events("warning") if event["kind"] == "numerics"]
    assert skips == [1, 2, 3]
    assert runner.events("run_end")[-1]["status"] == "failed"
    assert not (runner.directory / "out" / "model").exists()


def test_skipped_steps_change_no_weight(runner, ernie):
    assert ernie("run", *runner.words(**WILD, checkpoint__keep=9)).code == Exit.NUMERICS
    saved = [load_checkpoint(path) for path in list_checkpoints(runner.directory / "out" / "ckpt")]
    assert len(saved) >= 3
    first = saved[0].tensors
    for checkpoint in saved:
        for group, members in checkpoint.tensors.items():
            for name, array in members.items():
                assert np.isfinite(array).all(), (checkpoint.step, name)
                assert array.tobytes() == first[group][name].tobytes(), (checkpoint.step, name)


def test_first_bad_step_can_end_the_run(refuses, runner):
    refuses(
        ["run", *runner.words(**WILD, train__max_skips=0)], Exit.NUMERICS, "step 2", "1 in a row", remedy="lower train"
    )


def test_checkpoints_from_before_still_load(ernie, runner, trained):
    assert ernie("run", *runner.words(**WILD)).code == Exit.USAGE  # other settings: the good run is left alone
    assert ernie("ckpt", "verify", trained).code == 0


def test_events_of_such_steps_are_valid_json(ernie, runner):
    ernie("run", *runner.words(**WILD))
    assert "NaN" not in (runner.directory / "out" / "events.jsonl").read_text()
    assert [e["grad_norm"] for e in runner.events("step") if e.get("skipped")] == [None, None, None]


@pytest.fixture
def overflowing(home, tmp_path):
    """A model of finite weights whose products are not."""
    model = shutil.copytree(home / "base", tmp_path / "model")
    (model / "erniecore_manifest.json").unlink()
    weights = load_file(model / "model.safetensors")
    for name in ("up_proj", "down_proj"):
        weights[f"model.layers.1.mlp.{name}.weight"][:] = 1e30
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


def test_answers_of_numbers_that_overflow_are_an_error(refuses, home, overflowing):
    words = ["--model", overflowing]
    found = refuses(
        ["eval", *words, "--data", home / "eval.jsonl"], Exit.NUMERICS, "the loss is not finite", remedy="earlier"
    )
    assert "nan" not in found.out
    refuses(["generate", *words, "--prompt", "1"], Exit.NUMERICS, "logits are not finite", remedy="found   nan")


def test_training_such_a_model_stops_at_once(refuses, runner, overflowing):
    words = ["run", *runner.words(model__path=overflowing, train__max_skips=0)]
    refuses(words, Exit.NUMERICS, "where   loss", "nan", remedy="lower train.learning_rate")
    assert not list((runner.directory / "out").glob("ckpt/step-*"))


@pytest.mark.parametrize(
    ("changes", "tensor"),
    [
        ({}, "model."),
        ({"adapter__name": "lora", "adapter__rank": 4}, "lora"),
        ({"optimizer__name": "muon"}, "model."),
        ({"train__max_steps": 3, "checkpoint__every": 1, "train__max_rollbacks": 0}, "model."),
    ],
    ids=["last step", "adapter", "muon", "before a save"],
)
def test_an_update_that_overflows_is_never_saved(refuses, runner, changes, tensor):
    wild = {
        "train__learning_rate": 1e38,
        "train__weight_decay": 1e6,
        "train__schedule": "constant",
        "train__max_grad_norm": 0,
    }
    words = ["run", *runner.words(**{"train__max_steps": 1, **wild, **changes})]
    found = refuses(
        words,
        Exit.NUMERICS,
        "step 1: the update made this weight or state infinite or NaN",
        remedy="lower train.learning_rate",
    )
    assert tensor in found.err
    out = runner.directory / "out"
    assert not [*out.glob("ckpt/*"), *out.glob("model"), *out.glob("adapter")]
    assert runner.events("run_end")[-1]["status"] == "failed"
