"""Runs from settings to a model directory, in process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import erniecore
from erniecore.errors import CheckpointError, ConfigError, DataError, EnvironmentFault, MemoryFault, UsageError


def test_run_learns_and_leaves_the_documented_files(runner):
    result = runner.run(train__max_steps=30, data__eval=runner.home / "eval.jsonl", eval__every=10, log__report="true")
    losses = [e["loss"] for e in result.events if e["event"] == "step"]
    assert losses[-1] < 0.7 * losses[0]
    assert {p.name for p in result.out.iterdir()} >= {
        "resolved.yaml", "events.jsonl", "data_report.json", "ckpt", "logs", "model", "report.html"
    }  # fmt: skip
    assert (result.out / "logs" / "rank-0.log").read_text()
    assert json.loads((result.out / "data_report.json").read_text())["train"]["rows"] == 90
    assert result.metrics["eval/loss"] == pytest.approx(runner.events("eval")[-1]["loss"])


def test_exported_model_gives_the_evaluated_loss(runner):
    import paddle

    result = runner.run(data__eval=runner.home / "eval.jsonl")
    model = erniecore.load_model(result.out / "model")
    tokenizer = erniecore.load_tokenizer(result.out / "model")
    ids = paddle.to_tensor([tokenizer.encode("1 plus 2")])
    logits = model(ids)
    assert logits.shape == [1, ids.shape[1], model.architecture["vocab_size"]]
    assert not model.training
    again = erniecore.load_model(result.out / "ckpt" / "step-00000008")
    assert np.array_equal(again(ids).numpy(), logits.numpy())
    assert erniecore.generate(model, ids, max_new_tokens=3).shape[0] == 1


def test_export_of_a_loaded_model_keeps_its_tokenizer(runner, tmp_path):
    bundle = erniecore.open_model(runner.home / "base")
    path = erniecore.export(bundle, tmp_path / "exported")
    assert (path / "tokenizer.model").exists()
    with pytest.raises(UsageError, match=r"erniecore\.open_model"):
        erniecore.export(bundle.model, tmp_path / "alone")


def test_same_settings_give_the_same_run(runner):
    runner.run("a", train__max_steps=5)
    runner.run("b", train__max_steps=5)
    assert runner.curve("a") == runner.curve("b")
    assert runner.tensors(5, "a") == runner.tensors(5, "b")


def test_resolved_settings_repeat_the_run(runner):
    first = runner.run("a", train__max_steps=5, train__schedule="wsd", train__warmup_steps=2)
    resolved = first.out / "resolved.yaml"
    erniecore.run(resolved, overrides=[f"run.out={runner.directory / 'b'}"], console="none")
    assert runner.tensors(5, "a") == runner.tensors(5, "b")


@pytest.mark.parametrize("granularity", ["full", "attention", "core-attention"])
def test_recomputation_changes_no_bit(runner, granularity):
    runner.run("plain", train__max_steps=3)
    runner.run("again", train__max_steps=3, train__recompute=granularity)
    assert runner.curve("plain") == runner.curve("again")
    assert runner.tensors(3, "plain") == runner.tensors(3, "again")


@pytest.mark.parametrize("packing", ["none", "padding-free", "sequential", "greedy"])
def test_every_packing_trains(runner, packing):
    result = runner.run(data__packing=packing, train__max_steps=3)
    assert np.isfinite(result.metrics["loss"])


def test_epochs_cover_the_data(runner):
    result = runner.run(train__max_steps=None, train__epochs=2, data__packing="none", train__batch_size=8)
    assert result.events[-1]["steps"] == 2 * -(-90 // 8)


def test_checkpoints_are_thinned(runner):
    result = runner.run(checkpoint__every=1, checkpoint__keep=2)
    assert sorted(p.name for p in (result.out / "ckpt").glob("step-*")) == ["step-00000007", "step-00000008"]


def test_mixture_of_experts_trains_and_balances(runner, tmp_path):
    from erniecore_model_init.new_model import init_model

    size = "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2"
    init_model("ernie45-moe", size, runner.home / "tok", tmp_path / "moe", seed_value=1)
    words = [w for w in runner.words(model__path=tmp_path / "moe", train__max_steps=20) if w != "model.name=ernie45"]
    result = erniecore.run(overrides=["model.name=ernie45-moe", *words], console="none")
    losses = [e["loss"] for e in result.events if e["event"] == "step"]
    assert losses[-1] < losses[0]


def test_unsupported_precision_is_refused_before_anything_is_made(runner):
    with pytest.raises(ConfigError, match="bfloat16"):
        runner.run(train__precision="bfloat16")
    assert not (runner.directory / "out").exists()


def test_unknown_setting_is_refused(runner):
    with pytest.raises(ConfigError, match="max_steps"):
        runner.run(train__max_stepz=3)


def test_missing_data_is_refused(runner):
    with pytest.raises(DataError):
        runner.run(data__train=runner.directory / "nothing.jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_read_only_directory_is_refused(runner):
    (runner.directory / "out").mkdir(mode=0o500)
    with pytest.raises(EnvironmentFault):
        runner.run()


def test_full_disk_is_found_before_training(runner, monkeypatch):
    monkeypatch.setattr("erniecore_checkpoint.files.free_bytes", lambda path: 1000)
    with pytest.raises(CheckpointError, match="space"):
        runner.run()
    assert not (runner.directory / "out" / "events.jsonl").exists()


def test_disk_that_fills_up_keeps_older_checkpoints(runner, monkeypatch):
    import erniecore_checkpoint.files as files

    real, calls = files.free_bytes, []

    def shrinking(path):
        calls.append(path)
        return real(path) if len(calls) <= 3 else 1000

    monkeypatch.setattr("erniecore_checkpoint.files.free_bytes", shrinking)
    monkeypatch.setattr("erniecore_checkpoint.writer.free_bytes", shrinking)
    with pytest.raises(CheckpointError, match="space"):
        runner.run(checkpoint__every=2)
    assert runner.tensors(2)
    assert runner.events("run_end")[-1]["status"] == "failed"


def test_memory_that_runs_out_has_a_remedy(runner, monkeypatch):
    def refuse(*args):
        raise MemoryError("ResourceExhausted: 4 GiB wanted")

    monkeypatch.setattr("erniecore.engine.training.trainer.Trainer._update", refuse)
    with pytest.raises(MemoryFault) as caught:
        runner.run()
    assert "batch_size" in caught.value.fix
    assert caught.value.exit_code == 6


def test_file_in_the_way_is_refused(runner):
    (runner.directory / "out").write_text("mine")
    with pytest.raises(EnvironmentFault):
        runner.run()
    assert (runner.directory / "out").read_text() == "mine"


def test_directory_with_a_foreign_model_is_refused_and_kept(runner):
    shutil.copytree(runner.home / "base", runner.directory / "out" / "model")
    with pytest.raises(UsageError):
        runner.run()
    assert (runner.directory / "out" / "model" / "config.json").exists()


def test_stdout_redirected_into_the_directory_does_not_matter(runner):
    (runner.directory / "out").mkdir()
    (runner.directory / "out" / "console.log").write_text("…")
    runner.run(train__max_steps=1)
    assert Path(runner.directory / "out" / "console.log").exists()


def test_plan_is_made_without_paddle(runner):
    code = (
        "import sys\nfrom erniecore.cli.app import main\n"
        f"code = main(['run', *{runner.words()!r}, '--dry-run'])\n"
        "assert code == 0 and 'paddle' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
