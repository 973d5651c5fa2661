"""Signals at random moments of ``ernie run``, from the start of the process to its end: the exit code, what is on disk, what
was printed, and that the same command then ends with the losses and weights of a run that nobody disturbed.

``python tests/helpers/signal_cases.py --each 40``: prints what happened as a table and fails at the first wrong thing
(``make test-signals``). Half of the cases are fresh processes, stopped while they start; the others are forks of a process
that has imported paddle (``warm.py``), stopped while they train, save, evaluate and export.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kills import damaged, fingerprint
from small_model import make_home
from warm import Fork, Warm, ask

#: what is sent; PIPE also closes the other ends of stdout and stderr
KINDS = {
    "INT": (signal.SIGINT,),
    "TERM": (signal.SIGTERM,),
    "HUP": (signal.SIGHUP,),
    "PIPE": (signal.SIGPIPE,),
    "INT INT": (signal.SIGINT, signal.SIGINT),
}
STEPS = 20
#: seconds after which a run counts as hanging; on a machine that does much else a start may take minutes
PATIENCE = 900.0


class Running:
    """``ernie run`` in a directory of its own, in a fresh process or in a fork of a warm one."""

    def __init__(self, words: Sequence[str], place: Path, warm: Warm | None) -> None:
        self.place = place
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ERNIE_", "PADDLE_"))}
        environ = {**kept, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        self._pipes, streams = [], []
        for _ in range(2):  # stdout, stderr
            read, write = os.pipe()
            self._pipes.append(open(read, "rb", buffering=0))  # noqa: SIM115 - closed by the reader or by the case
            streams.append(write)
        self.printed = {0: b"", 1: b""}
        for read in self._pipes:
            os.set_blocking(read.fileno(), False)
        with open(os.devnull, "rb") as nothing:
            if warm is None:
                command = [sys.executable, "-m", "erniecore", *words]
                self._process: subprocess.Popen[bytes] | Fork = subprocess.Popen(
                    command, cwd=place, env=environ, stdin=nothing, stdout=streams[0], stderr=streams[1]
                )
            else:
                numbers = (nothing.fileno(), streams[0], streams[1])
                self._process = Fork(ask(warm.address(), list(words), str(place), environ, numbers))
        self.pid = self._process.pid
        for number in streams:
            os.close(number)
        self.code: int | None = None

    def look(self) -> int | None:
        """Read what was printed; the exit code, once there is one."""
        for number, pipe in enumerate(self._pipes):
            while not pipe.closed and (text := pipe.read(1 << 16)):
                self.printed[number] += text
        if self.code is None:
            self.code = self._process.poll()
        return self.code

    def wait(self) -> int:
        """Its exit code."""
        end = time.monotonic() + PATIENCE
        while self.look() is None:
            assert time.monotonic() < end, f"hangs, see {self.place}"
            time.sleep(0.005)
        self.look()
        self.leave()
        assert self.code is not None
        return self.code

    def leave(self) -> None:
        """Nobody reads what it prints any more."""
        for pipe in self._pipes:
            pipe.close()

    def send(self, number: int) -> None:
        """A signal, unless it has ended."""
        if self.look() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def listens(self) -> bool:
        """Whether our handlers are in place: from then on the exit code is ours."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("SigCgt"):
                    return bool(int(line.split()[1], 16) >> (signal.SIGHUP - 1) & 1)
        return self.look() is not None


