"""Which checkpoint a run continues from, and when it refuses."""

import json

import numpy as np
import pytest
from erniecore_checkpoint.save import save_checkpoint

from erniecore.engine.config_hash import config_hash
from erniecore.engine.preparation.continuing import STATE_FORMAT, check_data
from erniecore.engine.preparation.resume import choose
from erniecore.engine.preparation.rundir import opened
from erniecore.errors import CheckpointError, DataError, EnvironmentFault, Exit, UsageError

SETTINGS = {"run": {"seed": 1}, "train": {"learning_rate": 0.1, "max_steps": 4}, "log": {"every": 1}}


def put_checkpoint(out, step, settings=SETTINGS):
    tensors = {"model": {"w": np.full(3, step, np.float32)}}
    return save_checkpoint(out / "ckpt", step, tensors, {"format": STATE_FORMAT, "step": step, "settings": settings})


def pick(out, resume="auto", settings=SETTINGS):
    return choose(out, resume, settings, rows=1)


def start_event(out, settings=SETTINGS):
    line = json.dumps({"event": "run_start", "config_hash": config_hash(settings)})
    (out / "events.jsonl").write_text(line + '\n{"event": "st')


def with_changes(**changes):
    return {section: {**keys, **changes.get(section, {})} for section, keys in SETTINGS.items()}


def split(batch_size, accumulation):
    return with_changes(train={"batch_size": batch_size, "accumulation": accumulation})


def test_before_the_first_checkpoint_a_step_may_be_split_for_another_layout(tmp_path):
    """As an elastic run does when a machine is lost."""
    settings = split(2, 4)
    start = {"event": "run_start", "config_hash": config_hash(settings), "batch_size": 2, "accumulation": 4, "rows": 16}
    (tmp_path / "events.jsonl").write_text(json.dumps(start) + "\n")

    def pick_with(settings, rows):
        return choose(tmp_path, "auto", settings, rows=rows)

    for now in (settings, split(2, 8), split(4, 2)):
        assert pick_with(now, 16).notes == ("no checkpoint yet: starting from the beginning",)
    other = {**split(2, 8), "run": {"seed": 2}}
    for now, rows in ((split(2, 8), 8), (other, 16)):
        with pytest.raises(UsageError, match="other settings"):
            pick_with(now, rows)


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_empty_directory_starts_anew(tmp_path, resume):
    assert pick(tmp_path, resume).checkpoint is None


def test_newest_is_taken_and_said(tmp_path):
    put_checkpoint(tmp_path, 1)
    put_checkpoint(tmp_path, 2)
    chosen = pick(tmp_path)
    assert chosen.checkpoint.step == 2
    assert "step-00000002" in chosen.notes[0]


