"""SIGKILL at random moments of a process that saves all the time: there is always a whole checkpoint to go on from."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint, newest_verified

#: forks a process that saves for every line that it reads, and says how it ended: libraries are imported once
PARENT = """
import os, sys, numpy as np
from pathlib import Path
from erniecore_checkpoint.reader import load_checkpoint, newest_verified
from erniecore_checkpoint.save import save_checkpoint
root = Path(sys.argv[1])

def save():
    path, notes = newest_verified(root)
    step = load_checkpoint(path).step if path else 0
    print("pid", os.getpid(), flush=True)
    while True:
        step += 1
        tensors = {f"t{i}": np.full(3000, step, np.float32) for i in range(6)}
        save_checkpoint(root, step, {"model": tensors, "optim": tensors}, {"step": step}, keep=2, max_shard_bytes=30_000)
        print("saved", step, flush=True)

for _ in sys.stdin:
    child = os.fork()
    if not child:
        save()
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

KILLS = 30


@pytest.mark.slow
def test_a_killed_run_always_finds_its_last_checkpoint(tmp_path):
    root = tmp_path / "ckpt"
    moments = random.Random(45)
    interrupted = 0
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        for _ in range(KILLS):
            interrupted += killed_while_it_saves(parent, root, moments.uniform(0, 0.08))
        parent.stdin.close()
    assert interrupted >= KILLS // 4, "the kills did not hit saves; the test proves nothing"


def killed_while_it_saves(parent, root, seconds):
    """Whether the kill came in the middle of a save."""
    parent.stdin.write("another\n")
    parent.stdin.flush()
    child = int(parent.stdout.readline().removeprefix("pid "))
    # let it get into its loop, so that nearly each kill hits a save
    lines = [parent.stdout.readline()]
    assert lines[0].startswith("saved"), "the child ended by itself"
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    while not lines[-1].startswith("ended"):
        lines.append(parent.stdout.readline())
    assert lines[-1] == f"ended {-signal.SIGKILL}\n"
    reported = [int(line.split()[1]) for line in lines[1:-1]]
    interrupted = bool(list(root.glob(".*")))

    newest, notes = newest_verified(root)
    assert newest is not None
    assert notes == [], "a kill must never leave a damaged checkpoint under a real name"
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step >= max(reported, default=0), "a save that was reported is lost"
    assert checkpoint.state == {"step": checkpoint.step}
    assert all((array == checkpoint.step).all() for array in checkpoint.tensors["model"].values())
    assert len(list_checkpoints(root)) <= 3
    json.loads((root / "latest.json").read_text())
    return interrupted
