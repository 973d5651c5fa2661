"""Runs on a real Ray cluster of two raylets: equal to one machine, stopped, with a rank and a node killed, without room."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from erniecore.api.launcher import free_port
from erniecore.errors import Exit

pytestmark = [pytest.mark.cluster, pytest.mark.multiproc]
SETTINGS = [
    "data.max_seq_len=48",
    "data.packing=none",
    "train.batch_size=1",
    "train.learning_rate=1e-3",
    "checkpoint.every=40",
]
SETTINGS += [
    "log.every=1",
    "log.report=false",
    "launcher.cpus=1",
    "launcher.strategy=STRICT_SPREAD",
    "launcher.wait=60",
]


class Ray:
    """Two raylets with one CPU each and a head without any, below a directory of their own."""

    def __init__(self, home):
        self.home, self.port, self.started = home, free_port(), 0
        # short: the sockets of Ray lie below it
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("ERNIE_", "RAY_"))}
        self.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        self.environ |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
        }
        self.nodes = []

    def start(self):
        self._start(
            "--head", "--include-dashboard=false", f"--temp-dir={self.home}", f"--port={self.port}", "--num-cpus=0"
        )
        said = (self.home / "node-0.log").read_text()
        self.environ["RAY_ADDRESS"] = re.search(r"Local node IP: (\S+)", said)[1] + f":{self.port}"
        self.add()
        self.add()

    def _start(self, *arguments):
        command = [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--block",
            "--disable-usage-stats",
        ]
        command += [
            "--object-store-memory=100000000",
            *arguments,
        ]
        path = self.home / f"node-{self.started}.log"
        self.started += 1
        log = path.open("wb")
        process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.nodes.append(process)
        until("a node of Ray", lambda: b"Ray runtime started" in path.read_bytes() or process.poll() is not None)
        assert process.poll() is None, path.read_text()

    def add(self):
        self._start(f"--address={self.environ['RAY_ADDRESS']}", "--num-cpus=1")

    def kill(self, node):
        """The node and all that runs on it."""
        os.killpg(self.nodes[node].pid, signal.SIGKILL)
        self.nodes[node].wait()

    def close(self):
        for node, process in enumerate(self.nodes):
            if process.poll() is None:
                self.kill(node)


def until(what, happened, patience=180):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := happened():
            return found
        time.sleep(0.05)
    pytest.fail(f"{what}: not after {patience} s")


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    pytest.importorskip("ray")
    cluster = Ray(tmp_path_factory.mktemp("r"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


class Home:
    def __init__(self, ray, talker, home):
        self.ray, self.talker, self.home = ray, talker, home

    def start(self, name, launcher="ray", *more):
        arguments = ["run", "--model", self.talker / "model", "--method", "sft", "--data", self.talker / "rows.jsonl"]
        arguments += [
            "--parallel",
            "hybrid",
            "--out",
            self.home / name,
            "parallel.data=2",
            "train.max_steps=400",
            "--launcher",
            launcher,
        ]
        command = [
            sys.executable,
            "-m",
            "erniecore",
            *map(str, arguments),
            *(SETTINGS if launcher == "ray" else SETTINGS[:-3]),
            *more,
        ]
        return subprocess.Popen(
            command, env=self.ray.environ, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def events(self, name, kind):
        path = self.home / name / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in (json.loads(line) for line in lines if line.endswith("}")) if event["event"] == kind]

    def losses(self, name):
        return {event["step"]: event["loss"] for event in self.events(name, "step")}

    def until_step(self, name, step):
        until(f"step {step} of {name}", lambda: any(number >= step for number in self.losses(name)))


@pytest.fixture(scope="module")
def home(ray, talker, tmp_path_factory):
    return Home(ray, talker, tmp_path_factory.mktemp("ray-runs"))


@pytest.fixture(scope="module")
def expected(home):
    process = home.start("local", "local")
    _, err = process.communicate()
    assert process.returncode == 0, err
    return home.losses("local")


def ranks(home, name):
    """Process ids of the ranks of a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if b"erniecore.engine.worker" in command.split(b"\0") and str(home.home / name).encode() in environ:
            found.append(int(path.name))
    return found


def test_ranks_on_two_nodes_equal_one_machine_and_rank_0_has_the_console(home, expected):
    process = home.start("plain")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "2 node(s)" in out + err or "3 node(s)" in out + err
    assert "step 400" in out or "400/400" in out, out
    assert home.losses("plain") == expected
    assert not ranks(home, "plain")


