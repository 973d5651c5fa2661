"""The replay check of a run: the steps between two checkpoints are repeated in a fresh process that starts from the first
one, and every tensor of the second must have the same hash. No paddle in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from erniecore.api import CheckpointError, Exit, UsageError
from erniecore.api.checkpoints import (
    checkpoint_name,
    find_bad_batch_list,
    list_checkpoints,
    read_manifest,
    step_of,
    verify_checkpoint,
)
from erniecore.api.launcher import parent_variables
from erniecore_ckpt.rewriting import tensor_hashes


@dataclass(frozen=True, slots=True)
class Replay:
    """What was found: steps ``first`` (exclusive) to ``last`` were repeated; ``tensors`` compared; ``differing``: names
    of those with another hash, as ``group: name``."""

    first: int
    last: int
    tensors: int
    differing: tuple[str, ...]


def choose(run: Path, first: int | None = None, last: int | None = None) -> tuple[Path, Path]:
    """Two verified checkpoints of the run directory ``run``; by default the newest two.

    Raises:
        UsageError: there are no two such checkpoints. CheckpointError: one is damaged.
    """
    by_step = {step_of(path.name) or 0: path for path in list_checkpoints(run / "ckpt")}
    chosen_last = max(by_step, default=0) if last is None else last
    chosen_first = max((step for step in by_step if step < chosen_last), default=0) if first is None else first
    if chosen_first not in by_step or chosen_last not in by_step or chosen_first >= chosen_last:
        raise UsageError(
            "a replay check needs two checkpoints, an earlier one to start from and a later one to compare with",
            where=str(run / "ckpt"),
            found=", ".join(path.name for path in by_step.values()) or "none",
            fix="save more of them (checkpoint.every, checkpoint.keep), or name two with --from and --to",
        )
    for step in (chosen_first, chosen_last):
        if findings := verify_checkpoint(by_step[step]):
            raise CheckpointError("this checkpoint is damaged", where=str(by_step[step]), found=str(findings[0]))
    return by_step[chosen_first], by_step[chosen_last]


def replay(run: Path, first: Path, last: Path) -> Replay:
    """Repeat the steps from ``first`` to ``last`` and compare.

    Raises:
        CheckpointError: the repetition failed; found: the last lines that it printed.
    """
    resolved = run / "resolved.yaml"
    if not resolved.is_file():
        raise UsageError("this is no run directory", where=str(run), expected="resolved.yaml")
    target = read_manifest(last)
    with tempfile.TemporaryDirectory(prefix="erniecore-replay-") as name:
        out = Path(name) / "run"
        out.mkdir()
        if (skipped := find_bad_batch_list(run)) is not None:
            (out / skipped.name).write_bytes(skipped.read_bytes())
        settings = {
            "run.out": out,
            "run.resume": first.resolve(),
            "run.until": target.step,
            "run.max_minutes": 0,
            "checkpoint.every": 0,
            "checkpoint.minutes": 0,
            "checkpoint.final": "true",
            "checkpoint.export": "false",
            "eval.every": 0,
            "log.report": "false",
        }
        _repeat(resolved, [f"{key}={value}" for key, value in settings.items()])
        again = read_manifest(out / "ckpt" / checkpoint_name(target.step))
    theirs, ours = tensor_hashes(target), tensor_hashes(again)
    differing = tuple(sorted(n for n in {**theirs, **ours} if theirs.get(n) != ours.get(n)))
    return Replay(step_of(first.name) or 0, target.step, len(theirs), differing)


def _repeat(resolved: Path, settings: list[str]) -> None:
    command = [sys.executable, "-m", "erniecore", "run", str(resolved), *settings]
    environ = {**os.environ, **parent_variables(), "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode not in (int(Exit.OK), int(Exit.PREEMPTED)):
        raise CheckpointError(
            "the steps could not be repeated",
            where=str(resolved),
            found="; ".join(done.stderr.strip().splitlines()[:3]),
            fix="run it from the directory in which the run was started, with the same files in place",
        )
