"""One run on several machines: network namespaces where this machine allows them, else addresses of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint

from erniecore.api import Exit
from erniecore.api.launcher import free_port

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]
LAYOUT = {"parallel__name": "hybrid", "parallel__data": 2, "log__every": 1, "train__max_steps": 40}
SECRET = "a secret that both machines know"
OURS = {"NO_COLOR": "1", "OMP_NUM_THREADS": "1", "ERNIECORE_SECRET": SECRET}


class Machines:
    """Two machines; ``cut()`` breaks the network between them."""

    def __init__(self, names, addresses, namespaces):
        self.names, self.addresses, self.namespaces = names, addresses, namespaces

    def start(self, words, cwd):
        """``ernie run`` on both."""
        port = free_port()
        return [self._start(rank, [*words, "--master", f"{self.addresses[0]}:{port}"], cwd) for rank in range(2)]

    def _start(self, rank, words, cwd):
        prefix = ["ip", "netns", "exec", self.names[rank]] if self.namespaces else []
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("ERNIE", "PADDLE_"))}
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "erniecore", "run", *words, "--nodes", "2", "--node-rank", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**environ, **OURS, "ERNIECORE_NODE": f"host-{rank}"},
        )

    def cut(self):
        ip("-n", self.names[1], "link", "set", "veth1", "down")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines():
    names = [f"ernie-{uuid.uuid4().hex[:6]}-{i}" for i in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth1", "netns", names[1])
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.213.7.{i + 1}/24", "dev", f"veth{i}")
            ip("-n", name, "link", "set", f"veth{i}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield Machines(names, ["10.213.7.1", "10.213.7.2"], True)
    except (OSError, subprocess.CalledProcessError):
        yield Machines(names, ["127.0.0.1", "127.0.0.2"], False)
    finally:
        if shutil.which("ip"):
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def at_step(process, step):
    for line in process.stdout:
        if line.startswith(f"step   {step}/"):
            return
    raise AssertionError(process.communicate()[1])


def ended(processes):
    """Errors of both; their codes are the same."""
    errors = [process.communicate()[1] for process in processes]
    assert len({process.returncode for process in processes}) == 1, (processes, errors)
    return processes[0].returncode, errors


def test_two_machines_train_a_killed_rank_is_shown_on_both_and_they_start_again_together(machines, words, tmp_path):
    import erniecore

    processes = machines.start([*words(tmp_path / "out", checkpoint__every=2, **LAYOUT), "--restarts", "1"], tmp_path)
    at_step(processes[0], 5)
    children = subprocess.check_output(["pgrep", "-P", str(processes[1].pid)], text=True).split()
    os.kill(int(children[0]), signal.SIGKILL)
    code, errors = ended(processes)
    assert code == 0, errors
    for text in errors:
        assert re.search(r"restart 1 of 1 in \d s: a process of the run was killed by SIGKILL \(rank 1 on host-1", text)
    erniecore.run(overrides=words(tmp_path / "one", train__accumulation=2, train__max_steps=40), console="none")
    one, both = (
        load_checkpoint(tmp_path / name / "ckpt" / "step-00000040").tensors["model"] for name in ("one", "out")
    )
    assert max(float(np.abs(one[name] - both[name]).max()) for name in one) <= 1e-5
    assert "host-1" in (tmp_path / "out" / "logs" / "rank-1.log").read_text()
    assert not [
        path for path in (tmp_path / "out").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


def test_ranks_are_on_the_machines_that_the_settings_say(machines, words, tmp_path):
    """The first machine has the last stage, the second one the first stage."""
    layout = {"parallel__name": "hybrid", "parallel__pipeline": 2, "parallel__ranks": "[1,0]", "train__accumulation": 2}
    code, errors = ended(machines.start(words(tmp_path / "out", **layout), tmp_path))
    assert code == 0, errors
    lines = (tmp_path / "out" / "events.jsonl").read_text().splitlines()
    [found] = [event for event in map(json.loads, lines) if event["event"] == "places"]
    assert found["nodes"] == ["host-0", "host-1"]
    assert [place["pipeline"] for place in found["coordinates"]] == [1, 0]
    sent = [event["bytes_sent"] for event in map(json.loads, lines) if event["event"] == "step"]
    assert min(sent) > 0


def test_a_cut_network_ends_in_an_error_that_names_the_machine(machines, words, tmp_path):
    if not machines.namespaces:
        pytest.skip("no network namespaces here")
    processes = machines.start(words(tmp_path / "out", **{**LAYOUT, "train__max_steps": 100_000}), tmp_path)
    at_step(processes[0], 3)
    machines.cut()
    code, errors = ended(processes)
    assert code == Exit.ENVIRONMENT
    assert "lost contact with host-1" in errors[0], errors
    assert "lost contact with host-0" in errors[1], errors
