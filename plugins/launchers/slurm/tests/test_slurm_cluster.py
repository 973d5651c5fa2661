"""Runs in the queue of a real Slurm cluster of two nodes: submitted, preempted, canceled, with a rank and a node killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import cluster, missing

from erniecore.errors import Exit

pytestmark = [pytest.mark.cluster, pytest.mark.multiproc]
SETTINGS = [
    "data.max_seq_len=48",
    "data.packing=none",
    "train.batch_size=1",
    "train.learning_rate=1e-3",
    "checkpoint.every=20",
]
SETTINGS += ["log.every=1", "log.report=false"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    absent = missing()
    assert not absent, f"{', '.join(absent)}: install Debian's slurm-wlm, or leave this lane out (make test)"
    with cluster(tmp_path_factory.mktemp("slurm")) as own:
        yield own


class Home:
    """Runs of the talker on two ranks, each on a node of its own."""

    def __init__(self, slurm, talker, home):
        self.slurm, self.talker, self.home = slurm, talker, home
        self.environ = {k: v for k, v in slurm.environ.items() if not k.startswith("ERNIE_")}
        self.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def words(self, name, steps, *more):
        return ["--model", self.talker / "model", "--method", "sft", "--data", self.talker / "rows.jsonl", "--parallel", "hybrid",
                "--out", self.home / name, "parallel.data=2", f"train.max_steps={steps}", *SETTINGS, *more]  # fmt: skip

    def ernie(self, *words):
        words = [sys.executable, "-m", "erniecore", *map(str, words)]
        return subprocess.run(words, env=self.environ, cwd=self.home, capture_output=True, text=True)

    def submit(self, name, steps, *more, options=()):
        flags = [word for option in options for word in ("--option", option)]
        done = self.ernie("launch", *self.words(name, steps, *more), "--nodes", 2, *flags, "--json")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["job"])

    def events(self, name, kind="step"):
        path = self.home / name / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = []
        for line in lines:
            if line.startswith("{") and line.endswith("}"):
                found.append(json.loads(line))
        return [event for event in found if event["event"] == kind]

    def losses(self, name):
        return {event["step"]: event["loss"] for event in self.events(name)}

    def until(self, what, happened):
        return self.slurm.wait_for(what, happened)

    def until_step(self, name, step):
        self.until(f"step {step} of {name}", lambda: any(event["step"] >= step for event in self.events(name)))

    def until_state(self, job, *states):
        return self.until(f"job {job} {states}", lambda: (s := self.slurm.state(job)) in states and s)

    def ranks(self):
        """Process ids of the ranks that run now."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"erniecore.engine.worker" in words and words[0] == os.fsencode(sys.executable):
                found.append(int(path.parent.name))
        return found


@pytest.fixture(scope="module")
def home(slurm, talker, tmp_path_factory):
    return Home(slurm, talker, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def alone(home):
    """Losses of the same run by the launcher ``local``."""
    done = home.ernie("run", *home.words("alone", 300))
    assert done.returncode == 0, done.stderr
    return home.losses("alone")


def test_a_run_on_two_nodes_is_the_run_of_one_machine(home, alone):
    job = home.submit("two", 300)
    assert home.until_state(job, "COMPLETED", "FAILED") == "COMPLETED", (
        home.home / "two" / f"slurm-{job}.out"
    ).read_text()
    assert home.losses("two") == alone
    logs = home.home / "two" / "logs"
    assert {path.name for path in logs.glob("rank-*.out")} == {"rank-0.out", "rank-1.out"}
    assert "job" in (home.home / "two" / f"slurm-{job}.out").read_text()


def test_a_preempted_run_is_queued_again_and_resumes(home, alone):
    job = home.submit("preempted", 300)
    home.until_step("preempted", 30)
    other = home.slurm.ask(
        "sbatch", "--parsable", "-p", "high", "--nodes=2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3"
    )
    home.until_state(int(other), "COMPLETED")
    assert home.until_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    starts = home.events("preempted", "run_start")
    assert len(starts) == 2
    assert home.losses("preempted") == alone


def test_a_killed_rank_is_started_again_in_the_same_job(home, alone):
    job = home.submit("killed", 300, "launcher.restarts=1")
    home.until_step("killed", 30)
    os.kill(max(home.ranks()), signal.SIGKILL)
    assert home.until_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert home.losses("killed") == alone
    warnings = [event["message"] for event in home.events("killed", "warning")]
    assert any("was killed by SIGKILL" in text and "on n" in text for text in warnings), warnings


def test_a_canceled_job_saves_and_stays_out_of_the_queue(home):
    job = home.submit("canceled", 100000)
    home.until_step("canceled", 30)
    home.slurm.ask("scancel", str(job))
    assert home.until_state(job, "CANCELLED", "COMPLETED", "FAILED") == "CANCELLED"
    home.until("the ranks have ended", lambda: not home.ranks())
    assert home.slurm.ask("squeue", "--noheader").strip() == ""
    assert home.events("canceled", "run_end")[-1]["status"] == "preempted"
    done = home.ernie("run", *home.words("canceled", 100000), "run.until=1")
    assert done.returncode == Exit.PREEMPTED


def test_a_lost_node_ends_the_job_which_is_queued_again(home, alone):
    job = home.submit("lost", 300)
    home.until_step("lost", 30)
    home.slurm.kill_node("n1", home.ranks())
    home.until_state(job, "PENDING")
    home.slurm.start_node("n1")
    assert home.until_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert home.losses("lost") == alone
    assert len(home.events("lost", "run_start")) == 2
