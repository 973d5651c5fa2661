"""``ernie ckpt``: output, JSON, exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from erniecore_checkpoint.save import save_checkpoint

from erniecore.cli.app import main
from erniecore.errors import Exit

MODEL = "model-00001-of-00001.safetensors"


@pytest.fixture
def ernie(capsys):
    """Run a command; returns (exit code, stdout, stderr)."""

    def call(*args):
        code = main([str(word) for word in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def run_dir(tmp_path):
    """A run with three checkpoints."""
    for step in (10, 20, 30):
        save_checkpoint(
            tmp_path / "run" / "ckpt", step, {"model": {"w": np.ones(4, np.float32)}}, {}, config_hash="abc"
        )
    return tmp_path / "run"


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


@pytest.mark.parametrize("command", ["list", "verify"])
def test_looking_at_files_imports_no_paddle(run_dir, command):
    script = (
        "import sys; from erniecore.cli.app import main; code = main(sys.argv[1:]); "
        "print('paddle' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    args = [sys.executable, "-c", script, "ckpt", command, str(run_dir)]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"
