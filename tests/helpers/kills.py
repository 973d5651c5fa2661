"""Killing processes of a run again and again: what is on disk stays loadable, nothing hangs, and the weights at the end are
those of the run that nobody disturbed. How the processes are started is the business of a ``Launch``; see ``forked.py``
and ``benchmarks/kill_loop.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_checkpoint.verify import verify_checkpoint

#: seconds that the other ranks have to end by themselves
GRACE = 5.0
#: seconds without an end or a step after which a run counts as hanging
PATIENCE = 300.0


class Launch(Protocol):
    """A run that is started again when one of its processes is killed."""

    def start(self) -> None:
        """Start it, or do nothing while it is alive."""

    def ranks(self) -> list[int]:
        """Process ids of the ranks that live."""

    def collected(self, before: Sequence[int], limit: float) -> bool:
        """After a kill: whether all of ``before`` ended within ``limit`` seconds; no other ones have begun yet."""

    def go_on(self) -> None:
        """After :meth:`collected`: the next start may begin."""

    def finished(self) -> int | None:
        """The exit code of the whole run; None while it is to go on."""

    def stop(self) -> None:
        """End everything that is left."""


@dataclass
class Report:
    """What was found.

    Attributes:
        phases: what was going on at a kill -> how often. unloadable: damaged checkpoints that a reader would be offered.
        waiting: after which kills the other ranks did not end by themselves, and had to be ended by whoever starts them.
        hangs: after which kills nothing went on. equal: the last weights and moments, bit for bit.
        restarts: seconds from each kill to the next step.
    """

    kills: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    unloadable: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    equal: bool = False
    restarts: list[float] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Another run of the same kind."""
        self.kills += other.kills
        for phase, count in other.phases.items():
            self.phases[phase] = self.phases.get(phase, 0) + count
        self.unloadable += other.unloadable
        self.waiting += other.waiting
        self.hangs += other.hangs
        self.equal &= other.equal
        self.restarts += other.restarts

    def summary(self) -> dict[str, Any]:
        """As JSON, with the median of the restarts instead of all of them."""
        spent = [round(f(self.restarts or [0.0]), 2) for f in (min, median, max)]
        return {**asdict(self), "restarts": dict(zip(("min", "median", "max"), spent, strict=True))}


class Events:
    """New lines of ``events.jsonl`` since the last look; half lines and damaged ones are passed over.

    Attributes:
        steps: done in this session, so far as has been seen.
    """

    def __init__(self, out: Path) -> None:
        self.path, self.offset, self.steps = out / "events.jsonl", 0, 0
        self._left: set[Path] = set()

    def new(self) -> list[dict[str, Any]]:
        """Events that were added."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # cut in two by a kill
                continue
        found = [event for event in found if isinstance(event, dict)]
        self.steps += sum(event.get("event") == "step" for event in found)
        return found

    def session(self) -> None:
        """Another session begins: what is there now is of the last one."""
        self.new()
        self.steps, self._left = 0, self._unfinished()

    def _unfinished(self) -> set[Path]:
        return set((self.path.parent / "ckpt").glob(".*"))

    def saving(self) -> bool:
        """Whether a checkpoint of this session is being written."""
        return bool(self._unfinished() - self._left)


def kill_loop(launch: Launch, out: Path, kills: int, *, seed: int, longest: int = 12) -> Report:
    """Run to the end, with ``kills`` kills of a random rank on the way.

    Args:
        longest: steps of a session before its kill, at most; some then wait for a save to begin.
    """
    rng, report, events = random.Random(seed), Report(), Events(out)
    try:
        launch.start()
        while report.kills < kills and launch.finished() is None:
            if not _kill(launch, out, rng, report, events, longest):
                return report
        end = time.monotonic() + PATIENCE
        while launch.finished() is None and time.monotonic() < end:
            end = time.monotonic() + PATIENCE if events.new() else end
            time.sleep(0.02)
        if launch.finished() != 0:
            report.hangs.append(f"at the end: {launch.finished()}")
    finally:
        launch.stop()
    return report


def _kill(launch: Launch, out: Path, rng: random.Random, report: Report, events: Events, longest: int) -> bool:
    """One kill and what follows; False when nothing goes on any more."""
    _pause(launch, rng, events, longest)
    victims = launch.ranks()
    if not victims:
        return launch.finished() is not None or _next_step(launch, report, events, "between two sessions")
    victim = rng.randrange(len(victims))
    phase = "save" if events.saving() else "train" if events.steps else "start"
    killed = time.monotonic()
    try:
        os.kill(victims[victim], signal.SIGKILL)
    except ProcessLookupError:
        return True
    report.kills += 1
    report.phases[phase] = report.phases.get(phase, 0) + 1
    label = f"kill {report.kills}, rank {victim} of {len(victims)}, during {phase}"
    if not launch.collected(victims, GRACE):
        report.waiting.append(label)
    report.unloadable += [f"{label}: {text}" for text in damaged(out)]
    events.session()
    launch.go_on()
    if rng.random() < 0.15:  # the next kill may come before the first step
        return True
    if not _next_step(launch, report, events, label):
        return False
    report.restarts.append(time.monotonic() - killed)
    return True


def _pause(launch: Launch, rng: random.Random, events: Events, longest: int) -> None:
    """Wait for the moment of the next kill."""
    more, for_save = rng.randint(0, longest), rng.random() < 0.5
    if not events.steps:
        time.sleep(rng.uniform(0.0, 1.0))
        events.new()
        return
    end, enough = time.monotonic() + PATIENCE, events.steps + more
    while events.steps < enough and time.monotonic() < end and launch.finished() is None:
        time.sleep(0.001)
        events.new()
    end = time.monotonic() + 0.3
    while for_save and time.monotonic() < end and not events.saving():
        time.sleep(0.0005)
    time.sleep(rng.uniform(0.0, 0.01))


def _next_step(launch: Launch, report: Report, events: Events, label: str) -> bool:
    """Wait until the run does a step, or ends."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        events.new()
        if events.steps or launch.finished() is not None:
            return True
        time.sleep(0.005)
    report.hangs.append(f"{label}: no step within {PATIENCE:.0f} s")
    return False


def damaged(out: Path) -> list[str]:
    """What is wrong with the checkpoints in ``out`` that a reader would choose from."""
    found = []
    for path in list_checkpoints(out / "ckpt"):
        found += [f"{path.name}: {finding}" for finding in verify_checkpoint(path)]
    return found


def fingerprint(out: Path, step: int) -> str:
    """Hash of every tensor of a checkpoint, names included."""
    digest = hashlib.sha256()
    for group, members in sorted(load_checkpoint(out / "ckpt" / f"step-{step:08d}").tensors.items()):
        for name, array in sorted(members.items()):
            digest.update(f"{group}/{name}:".encode() + array.tobytes())
    return digest.hexdigest()
