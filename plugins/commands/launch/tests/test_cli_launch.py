"""What `ernie launch` writes and refuses; that the jobs run is the matter of the lane `cluster`."""

import json
import re
import stat
import subprocess

import pytest

from erniecore.cli.app import main
from erniecore.errors import Exit

RUN = ["--method", "sft", "--parallel", "hybrid", "parallel.data=4"]


@pytest.fixture
def launch(talker, tmp_path, monkeypatch, capsys):
    """``launch(*arguments)``: exit code, stdout, stderr; in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments):
        code = main(
            ["launch", "--model", str(talker / "model"), "--data", str(talker / "rows.jsonl"), *RUN, *arguments]
        )
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_script_repeats_the_command_and_is_valid_shell(launch, tmp_path):
    arguments = [
        "--out",
        "my run",
        "--nodes",
        "2",
        "--time",
        "2:00:00",
        "--option",
        "partition=gpu",
        "--option",
        "--exclusive",
    ]
    code, out, err = launch(*arguments, "--dry-run")
    assert code == 0, err
    for line in (
        "job-name=my run",
        "nodes=2",
        "ntasks-per-node=2",
        "time=120:00",
        "requeue",
        "partition=gpu",
        "exclusive",
    ):
        assert f"#SBATCH --{line}\n" in out
    command = next(line for line in out.splitlines() if "-m erniecore run" in line)
    assert all(
        word in command for word in ("--parallel hybrid", "--out 'my run'", "--launcher slurm", "run.max_minutes=115")
    )
    assert not any(word in command for word in ("--nodes", "--time"))
    assert f"cd {tmp_path}" in out
    assert subprocess.run(["bash", "-n"], input=out, text=True).returncode == 0
    assert not (tmp_path / "my run").exists()


def test_variables_with_settings_go_along_and_keys_do_not(launch, monkeypatch):
    monkeypatch.setenv("ERNIE_TRAIN__MAX_STEPS", "7")
    monkeypatch.setenv("ERNIE_API_KEY", "sk-secret")
    out = launch("--out", "run", "--dry-run")[1]
    assert "export ERNIE_TRAIN__MAX_STEPS=7" in out
    assert "sk-secret" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        ([], Exit.USAGE, ["run.out", "--out DIR"]),
        (["--out", "run", "--nodes", "3"], Exit.USAGE, ["3 nodes cannot share 4 ranks"]),
        (["--out", "run", "--time", "soon"], Exit.USAGE, ["--time", "soon", "12:00:00"]),
        (["--out", "run", "--option", "no good=1", "--dry-run"], Exit.USAGE, ["--option", "no good=1"]),
        (["--out", "run", "train.learning_rte=1"], Exit.USAGE, ["train.learning_rate"]),
    ],
)
def test_what_is_refused_before_anything_is_queued(launch, tmp_path, arguments, code, parts):
    found, _, err = launch(*arguments)
    assert found == code
    assert all(part in re.sub(r"\s+", " ", err) for part in parts), err
    assert not list(tmp_path.iterdir())


def test_the_number_of_the_job_and_what_sbatch_refuses_are_told(launch, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    sbatch = folder / "sbatch"
    sbatch.write_text("#!/bin/sh\ncat > script.sh\necho 42\\;cluster\n")
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    code, out, _ = launch("--out", "run", "--json")
    assert (code, json.loads(out)) == (0, {"job": "42", "out": str(tmp_path / "run")})
    assert (tmp_path / "script.sh").read_text().startswith("#!/bin/bash\n#SBATCH")
    sbatch.write_text("#!/bin/sh\ncat >/dev/null\necho 'invalid partition: gpu' >&2\nexit 1\n")
    code, _, err = launch("--out", "run")
    assert code == Exit.ENVIRONMENT
    assert "invalid partition: gpu" in err
    assert "--dry-run" in err


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 90.5), ("12:00:00", 720), ("1-12", 2160), ("1-12:30", 2190), ("2-0:0:30", 2880.5)],
)
def test_time_limits_are_read_as_sbatch_reads_them(text, minutes):
    from erniecore_launch.job import _minutes

    assert _minutes(text) == minutes


def test_the_launcher_needs_a_job(talker, monkeypatch, capsys):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    arguments = [
        "run",
        "--model",
        str(talker / "model"),
        "--data",
        str(talker / "rows.jsonl"),
        *RUN,
        "--launcher",
        "slurm",
    ]
    assert main([*arguments, "--out", str(talker / "never")]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "SLURM_JOB_ID" in err
    assert "ernie launch --to slurm" in re.sub(r"\s+", " ", err)
