"""SIGKILL at random moments of a process that saves all the time: there is always a whole checkpoint to go on from."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import pytest
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint, newest_verified

CHILD = """
import sys, numpy as np
from pathlib import Path
from erniecore_checkpoint.reader import load_checkpoint, newest_verified
from erniecore_checkpoint.save import save_checkpoint
root = Path(sys.argv[1])
path, notes = newest_verified(root)
step = load_checkpoint(path).step if path else 0
print("start", step, len(notes), flush=True)
while True:
    step += 1
    tensors = {f"t{i}": np.full(3000, step, np.float32) for i in range(6)}
    save_checkpoint(root, step, {"model": tensors, "optim": tensors}, {"step": step}, keep=2, max_shard_bytes=30_000)
    print("saved", step, flush=True)
"""

KILLS = 30


@pytest.mark.slow
def test_a_killed_run_always_finds_its_last_checkpoint(tmp_path):
    root = tmp_path / "ckpt"
    moments = random.Random(45)
    interrupted = 0
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(root)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        # let it get into its loop, so that nearly each kill hits a save
        while not child.stdout.readline().startswith("saved"):
            assert child.poll() is None, "the child ended by itself"
        time.sleep(moments.uniform(0, 0.08))
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        child.wait()
        child.stdout.close()
        reported = [int(line.split()[1]) for line in rest.splitlines() if line.startswith("saved ")]
        interrupted += bool(list(root.glob(".*")))

        newest, notes = newest_verified(root)
        assert newest is not None
        assert notes == [], "a kill must never leave a damaged checkpoint under a real name"
        checkpoint = load_checkpoint(newest)
        assert checkpoint.step >= max(reported, default=0), "a save that was reported is lost"
        assert checkpoint.state == {"step": checkpoint.step}
        assert all((array == checkpoint.step).all() for array in checkpoint.tensors["model"].values())
        assert len(list_checkpoints(root)) <= 3
        json.loads((root / "latest.json").read_text())
    assert interrupted >= KILLS // 4, "the kills did not hit saves; the test proves nothing"
