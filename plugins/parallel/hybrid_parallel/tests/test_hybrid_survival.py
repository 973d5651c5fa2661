"""Stopping, killing and failing ranks of a real run: what the console says, what is on disk, who is left. The command that
starts the ranks is a fork of the warm process, once a fresh one; the ranks that it starts are fresh."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.processes import on_ranks
from processes import await_end

from erniecore.api import Exit

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]
TWO = {"parallel__name": "hybrid", "parallel__sharding": 2, "log__every": 1}


HELPERS = Path(__file__).with_name("hybrid_helpers.py")


@pytest.fixture
def start(warm, tmp_path):
    """``start(words, fresh=False)``: ``ernie run`` as a process."""

    def begin(words, fresh=False):
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("ERNIE_", "PADDLE_"))}
        environ |= {"NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        if not fresh:
            return warm.start(["run", *words], tmp_path, environ)
        command, pipe = [sys.executable, "-m", "erniecore", "run", *words], subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env=environ)

    return begin


def at_step(process, step):
    """Wait until the line of ``step`` is printed."""
    for line in process.stdout:
        if line.startswith(f"step   {step}/"):
            return
    raise AssertionError(process.communicate()[1])


def ranks_of(process):
    """Process ids of the ranks that have started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], text=True, stdout=subprocess.PIPE)
    return [int(pid) for pid in found.stdout.split()]


def tensors(out, step):
    checkpoint = load_checkpoint(out / "ckpt" / f"step-{step:08d}")
    return {(g, n): array.tobytes() for g, members in checkpoint.tensors.items() for n, array in members.items()}


def finish(words):
    """The same run, to its end, by two ranks that nobody launches."""
    on_ranks(2, f"{HELPERS}:runs", [words])


@pytest.fixture(scope="module")
def straight(words, tmp_path_factory):
    """An uninterrupted run of 40 steps on two ranks."""
    place = tmp_path_factory.mktemp("straight")
    finish(words(place / "out", train__max_steps=40, **TWO))
    return tensors(place / "out", 40)


def test_sigterm_stops_all_ranks_after_one_step_and_the_same_command_continues(start, words, tmp_path, straight):
    command = words(tmp_path / "out", train__max_steps=40, **TWO)
    process = start(command, fresh=True)
    at_step(process, 3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == Exit.PREEMPTED, errors
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    last = max(e["step"] for e in events if e["event"] == "step")
    assert load_checkpoint(list_checkpoints(tmp_path / "out" / "ckpt")[-1]).step == last
    finish(command)
    assert tensors(tmp_path / "out", 40) == straight


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_by_name_and_it_continues_bit_for_bit(start, words, tmp_path, straight, victim):
    command = words(tmp_path / "out", train__max_steps=40, checkpoint__every=2, **TWO)
    process = start(command)
    at_step(process, 5)
    ranks = ranks_of(process)
    os.kill(ranks[victim], signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == Exit.ENVIRONMENT, errors
    assert re.search(r"^error ERN-E020  a process of the run was killed by SIGKILL ", errors, re.MULTILINE), errors
    assert f"rank {victim}, " in errors
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)
    finish(command)
    assert tensors(tmp_path / "out", 40) == straight


def test_the_first_error_of_the_failing_rank_is_shown(start, words, tmp_path):
    (tmp_path / "out" / "control").mkdir(parents=True)
    with (tmp_path / "out" / "control" / "lock-1").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(words(tmp_path / "out", **TWO))
        _, errors = process.communicate()
    assert process.returncode == Exit.ENVIRONMENT
    assert errors.startswith("error ERN-E011  another process is training in this directory"), errors
    assert "rank 1, " in errors
    assert "Traceback" not in errors


def test_ranks_end_when_the_starting_process_is_killed(start, words, tmp_path):
    process = start(words(tmp_path / "out", train__max_steps=100_000, **TWO))
    at_step(process, 3)
    ranks = ranks_of(process)
    process.kill()
    process.communicate()
    while any(os.path.exists(f"/proc/{pid}") for pid in ranks):
        time.sleep(0.1)
    assert list_checkpoints(tmp_path / "out" / "ckpt"), "they save what they have"


def test_the_same_command_right_after_the_launcher_was_killed_goes_on(start, words, tmp_path, straight):
    """Twice: amid the steps, where the ranks save first, and amid the next start, where there is nothing to save and one rank
    waits for another within Paddle, deaf to SIGTERM: that one is frozen."""
    command = words(tmp_path / "out", train__max_steps=40, checkpoint__every=10, **TWO)
    process = start(command, fresh=True)
    at_step(process, 5)
    ranks = ranks_of(process)
    process.kill()
    again = start(command, fresh=True)
    process.communicate()
    while len(second := ranks_of(again)) < 2:
        assert again.poll() is None, again.communicate()[1]
    await_end(ranks)  # the launcher has waited for all but the last moment
    while (tmp_path / "out" / "logs" / "rank-1.log").read_text().count("rank 1 of 2") < 2:
        assert again.poll() is None, again.communicate()[1]
    os.kill(second[1], signal.SIGSTOP)
    again.kill()
    again.communicate()  # until the last process that could print there has ended
    await_end(second)
    third = start(command, fresh=True)
    _, errors = third.communicate()
    assert third.returncode == 0, errors
    assert tensors(tmp_path / "out", 40) == straight


def test_impossible_degrees_start_nothing(start, words, tmp_path):
    process = start([*words(tmp_path / "out", **{**TWO, "parallel__data": 3}), "--nproc", "4"])
    _, errors = process.communicate()
    assert process.returncode == Exit.USAGE
    assert "parallel.data=3" in errors
    assert not (tmp_path / "out").exists()


def test_a_frozen_rank_is_named_everybodys_stacks_are_kept_and_the_run_starts_again(start, words, tmp_path, straight):
    command = words(tmp_path / "out", train__max_steps=40, checkpoint__every=2, parallel__timeout=12, **TWO)
    process = start([*command, "--restarts", "1"])
    at_step(process, 5)
    os.kill(ranks_of(process)[1], signal.SIGSTOP)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    events = [json.loads(e) for e in (tmp_path / "out" / "events.jsonl").read_text().splitlines() if e]
    (warning,) = [e for e in events if e.get("kind") == "restart"]
    # it froze before a collective, or within one
    assert re.search("(waited 12 s for|lost contact with) rank 1", warning["message"]), warning
    assert tensors(tmp_path / "out", 40) == straight
