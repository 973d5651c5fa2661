"""Commands that are forks of a process with paddle are commands all the same: streams, directory, environment, end."""

import os
import re
import select
import subprocess
import sys

from warm import CLIENT

ENVIRON = {**{k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}, "NO_COLOR": "1"}


def test_it_prints_fails_and_ends_as_a_command_does(warm, tmp_path):
    process = warm.start(["run", "modl=3"], tmp_path, ENVIRON)
    out, errors = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert "modl=3: unknown key" in errors


def test_it_sees_the_directory_and_the_environment_of_who_asks(warm, tmp_path):
    (tmp_path / "run.yaml").write_text("model: ernie45\nmethod: sft\n")
    process = warm.start(["config", "show", "run.yaml"], tmp_path, {**ENVIRON, "ERNIE_TRAIN__BATCH_SIZE": "7"})
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert re.search(r"^train.batch_size +7 ", out, re.MULTILINE), out


def test_a_signal_ends_it(warm, tmp_path):
    os.mkfifo(tmp_path / "never.yaml")  # nobody writes into it
    process = warm.start(["config", "show", "never.yaml"], tmp_path, ENVIRON)
    process.kill()
    process.communicate()
    assert process.returncode == -9


def test_the_stand_in_for_ernie_has_its_exit_code(warm, tmp_path):
    command = [sys.executable, "-I", "-S", CLIENT, warm.address(), "run", "modl=3"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRON, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "modl=3: unknown key" in done.stderr


ASKS = """
import os, sys
from pathlib import Path
from warm import Warm
server = Warm()
command = server.start_code("import time; time.sleep(1000)", "", dict(os.environ), Path("printed"))
with open(f"/proc/{command.pid}/stat") as file:
    attends = file.read().rpartition(") ")[2].split()[1]
print(server._server.pid, attends, command.pid, flush=True)
command.wait()
"""


def test_everything_ends_with_the_process_that_asked_whatever_ends_it(tmp_path):
    """The server, the process that waits for the command, and the command."""
    environ = {**ENVIRON, "PYTHONPATH": str(CLIENT.parent)}
    asks = subprocess.Popen([sys.executable, "-c", ASKS], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True)
    with asks.stdout:
        ends = [os.pidfd_open(int(pid)) for pid in asks.stdout.readline().split()]
    asks.kill()
    asks.wait()
    waiting = set(ends)
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], 60)
        assert ready, f"{len(waiting)} of {len(ends)} live on"
        waiting -= set(ready)
    for number in ends:
        os.close(number)
