"""A run directory that version 0.1.0 wrote: its checkpoint continues, and its model directory loads."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import erniecore
from erniecore.config.compose import load

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_v0.1"


@pytest.fixture
def old_run(tmp_path, monkeypatch):
    """A copy of the directory, which is the current one."""
    copy = shutil.copytree(FIXTURE, tmp_path / "run")
    monkeypatch.chdir(copy)
    return copy


def steps(out):
    """Step -> (loss, gradient norm, learning rate, tokens) of every step that was trained; the last line counts."""
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    keys = ("loss", "grad_norm", "lr", "tokens")
    return {e["step"]: [e[key] for key in keys] for e in events if e["event"] == "step"}


def weights(directory):
    model = erniecore.load_model(directory)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def test_checkpoint_continues_as_the_old_version_did(old_run):
    expected, trained = steps(FIXTURE / "out"), weights(FIXTURE / "out" / "model")
    shutil.rmtree(old_run / "out" / "model")
    start = (FIXTURE / "out" / "events.jsonl").read_text().partition("\n")[0]
    (old_run / "out" / "events.jsonl").write_text(start + "\n")  # the steps that follow are of the new session
    result = erniecore.run("run.yaml", ["run.resume=must"], console="none")
    assert result.events[0]["resumed_from"].endswith("step-00000004")
    found = steps(result.out)
    assert list(found) == [5, 7, 8] == [step for step in expected if step > 4]  # step 6 is skipped
    for step, values in found.items():
        assert values == pytest.approx(expected[step], rel=1e-5)
    for name, tensor in weights(result.out / "model").items():
        np.testing.assert_allclose(tensor, trained[name], rtol=1e-4, atol=1e-6)


def test_changes_of_settings_are_found_in_an_old_checkpoint(old_run):
    with pytest.raises(erniecore.errors.UsageError, match=r"train\.learning_rate: 0\.003 -> 0\.001"):
        erniecore.run("run.yaml", ["train.learning_rate=0.001"], console="none")


def test_resolved_settings_of_an_old_run_are_a_settings_file(old_run):
    settings = load(Path("out/resolved.yaml"), [], {}, {}).settings
    assert settings.train.learning_rate == 0.003
    assert settings.data.train[0].path == "train.jsonl"
