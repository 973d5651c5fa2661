"""Jobs of Kubernetes: manifests against the published schemas, and pods as processes under the failure policy of the Job."""

import json
import os
import signal

import pytest
import yaml
from kube_jobs import KubeJob

from erniecore.api.launcher import free_port
from erniecore.cli.app import main

pytestmark = [pytest.mark.cluster, pytest.mark.multiproc]
SETTINGS = [
    "data.max_seq_len=48",
    "data.packing=none",
    "train.batch_size=1",
    "train.learning_rate=1e-3",
    "checkpoint.every=2",
]
SETTINGS += ["log.every=1", "log.report=false", "train.max_steps=12"]
#: versions of the API whose schemas a manifest is held against
VERSIONS = ("1.29", "1.31", "1.35")


@pytest.fixture
def manifest(talker, tmp_path, monkeypatch, capsys):
    """``manifest(out, *arguments)``: of a run of the talker on two nodes with one rank each."""
    monkeypatch.chdir(tmp_path)
    # what pods see: the model and the data lie on the volume
    os.symlink(talker / "model", tmp_path / "model")
    os.symlink(talker / "rows.jsonl", tmp_path / "rows.jsonl")

    def write(out, *more):
        arguments = [
            "launch",
            "--to",
            "kubernetes",
            "--model",
            "model",
            "--data",
            "rows.jsonl",
            "--method",
            "sft",
            "--out",
            out,
        ]
        arguments += ["--parallel", "hybrid", "parallel.data=2", "--nodes", "2", "--option", "image=erniecore:1"]
        arguments += ["--option", f"claim=work:{tmp_path}", *SETTINGS, *more, "--dry-run"]
        assert main(arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return write


def losses(directory):
    found = {}
    for line in (directory / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            found[event["step"]] = event["loss"]
    return found


def pods(text, home):
    environ = {k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")} | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return KubeJob(text, home, free_port(), {"first": {"secret": "0123456789abcdef0123"}}, environ)


def test_manifests_fit_the_published_schemas(manifest):
    validate = pytest.importorskip("kubernetes_validate").validate
    more = [
        "--time",
        "2:00:00",
        "--option",
        "limit=nvidia.com/gpu=8",
        "--option",
        "shm=8Gi",
        "--option",
        "namespace=train",
    ]
    more += ["--option", "node=pool=gpu", "--option", "priority=high", "--option", "service-account=trainer"]
    documents = list(yaml.safe_load_all(manifest("first", *more)))
    assert [document["kind"] for document in documents] == ["ConfigMap", "Service", "Job"]
    for version in VERSIONS:
        for document in documents:
            validate(document, version, strict=True)


def test_pods_that_are_evicted_and_killed_start_again_and_end_like_an_undisturbed_run(manifest, talker, tmp_path):
    undisturbed = pods(manifest("alone"), tmp_path / "alone.pods")
    undisturbed.secrets = {"alone": undisturbed.secrets["first"]}
    assert undisturbed.run()
    text, done = manifest("first"), []

    def disturb(job):
        path = tmp_path / "first" / "events.jsonl"
        newest = max(losses(tmp_path / "first"), default=0) if path.exists() else 0
        if newest >= 3 and not done:
            done.append(job.signal(1, signal.SIGTERM))  # evicted: the run saves, all pods end with 75 and start again
        elif newest >= 8 and len(done) == 1 and len(job.starts) == 4:
            done.append(job.signal(1, signal.SIGKILL))  # lost: the other pod notices

    job = pods(text, tmp_path / "first.pods")
    assert job.run(disturb)
    assert len(done) == 2
    assert sorted(job.starts) == [0, 0, 0, 1, 1, 1]
    assert 1 <= job.failures <= 2
    assert losses(tmp_path / "first") == losses(tmp_path / "alone")


def test_a_run_that_cannot_succeed_fails_the_job(manifest, tmp_path):
    text = manifest("first")
    (tmp_path / "rows.jsonl").unlink()
    job = pods(text, tmp_path / "pods")
    assert not job.run()
    assert job.failures == 0
