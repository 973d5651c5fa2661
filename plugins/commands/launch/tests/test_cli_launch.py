"""What `ernie launch` writes and refuses; that the jobs run is the matter of the lane `cluster`."""

import json
import re
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from erniecore_launch import kubernetes, slurm
from erniecore_launch.job import Job

from erniecore.cli.app import main
from erniecore.errors import Exit, UsageError

KUBERNETES = ["--to", "kubernetes", "--out", "run"]
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
        "job-name='my run'",
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
        (
            [*KUBERNETES, "--option", "image=i:1"],
            Exit.USAGE,
            ["volume that all pods share", "--option claim=NAME:/work"],
        ),
        ([*KUBERNETES, "--option", "imge=i:1"], Exit.USAGE, ["imge=i:1", "did you mean image?"]),
        ([*KUBERNETES, "--option", "limit=8"], Exit.USAGE, ["limit=8", "limit=NAME=VALUE"]),
        (
            [*KUBERNETES, "--option", "image=i:1", "--option", "claim=c:/work"],
            Exit.USAGE,
            ["model.path", "the pods see /work"],
        ),
    ],
)
def test_what_is_refused_before_anything_is_queued(launch, tmp_path, arguments, code, parts):
    found, _, err = launch(*arguments)
    assert found == code
    assert all(part in re.sub(r"\s+", " ", err) for part in parts), err
    assert not list(tmp_path.iterdir())


def test_what_kubectl_says(launch, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    kubectl = folder / "kubectl"
    kubectl.write_text("#!/bin/sh\ncat > manifest.yaml\nprintf 'configmap/run\\njob.batch/run\\n'\n")
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    arguments = [*KUBERNETES, "--option", "image=i:1", "--option", "claim=c:/"]
    code, out, err = launch(*arguments)
    assert code == 0, err
    assert "kubectl logs --follow job/run" in out
    assert [document["kind"] for document in yaml.safe_load_all((tmp_path / "manifest.yaml").read_text())] == [
        "ConfigMap",
        "Job",
    ]
    kubectl.write_text("#!/bin/sh\ncat >/dev/null\necho 'jobs.batch \"run\" already exists' >&2\nexit 1\n")
    code, _, err = launch(*arguments)
    assert code == Exit.ENVIRONMENT
    assert "already exists" in err


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


def test_no_name_adds_a_line_or_an_option_to_a_batch_script():
    """Quotes of a directive are read as those of a shell; the script below is a shell's."""
    place = Path("/work/with space/100%/it's #1")
    options = ["comment=a  b", "partition=gpu"]
    script = slurm.text(Job("it's #1", (), (), place, "", {}, place / "run", 2, 1, 0.0), options, 3)
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    directives = [shlex.split(line) for line in lines]
    assert all(len(parts) == 1 for parts in directives)
    found = dict(parts[0].removeprefix("--").partition("=")[::2] for parts in directives)
    assert (found["job-name"], found["chdir"], found["comment"]) == ("it's #1", str(place), "a  b")
    assert found["output"] == "/work/with space/100%%/it's #1/run/slurm-%j.out"
    assert "#SBATCH --partition=gpu\n" in script
    with pytest.raises(UsageError, match="one line"):
        slurm.text(Job("a\n#SBATCH --uid=0", (), (), place, "", {}, place, 1, 1, 0.0), [], 3)
    with pytest.raises(UsageError, match="one line"):
        slurm.text(Job("a", (), (), place, "", {}, place, 1, 1, 0.0), ["comment=a\ntouch x"], 3)


def test_a_manifest_has_texts_for_every_reader_of_yaml_and_names_that_kubernetes_takes():
    """Its own reader takes ``y`` as true and ``1e3`` as a number, and then refuses them as labels."""
    names = ("y", "n", "1e3", "0o17", "on", "2024-01-01", "~", "0x1", "1_0", ".inf", "plain", "v1.2")
    claims = {"a" * 63 + "." + "b" * 63: "/work", "data.v2": "/data"}
    job = Job("Run " * 40, (), (), Path("/work"), "a: 1\n", {}, Path("/work/run"), 2, 2, 0.0)
    options = [*(f"node=k{i}={name}" for i, name in enumerate(names)), *(f"claim={n}:{p}" for n, p in claims.items())]
    text = kubernetes.text(job, ["image=a:1", *options], 3)
    quoted = [line.split(": ")[1] for line in text.splitlines() if re.match(r" +k\d+: ", line)]
    assert [value for value in quoted if value[0] not in "'\""] == ["plain", "v1.2"]
    *_, found = yaml.safe_load_all(text)
    pod = found["spec"]["template"]["spec"]
    assert list(pod["nodeSelector"].values()) == list(names)
    volumes = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] != "settings"}
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in (*volumes, pod["subdomain"]))
    assert {volumes[m["name"]]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"][1:]} == claims
    for twice in ("claim=data.v2:/other", "image=b", "node=k1=x"):
        with pytest.raises(UsageError, match="given twice"):
            kubernetes.text(job, ["image=a:1", *options, twice], 3)


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
