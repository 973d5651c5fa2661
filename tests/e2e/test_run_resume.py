"""Continuing: after a kill bit for bit, never with other mathematics or other data."""

import shutil

import pytest

import erniecore
from erniecore.errors import CheckpointError, DataError, UsageError

FULL = {"checkpoint__every": 3, "train__ema": 0.9, "train__accumulation": 2, "train__schedule": "wsd"}


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 7])
def test_killed_run_continues_bit_for_bit(runner, step):
    fresh = {"warm": step != 4}  # once with interpreters that begin anew, as users' do
    runner.complete("straight", **fresh, **FULL)
    runner.kill_at(step, "killed", **fresh, **FULL)
    runner.complete("killed", **fresh, **FULL)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")


@pytest.mark.slow
def test_run_killed_three_times_continues_bit_for_bit(runner):
    runner.complete("straight", **FULL)
    for step in (2, 5, 7):
        runner.kill_at(step, "killed", **FULL)
    runner.complete("killed", **FULL)
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")


def test_what_continues_draws_no_weights(runner, monkeypatch):
    """The checkpoint has all of them."""
    from erniecore.engine.models import random_weights

    runner.run(checkpoint__every=5)
    whole = runner.tensors(8)
    shutil.rmtree(runner.directory / "out" / "ckpt" / "step-00000008")
    for name in ("draw", "_own"):
        monkeypatch.setattr(random_weights, name, lambda *args, **kwargs: pytest.fail("random values were drawn"))
    runner.run(checkpoint__every=5)
    assert [event["step"] for event in runner.events("step")] == [*range(1, 9), 6, 7, 8]
    assert runner.tensors(8) == whole


def test_order_of_the_data_goes_on_over_an_epoch(runner):
    options = {"train__max_steps": 14, "data__packing": "none", "train__batch_size": 8}  # an epoch has 12 steps
    runner.run("straight", **options)
    runner.run("broken", checkpoint__every=11, **{**options, "train__max_steps": 14})
    shutil.rmtree(runner.directory / "broken" / "ckpt" / "step-00000014")
    runner.run("broken", checkpoint__every=11, **options)
    assert [e["step"] for e in runner.events("step", "broken")] == [*range(1, 15), 12, 13, 14]
    assert runner.curve("broken") == runner.curve("straight")


def test_noise_on_embeddings_goes_on_bit_for_bit(runner):
    """Also in other micro-batches; another alpha is another run."""
    options = {"method__neftune_alpha": 5.0, "data__packing": "none"}
    runner.run("straight", **options)
    runner.run("plain", data__packing="none")
    assert runner.curve("straight") != runner.curve("plain")
    runner.run("broken", checkpoint__every=5, **options)
    shutil.rmtree(runner.directory / "broken" / "ckpt" / "step-00000008")
    with pytest.raises(UsageError, match=r"method\.neftune_alpha"):
        runner.run("broken", **{**options, "method__neftune_alpha": 6.0})
    runner.run("broken", checkpoint__every=5, **options)
    assert [event["step"] for event in runner.events("step", "broken")] == [*range(1, 9), 6, 7, 8]
    assert runner.tensors(8, "broken") == runner.tensors(8, "straight")
    runner.run("split", **options, train__batch_size=1, train__accumulation=2)
    losses = [[event["loss"] for event in runner.events("step", out)] for out in ("straight", "split")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_choice_of_the_checkpoint_is_announced(runner):
    runner.run(checkpoint__every=4)
    runner.run(checkpoint__every=4)
    start = runner.events("run_start")[-1]
    assert start["resumed_from"].endswith("step-00000008")
    assert "newest verified" in start["notes"][0]


def test_changed_mathematics_is_refused_and_nothing_is_lost(runner):
    runner.run()
    before = runner.tensors(8)
    with pytest.raises(UsageError) as caught:
        runner.run(train__learning_rate=1e-4)
    assert "train.learning_rate" in str(caught.value)
    assert runner.tensors(8) == before
    assert "learning_rate: 0.003" in (runner.directory / "out" / "resolved.yaml").read_text()


def test_other_code_path_of_the_device_is_noted(runner, monkeypatch):
    runner.run(train__max_steps=2)
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "4")
    runner.run(train__max_steps=3)
    notes = runner.events("run_start")[-1]["notes"]
    expected = "MKL_DEBUG_CPU_TYPE" in (runner.directory / "out" / "resolved.yaml").read_text()
    assert any("last bits" in note for note in notes) is expected


def test_other_number_of_threads_is_noted(runner):
    runner.run(train__max_steps=2, device__threads=1)
    runner.run(train__max_steps=3, device__threads=2)
    assert "threads: 1 -> 2" in "".join(runner.events("run_start")[-1]["notes"])


def test_an_equal_fingerprint_is_not_mentioned(runner):
    runner.run(train__max_steps=2)
    runner.run(train__max_steps=3)
    assert not any("last bits" in note for note in runner.events("run_start")[-1]["notes"])


def test_safe_changes_go_through(runner):
    runner.run()
    runner.run(eval__every=2, checkpoint__keep=5, log__every=1, train__max_steps=10)
    assert max(runner.curve()) == 10
    assert any("train.max_steps: 8 -> 10" in note for note in runner.events("run_start")[-1]["notes"])


def test_changed_data_is_refused_by_name(runner):
    shutil.copy(runner.home / "train.jsonl", runner.directory / "train.jsonl")
    runner.run(data__train=runner.directory / "train.jsonl")
    with (runner.directory / "train.jsonl").open("a") as file:
        file.write((runner.home / "eval.jsonl").read_text())
    with pytest.raises(DataError) as caught:
        runner.run(data__train=runner.directory / "train.jsonl", train__max_steps=9)
    assert caught.value.where.endswith("train.jsonl")


def test_moved_data_of_the_same_content_is_fine(runner):
    runner.run()
    shutil.copy(runner.home / "train.jsonl", runner.directory / "moved.jsonl")
    runner.run(data__train=runner.directory / "moved.jsonl", train__max_steps=9)
    assert max(runner.curve()) == 9


def test_never_refuses_a_used_directory(runner):
    runner.run(train__max_steps=1)
    with pytest.raises(UsageError, match="never"):
        runner.run(train__max_steps=1, run__resume="never")


def test_must_needs_a_checkpoint(runner):
    with pytest.raises(CheckpointError):
        runner.run(run__resume="must")


def test_named_checkpoint_is_continued_in_another_directory(runner):
    runner.run("a", checkpoint__every=4)
    runner.run("b", run__resume=runner.directory / "a" / "ckpt" / "step-00000004")
    assert sorted(runner.curve("b")) == [5, 6, 7, 8]
    assert runner.tensors(8, "a") == runner.tensors(8, "b")


def test_damaged_newest_checkpoint_is_passed_over_aloud(runner):
    runner.run(checkpoint__every=4)
    expected = runner.tensors(8)
    file = next((runner.directory / "out" / "ckpt" / "step-00000008").glob("model-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-5])
    runner.run(checkpoint__every=4)
    start = runner.events("run_start")[-1]
    assert any("damaged" in note for note in start["notes"])
    assert runner.tensors(8) == expected


def test_base_weights_are_not_needed_to_continue(runner):
    shutil.copytree(runner.home / "base", runner.directory / "base")
    runner.run(model__path=runner.directory / "base")
    (runner.directory / "base" / "model.safetensors").unlink()
    runner.run(model__path=runner.directory / "base", train__max_steps=9)
    assert erniecore.load_model(runner.directory / "out" / "model")