def test_sigterm_saves_and_the_same_command_goes_on(home, expected):
    process = home.start("stopped")
    home.until_step("stopped", 50)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == Exit.PREEMPTED, err
    assert not ranks(home, "stopped")
    process = home.start("stopped")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert home.losses("stopped") == expected


def test_a_killed_rank_is_named_and_with_restarts_the_run_ends_equally(home, expected):
    process = home.start("rank", "ray", "launcher.restarts=1")
    home.until_step("rank", 50)
    os.kill(ranks(home, "rank")[-1], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "SIGKILL" in out + err
    assert home.losses("rank") == expected


def test_a_lost_node_is_a_lost_rank_and_another_node_takes_its_place(home, expected):
    process = home.start("node", "ray", "launcher.restarts=1")
    home.until_step("node", 50)
    home.ray.kill(2)
    home.ray.add()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert home.losses("node") == expected
    assert not ranks(home, "node")


def test_a_cluster_without_room_is_named(home):
    process = home.start("large", "ray", "launcher.cpus=8", "launcher.wait=3")
    _, err = process.communicate()
    assert process.returncode == Exit.ENVIRONMENT
    assert "no room" in err
    assert "launcher.cpus" in err


def documents(home):
    """Rows of conversations and of text, some of which are damaged, and more chunks than go through the cluster at a time."""
    path = home.home / "documents.jsonl"
    if not path.exists():
        rows = [json.dumps({"text": f"document {i} of the corpus, {i % 7} times {i % 11}"}) for i in range(3000)]
        rows[1500] = '{"text": '
        path.write_text("\n".join(rows) + "\n")
    return path


def data_command(home, *arguments, code=0):
    command = [sys.executable, "-m", "erniecore", "data", *map(str, arguments)]
    done = subprocess.run(command, env=home.ray.environ, cwd=home.home, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_rows_are_checked_and_built_on_the_cluster_as_in_one_process(home):
    model, rows = home.talker / "model", home.talker / "rows.jsonl"
    for command in (
        ("check", rows, "--model", model, "--method", "sft", "--json"),
        ("stats", rows, "--model", model, "--method", "sft", "--json"),
    ):
        expected = data_command(home, *command)
        assert data_command(home, *command, "--ray", "auto").stdout == expected.stdout
    expected = data_command(home, "check", documents(home), "--json", code=Exit.DATA)
    found = data_command(home, "check", documents(home), "--json", "--ray", "auto", code=Exit.DATA)
    assert json.loads(found.stdout) == json.loads(expected.stdout)
    assert json.loads(found.stdout)["dropped"] == 1
    common = ("--tokenizer", model, "--max-drop", "0.1")
    data_command(home, "build", documents(home), *common, "--out", "alone")
    data_command(home, "build", documents(home), *common, "--out", "cluster", "--ray", "auto")
    for ending in (".bin", ".idx"):
        assert (home.home / f"cluster{ending}").read_bytes() == (home.home / f"alone{ending}").read_bytes()


#: 40 numbers, seven at a time, each after a moment; then a number that fails
SLOWLY = """
import sys, time
from erniecore_ray.rows import RayPool

def work(shared, item):
    time.sleep(0.2)
    return shared / item

found = RayPool("auto", at_a_time=7)(work, 840.0, range(1, 41))
for place, value in enumerate(found):
    assert value == 840.0 / (place + 1)
    print(place, flush=True, file=sys.__stdout__)
try:
    print(list(RayPool("auto")(work, 1.0, [1, 0])))
except ZeroDivisionError as error:
    print("raised", error)
"""


def test_work_comes_back_in_order_also_when_a_node_is_lost(ray):
    ray.add()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY], env=ray.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "0\n"
    ray.kill(-1)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.split("\n")[:-1] == [*map(str, range(1, 40)), "raised float division by zero"]


def test_a_cluster_that_is_not_there_and_two_places_to_encode_are_refused(home):
    found = data_command(home, "check", documents(home), "--ray", "127.0.0.1:1", code=Exit.ENVIRONMENT)
    assert "no Ray cluster" in found.stderr
    found = data_command(home, "check", documents(home), "--ray", "auto", "--workers", "1", code=Exit.USAGE)
    assert "--workers and --ray" in found.stderr