def test_damaged_newest_is_passed_over_aloud(tmp_path):
    put_checkpoint(tmp_path, 1)
    path = next(put_checkpoint(tmp_path, 2).glob("model-*.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    chosen = pick(tmp_path)
    assert chosen.checkpoint.step == 1
    assert any("step-00000002" in note and "damaged" in note for note in chosen.notes)


def test_only_damaged_ones_never_start_anew_silently(tmp_path):
    path = next(put_checkpoint(tmp_path, 2).glob("model-*.safetensors"))
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no usable"):
        pick(tmp_path)


def test_named_directory_is_taken(tmp_path):
    assert pick(tmp_path, str(put_checkpoint(tmp_path, 1))).checkpoint.step == 1


def test_named_directory_with_newer_ones_beside_it_is_refused(tmp_path):
    named = put_checkpoint(tmp_path, 1)
    put_checkpoint(tmp_path, 2)
    with pytest.raises(UsageError, match="newer") as caught:
        pick(tmp_path, str(named))
    assert caught.value.found == "step-00000002"


def test_named_directory_does_not_mix_with_another_run(tmp_path):
    named = put_checkpoint(tmp_path / "a", 1)
    (tmp_path / "b").mkdir()
    start_event(tmp_path / "b", with_changes(run={"seed": 2}))
    with pytest.raises(UsageError, match="other settings"):
        pick(tmp_path / "b", str(named))
    assert pick(tmp_path / "c", str(named)).checkpoint.step == 1


def test_state_of_another_version_is_refused(tmp_path):
    save_checkpoint(tmp_path / "ckpt", 1, {"model": {"w": np.zeros(3, np.float32)}}, {"format": 99})
    with pytest.raises(CheckpointError, match="version"):
        pick(tmp_path)


def test_must_fails_without_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        pick(tmp_path, "must")
    assert caught.value.exit_code == Exit.CHECKPOINT


@pytest.mark.parametrize("name", ["events.jsonl", "resolved.yaml", "ckpt", "model"])
def test_never_refuses_a_used_directory(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError) as caught:
        pick(tmp_path, "never")
    assert name in caught.value.found
    assert (tmp_path / name).exists()


def test_safe_changes_are_noted(tmp_path):
    put_checkpoint(tmp_path, 1)
    chosen = pick(tmp_path, settings=with_changes(log={"every": 5}, train={"max_steps": 8}))
    assert chosen.checkpoint.step == 1
    text = "\n".join(chosen.notes)
    assert "log.every: 1 -> 5" in text
    assert "train.max_steps: 4 -> 8" in text


def test_changed_mathematics_is_refused_with_all_differences(tmp_path):
    put_checkpoint(tmp_path, 1)
    with pytest.raises(UsageError) as caught:
        pick(tmp_path, settings=with_changes(run={"seed": 2}, train={"learning_rate": 0.2}))
    assert "run.seed: 1 -> 2" in str(caught.value)
    assert "train.learning_rate: 0.1 -> 0.2" in str(caught.value)
    assert caught.value.exit_code == Exit.USAGE


def test_directory_of_another_run_without_checkpoint_is_refused(tmp_path):
    start_event(tmp_path)
    with pytest.raises(UsageError, match="other settings"):
        pick(tmp_path, settings=with_changes(run={"seed": 2}))


def test_same_run_without_checkpoint_starts_over(tmp_path):
    start_event(tmp_path)
    assert "starting from the beginning" in pick(tmp_path).notes[0]


def test_foreign_model_directory_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(UsageError, match="not this run"):
        pick(tmp_path)


FILES = {"files": [{"path": "a.jsonl", "bytes": 10, "sha256": "aa"}], "fingerprint": "f"}


def test_same_data_passes():
    check_data(FILES, {"files": [{"path": "moved.jsonl", "bytes": 10, "sha256": "aa"}], "fingerprint": "f"})


@pytest.mark.parametrize("change", [{"bytes": 11}, {"sha256": "bb"}])
def test_changed_file_is_named(change):
    with pytest.raises(DataError) as caught:
        check_data(FILES, {**FILES, "files": [{**FILES["files"][0], **change}]})
    assert caught.value.where == "a.jsonl"
    assert caught.value.exit_code == Exit.DATA


def test_other_samples_from_the_same_files_are_refused():
    with pytest.raises(DataError, match="other samples"):
        check_data(FILES, {**FILES, "fingerprint": "g"})


def test_number_of_files_counts():
    with pytest.raises(DataError, match="number"):
        check_data(FILES, {**FILES, "files": []})


def test_run_directory_is_made_and_logged_to(tmp_path):
    from erniecore.engine.preparation.rundir import log

    with opened(tmp_path / "a" / "b", 0):
        log.info("hello")
    assert "hello" in (tmp_path / "a" / "b" / "logs" / "rank-0.log").read_text()


def test_second_process_in_the_same_directory_is_refused(tmp_path):
    with opened(tmp_path, 0), pytest.raises(EnvironmentFault, match="another process"), opened(tmp_path, 0):
        pass
    with opened(tmp_path, 0):
        pass


def test_directory_that_cannot_be_made_is_an_environment_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault) as caught, opened(tmp_path / "file" / "run", 0):
        pass
    assert caught.value.exit_code == Exit.ENVIRONMENT
    assert "run.out" in caught.value.fix
