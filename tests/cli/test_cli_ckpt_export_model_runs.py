"""The commands ckpt, export, model and runs: output, JSON, exit codes, and what they do not import."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from erniecore.checkpoint import save_checkpoint
from erniecore.cli.app import main
from erniecore.errors import Exit

MODEL = "model-00001-of-00001.safetensors"


@pytest.fixture
def ernie(capsys):
    """Run a command; returns (exit code, stdout, stderr)."""

    def call(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def run_dir(tmp_path):
    """A run with three checkpoints and a few events."""
    for step in (10, 20, 30):
        save_checkpoint(
            tmp_path / "run" / "ckpt", step, {"model": {"w": np.ones(4, np.float32)}}, {}, config_hash="abc"
        )
    events = [{"event": "run_start", "name": "demo"}]
    events += [{"event": "step", "step": i, "loss": 3.0 / i, "lr": 0.1} for i in range(1, 31)]
    events += [{"event": "run_end", "status": "finished", "steps": 30, "tokens": 9, "seconds": 1.5}]
    (tmp_path / "run" / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from erniecore.data.tokenizer_train import train

    directory = tmp_path_factory.mktemp("tokenizer")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(directory)
    return directory


# ------------------------------------------------------------------------------------------------- ckpt


def test_checkpoints_are_listed(ernie, run_dir):
    code, out, _ = ernie("ckpt", "list", run_dir)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [[str(s), "complete"] for s in (10, 20, 30)]


def test_a_checkpoint_is_written_again_in_other_files(ernie, run_dir):
    source = run_dir / "ckpt" / "step-00000020"
    code, out, _ = ernie("ckpt", "reshard", source, run_dir / "few", "--json")
    assert code == 0
    path = run_dir / "few" / "step-00000020"
    assert json.loads(out) == {"path": str(path), "files_before": 2, "files": 2}
    assert ernie("ckpt", "verify", path)[0] == 0
    code, _, err = ernie("ckpt", "reshard", run_dir, run_dir / "few")
    assert code == 2
    assert "name one checkpoint" in err


@pytest.mark.parametrize(("place", "steps"), [("", [10, 20, 30]), ("ckpt", [10, 20, 30]), ("ckpt/step-00000020", [20])])
def test_the_list_as_json_says_what_the_manifests_say(ernie, run_dir, place, steps):
    rows = json.loads(ernie("ckpt", "list", run_dir / place, "--json")[1])
    assert [row["step"] for row in rows] == steps
    assert rows[0]["status"] == "complete"
    assert rows[0]["config_hash"] == "abc"
    assert rows[0]["groups"] == {"model": 1}
    assert rows[0]["bytes"] > 16


def test_a_checkpoint_without_a_readable_manifest_is_listed_as_damaged(ernie, run_dir):
    (run_dir / "ckpt" / "step-00000030" / "MANIFEST.json").write_text("{")
    rows = json.loads(ernie("ckpt", "list", run_dir, "--json")[1])
    assert (rows[2]["step"], rows[2]["status"]) == (30, "damaged")


def test_no_checkpoints_is_an_empty_list(ernie, tmp_path):
    code, out, _ = ernie("ckpt", "list", tmp_path, "--json")
    assert (code, json.loads(out)) == (0, [])


def test_whole_checkpoints_verify(ernie, run_dir):
    code, out, _ = ernie("ckpt", "verify", run_dir, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["ok"] is True
    assert [row["findings"] for row in report["checkpoints"]] == [[], [], []]


def test_a_flipped_bit_is_reported_with_file_and_tensor(ernie, run_dir):
    path = run_dir / "ckpt" / "step-00000020" / MODEL
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, out, _ = ernie("ckpt", "verify", run_dir, "--json")
    report = json.loads(out)
    assert code == Exit.CHECKPOINT
    assert report["ok"] is False
    (row,) = [row for row in report["checkpoints"] if not row["ok"]]
    assert row["step"] == 20
    assert [(f["file"], f["tensor"]) for f in row["findings"]] == [(MODEL, "w")]
    assert f"DAMAGED  {path.parent}" in ernie("ckpt", "verify", run_dir)[1]


@pytest.mark.parametrize("command", ["list", "verify", "prune"])
def test_a_missing_directory_is_a_usage_error(ernie, tmp_path, command):
    code, _, err = ernie("ckpt", command, tmp_path / "nowhere")
    assert code == Exit.USAGE
    assert "no such directory" in err


def test_verifying_nothing_is_a_usage_error(ernie, tmp_path):
    assert ernie("ckpt", "verify", tmp_path)[0] == Exit.USAGE


def test_pruning_keeps_the_newest(ernie, run_dir):
    code, out, _ = ernie("ckpt", "prune", run_dir, "--keep", 2, "--json")
    assert code == 0
    assert json.loads(out) == {"removed": [str(run_dir / "ckpt" / "step-00000010")]}


def test_pruning_to_one_is_refused(ernie, run_dir):
    assert ernie("ckpt", "prune", run_dir, "--keep", 1)[0] == Exit.USAGE


def test_pruning_one_checkpoint_is_refused(ernie, run_dir):
    assert ernie("ckpt", "prune", run_dir / "ckpt" / "step-00000010")[0] == Exit.USAGE


# ------------------------------------------------------------------------------------------------- runs


def test_runs_are_listed(ernie, run_dir):
    code, out, _ = ernie("runs", "list", run_dir.parent)
    assert code == 0
    assert out.splitlines()[1].split() == ["demo", "finished", "30", "0.1000", str(run_dir)]


def test_runs_as_json(ernie, run_dir):
    (row,) = json.loads(ernie("runs", "list", run_dir, "--json")[1])
    assert (row["name"], row["status"], row["steps"], row["starts"]) == ("demo", "finished", 30, 1)


def test_a_directory_that_does_not_exist_has_no_runs(ernie, tmp_path):
    assert ernie("runs", "list", tmp_path / "nowhere")[0] == Exit.USAGE


def test_a_report_is_written_and_summarised(ernie, run_dir):
    code, out, _ = ernie("runs", "report", run_dir)
    assert code == 0
    assert out.startswith("demo: finished")
    assert str(run_dir / "report.html") in out
    assert (run_dir / "report.html").is_file()


def test_without_a_directory_the_newest_run_is_reported(ernie, run_dir, monkeypatch):
    monkeypatch.chdir(run_dir.parent)
    run_dir.parent.joinpath("runs").mkdir()
    run_dir.rename(run_dir.parent / "runs" / "run")
    code, out, _ = ernie("runs", "report", "--json")
    assert code == 0
    assert json.loads(out)["paths"][0] == "runs/run/report.html"


def test_without_any_run_the_report_is_a_usage_error(ernie, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ernie("runs", "report")[0] == Exit.USAGE


@pytest.mark.parametrize("words", [("ckpt", "list"), ("ckpt", "verify"), ("runs", "list"), ("runs", "report")])
def test_looking_at_files_imports_no_paddle(run_dir, words):
    script = (
        "import sys; from erniecore.cli.app import main; code = main(sys.argv[1:]); "
        "print('paddle' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, *words, str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"


# ------------------------------------------------------------------------------------------------- model, export


def test_a_new_model_is_written_and_exported(ernie, tmp_path, tokenizer):
    size = "num_hidden_layers=1,hidden_size=32"
    words = ("--model", "ernie45", "--tokenizer", tokenizer, "--out", tmp_path / "m", "--size", size)
    code, out, _ = ernie("model", "init", *words)
    assert code == 0
    assert "parameters" in out
    code, out, _ = ernie("export", tmp_path / "m", "--to", "hf", "--out", tmp_path / "x", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["path"] == str(tmp_path / "x")
    assert {"config.json", "model.safetensors", "tokenizer.model", "chat_template.jinja"} <= set(report["files"])
    assert ernie("ckpt", "verify", tmp_path / "x")[0] == 0
    (tmp_path / "x" / "tokenizer.json").write_text("{}")
    assert ernie("ckpt", "verify", tmp_path / "x")[0] == Exit.CHECKPOINT


def test_a_new_model_as_json(ernie, tmp_path, tokenizer):
    words = ("--model", "ernie45-moe", "--tokenizer", tokenizer, "--out", tmp_path / "m", "--json", "--seed", "3")
    code, out, _ = ernie("model", "init", *words)
    report = json.loads(out)
    assert code == 0
    assert report["parameters"] > 0
    assert report["architecture"]["vocab_size"] == 320


def test_an_unknown_model_gets_the_nearest_name(ernie, tmp_path, tokenizer):
    code, _, err = ernie("model", "init", "--model", "ernie46", "--tokenizer", tokenizer, "--out", tmp_path / "m")
    assert code == Exit.USAGE
    assert "ernie45" in err


def test_a_directory_without_a_tokenizer_is_an_environment_fault(ernie, tmp_path):
    code, _, err = ernie("model", "init", "--model", "ernie45", "--tokenizer", tmp_path, "--out", tmp_path / "m")
    assert code == Exit.ENVIRONMENT
    assert "no tokenizer here" in err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--to", "hff"), Exit.USAGE, "did you mean hf?"),
        (("--dtype", "bfloat"), Exit.USAGE, "did you mean bfloat16?"),
        ((), Exit.USAGE, "neither a model directory"),
    ],
)
def test_what_cannot_be_exported_is_refused(ernie, tmp_path, words, code, text):
    found, _, err = ernie("export", tmp_path, "--out", tmp_path / "out", *words)
    assert found == code
    assert text in err