@dataclass
class Storm:
    """The same command again and again.

    Attributes:
        words: of the command line, without ``--out``. home: where the cases' directories are made.
        table: (kind, phase, exit code) -> how often.
    """

    words: Sequence[str]
    home: Path
    warm: Warm
    rng: random.Random
    table: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    starts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hear()
        whole = self._place("whole")
        began = time.monotonic()
        running = Running(self.words, whole, None)
        while not steps_of(run_of(whole)) and running.look() is None:
            time.sleep(0.005)
        self.starts.append(time.monotonic() - began)
        assert running.wait() == 0, running.printed
        self.straight = outcome_of(run_of(whole))

    def _hear(self) -> None:
        """Under ``nohup`` and behind ``&`` a process ignores signals, and so would its children: nothing would be tried."""
        for number in {number for numbers in KINDS.values() for number in numbers}:
            if (
                signal.getsignal(number) is signal.SIG_IGN and number != signal.SIGPIPE
            ):  # Python ignores that one itself
                signal.signal(number, signal.SIG_DFL)

    def _place(self, name: str) -> Path:
        place = self.home / name
        place.mkdir()
        return place

    def case(self, kind: str, number: int, *, starting: bool) -> None:
        """One run that gets the signals, and its continuation."""
        place = self._place(f"{kind.replace(' ', '-')}-{number}")
        running = Running(self.words, place, None if starting else self.warm)
        self._await_moment(running, starting)
        ours = running.listens()
        if kind == "PIPE":
            running.leave()
        for each, signum in enumerate(KINDS[kind]):
            time.sleep(self.rng.uniform(0.0, 0.3) if each else 0.0)
            running.send(signum)
        code = running.wait()
        phase = phase_of(place, ours)
        self.table[kind, phase, code] += 1
        self._check(kind, phase, code, running)
        self._continue(place)
        shutil.rmtree(place)

    def _await_moment(self, running: Running, starting: bool) -> None:
        if starting:
            end = time.monotonic() + self.rng.uniform(0.0, 1.1 * statistics.median(self.starts))
            while time.monotonic() < end and running.look() is None:
                time.sleep(0.002)
            return
        wanted = self.rng.randint(0, STEPS)
        while len(steps_of(run_of(running.place))) < wanted and running.look() is None:
            time.sleep(0.001)
        time.sleep(self.rng.uniform(0.0, 0.4 if wanted in (0, STEPS) else 0.02))

    def _check(self, kind: str, phase: str, code: int, running: Running) -> None:
        label = f"{kind}, {phase}, exit {code}, {running.place}\n{running.printed[1].decode()}"
        right = {"PIPE": {0}, "INT INT": {130, 75, 0}}.get(kind, {75, 0})
        if phase == "boot":  # Python itself was starting: as any other program
            right = {*right, *(-number for number in KINDS[kind])}
            if b"init_import_site" in running.printed[1]:  # what CPython makes of an interrupt while it imports site
                right.add(1)
        assert code in right, label
        text = (running.printed[0] + running.printed[1]).decode(errors="replace")
        for never in ("FatalError", "error ERN-", "Segmentation"):
            assert never not in text, label
        if phase != "boot":
            assert "Traceback" not in text, label
        out = run_of(running.place)
        assert not damaged(out), label
        if code == 0:
            assert ended(out) == "finished", label
        if code == 75 and (done := steps_of(out)):
            assert [p.name for p in sorted((out / "ckpt").glob("step-*"))][-1] == f"step-{max(done):08d}", label
        if code in (75, 130) and phase != "boot":
            assert "interrupted" in text or "stopped by SIG" in text, label
            assert "the same command" in text or code == 130, label

    def _continue(self, place: Path) -> None:
        if ended(run_of(place)) != "finished":
            running = Running(self.words, place, self.warm)
            assert running.wait() == 0, running.printed
        out = run_of(place)
        assert outcome_of(out) == self.straight, f"other losses or weights than without the signal: {out}"


def run_of(place: Path) -> Path:
    """The one directory in ``place``, if it is there yet; also one that did not become a run, which the next command takes."""
    found = sorted((place / "runs").glob("*"))
    assert len(found) < 2, f"the same command began a second run: {found}"
    return found[0] if found else place / "none"


def events(out: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of events.jsonl."""
    with suppress(FileNotFoundError):
        for line in (out / "events.jsonl").read_bytes().splitlines():
            with suppress(ValueError):
                yield json.loads(line)


def steps_of(out: Path) -> dict[int, tuple[float, float]]:
    """Step -> loss and gradient norm; the last line of a step counts."""
    return {e["step"]: (e["loss"], e["grad_norm"]) for e in events(out) if e["event"] == "step"}


def ended(out: Path) -> str:
    """The status with which the run ended last."""
    return next((e["status"] for e in reversed(list(events(out))) if e["event"] == "run_end"), "")


def outcome_of(out: Path) -> tuple[Any, ...]:
    """What must be equal to the last bit."""
    return steps_of(out), fingerprint(out, STEPS), (out / "model" / "model.safetensors").read_bytes()


def phase_of(place: Path, ours: bool) -> str:
    """What was going on when the signal came, as far as the events tell."""
    out = run_of(place)
    done = len(steps_of(out))
    if not ours:
        return "boot"
    return "start" if not done else "train" if done < STEPS else "end"


def words_of(model: Path, data: Path) -> list[str]:
    """A tiny run that saves now and then."""
    settings = {
        "model.path": model,
        "method.name": "sft",
        "data.train": data,
        "data.max_seq_len": 64,
        "train.batch_size": 2,
        "train.max_steps": STEPS,
        "checkpoint.every": 6,
        "log.every": 1,
        "log.report": "false",
    }
    return ["run", *(f"{key}={value}" for key, value in settings.items())]


def storm(made: Storm, each: int) -> Counter[tuple[str, str, int]]:
    """``each`` cases of every kind in turn, the first half of them while the process starts; the table."""
    for number in range(each):
        for kind in KINDS:
            made.case(kind, number, starting=number < (each + 1) // 2)
            print(".", end="", file=sys.stderr, flush=True)
    return made.table


def show(table: Counter[tuple[str, str, int]]) -> None:
    """How often each signal ended a run with which exit code."""
    print(f"\n{sum(table.values())} cases\nkind     phase  exit  cases")
    for (kind, phase, code), count in sorted(table.items()):
        print(f"{kind:<8} {phase:<6} {code:>4}  {count:>5}")


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=40, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    warm = Warm()
    with tempfile.TemporaryDirectory() as name:
        home = make_home(Path(name))
        made = Storm(words_of(home / "base", home / "train.jsonl"), home, warm, random.Random(options.seed))
        try:
            storm(made, options.each)
            for kind in KINDS:
                assert kind == "PIPE" or any(found == kind and code for found, _, code in made.table), (
                    f"{kind} did nothing"
                )
        finally:
            show(made.table)  # of a storm that was stopped, too
            warm.close()


if __name__ == "__main__":
    main()
