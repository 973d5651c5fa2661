"""SIGKILL in every phase of ``ernie run``, on one process and on two, of a rank, of the launcher, of all of them, of the
workers that tokenize; then the same command again, until it ends. Each chain of kills works in a directory of its own and
must end with the losses and tensors of a run that nobody disturbed, with every checkpoint loadable on the way, and with no
process and no shared memory left.

What runs is ``ernie`` in forks of a process that has imported paddle (``forked_ranks.py``), and fresh interpreters for the phase
of imports and for one start in sixteen of the others. When to kill is told by ``phases/sitecustomize.py``, plus a random time.
Many of them: ``kill_storm.py``.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kills import damaged, fingerprint
from processes import lives
from signal_cases import steps_of
from warm import Fork, Warm, ask

HERE = Path(__file__).parent
LAYOUTS = {
    "one process": ("base", ()),
    "data=2": ("base", ("parallel.data=2",)),
    "tensor=2": ("base", ("parallel.tensor=2",)),
    "pipeline=2": ("base", ("parallel.pipeline=2", "train.accumulation=2")),
    "expert=2": ("moe", ("parallel.data=2", "parallel.expert=2")),
}
#: in the order in which a run comes to them
PHASES = (
    "import",
    "preparation",
    "tokenizing",
    "load",
    "first step",
    "steps",
    "checkpoint",
    "background save",
    "evaluation",
    "relaunch",
    "export",
)
#: ``stopped``: the launcher, after a rank was stopped (SIGSTOP)
TARGETS = ("rank", "launcher", "all", "workers", "stopped")
STEPS = 6
#: seconds after which a run counts as hanging, and in which what was left alone has to be gone
PATIENCE, GONE = 300.0, 60.0
#: share of starts in fresh interpreters, beside those that are killed while they import
FRESH = 1 / 16


class Kill(NamedTuple):
    """Whom to kill in which phase."""

    phase: str
    target: str


class Wrong(Exception):
    """Something that must not be."""


class Session:
    """One start of the command in ``place``."""

    def __init__(self, words: Sequence[str], place: Path, warm: Warm | None) -> None:
        self.place, self._marks = place, place / "phases"
        self._offset = self._marks.stat().st_size if self._marks.exists() else 0
        self._before = set(inhabitants(place))  # ranks whose launcher was killed, which save and end
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ERNIE_", "PADDLE_"))}
        environ = {**kept, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "RUN_PHASES": str(self._marks)}
        with (place / "console.txt").open("ab") as console, open(os.devnull, "rb") as nothing:
            if warm is None:
                environ["PYTHONPATH"] = str(HERE / "phases")
                command = [sys.executable, "-m", "erniecore", "run", *words]
                self._process: subprocess.Popen[bytes] | Fork = subprocess.Popen(
                    command, cwd=place, env=environ, stdin=nothing, stdout=console, stderr=console
                )
            else:
                streams = (nothing.fileno(), console.fileno(), console.fileno())
                code = (
                    f"import sys; sys.path.append({str(HERE)!r}); import forked_ranks; forked_ranks.ernie(sys.argv[1:])"
                )
                self._process = Fork(ask(warm.address(), ["run", *words], str(place), environ, streams, code))
        self.pid = self._process.pid

    def end(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.poll()

    def marks(self) -> list[tuple[int, str, str]]:
        """(process, sign, phase) since this start."""
        try:
            with self._marks.open("rb") as file:
                file.seek(self._offset)
                lines = file.read().decode().splitlines()
        except FileNotFoundError:
            return []
        found = [line.split(" ", 2) for line in lines]
        return [(int(pid), sign, phase) for pid, sign, phase in found if int(pid) not in self._before]

    def wait(self) -> int:
        """Its exit code; raises ``Wrong`` where it hangs."""
        end = time.monotonic() + PATIENCE
        while (code := self.end()) is None:
            if time.monotonic() > end:
                raise Wrong("hangs")
            time.sleep(0.005)
        return code

    def ranks(self) -> list[int]:
        """Processes of the ranks: child processes that the launcher has started, or the one process."""
        return children_of(self.pid) or [self.pid]

    def workers(self) -> list[int]:
        """Processes that tokenize."""
        return [pid for pid in inhabitants(self.place) if b"multiprocessing.spawn" in command_of(pid)]


def children_of(pid: int) -> list[int]:
    """Of its main thread, but for workers."""
    found: list[int] = []
    with suppress(OSError):
        found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [one for one in found if lives(one) and b"multiprocessing" not in command_of(one)]


def command_of(pid: int) -> bytes:
    """The command line of a process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def inhabitants(place: Path) -> list[int]:
    """Processes that work in a directory; whatever a run starts does, whoever its parent has become."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                if Path(os.readlink(path / "cwd")) == place and lives(path.name):
                    found.append(int(path.name))
    return found


def await_gone(place: Path, seconds: float) -> None:
    """Wait until nothing works there any more; raises ``Wrong`` with what still does."""
    end = time.monotonic() + seconds
    while left := inhabitants(place):
        if time.monotonic() > end:
            raise Wrong(f"{len(left)} processes left: {[command_of(pid).decode()[:80] for pid in left]}")
        time.sleep(0.01)


def outcome_of(out: Path) -> tuple[Any, ...]:
    """What must be equal to the last bit: losses and gradient norms, weights and moments, the model directory."""
    return steps_of(out), fingerprint(out, STEPS), (out / "model" / "model.safetensors").read_bytes()


@dataclass
class Storm:
    """All chains.

    Attributes:
        wanted: kills. before: the summary of an earlier run that this one goes on with.
        kills: (phase, target, layout) -> how many. failures: what was wrong in which chain. fresh: starts in fresh
            interpreters. straight: layout -> what a run that nobody disturbs ends with.
    """

    home: Path
    warm: Warm
    seed: int
    wanted: int = 0
    before: dict[str, Any] = field(default_factory=dict)
    kills: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    fresh: int = 0
    straight: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def words(self, layout: str, *, background: bool = True, workers: int = 0) -> list[str]:
        """Of the command line; directories are below the one in which it runs."""
        model, degrees = LAYOUTS[layout]
        settings = {
            "model.path": self.home / model,
            "method.name": "sft",
            "data.train": self.home / "train.jsonl",
            "data.eval": self.home / "eval.jsonl",
            "data.max_seq_len": 64,
            "data.workers": workers,
            "data.cache": "cache",
            "train.batch_size": 1,
            "train.max_steps": STEPS,
            "eval.every": 2,
            "eval.max_steps": 1,
            "checkpoint.every": 2,
            "checkpoint.background": str(background).lower(),
            "log.every": 1,
            "log.report": "false",
            "run.out": "out",
        }
        several = ["--parallel", "hybrid", *degrees] if degrees else []
        return [*several, *(f"{key}={value}" for key, value in settings.items())]

    def undisturbed(self, layout: str) -> Any:
        """What a run that nobody disturbs ends with."""
        if layout not in self.straight:
            place = self.home / f"straight {layout}"
            place.mkdir()
            session = Session(self.words(layout), place, self.warm)
            assert session.wait() == 0, (place / "console.txt").read_text()[-3000:]
            await_gone(place, GONE)
            self.straight[layout] = outcome_of(place / "out")
        return self.straight[layout]

    def chain(self, number: int, layout: str, kills: Sequence[Kill], label: str) -> list[Kill]:
        """A run with these kills on its way to the end; those that did not happen, because it ended before."""
        rng, place = random.Random(f"{self.seed}/{number}"), self.home / f"chain-{number}"
        place.mkdir()
        phases = [kill.phase for kill in kills]
        background = "background save" in phases or ("checkpoint" not in phases and rng.random() < 0.5)
        words = self.words(layout, background=background, workers=2 * ("tokenizing" in phases))
        chain = Chain(self, place, layout, rng, words)
        left = list(kills)
        try:
            while left and not chain.finished:
                if chain.kill(left[0]):
                    left.pop(0)
                else:
                    break
            chain.complete()
        except Wrong as error:
            last = chain.done[-1] if chain.done else Kill("", "")
            facts = {"phase": last.phase, "target": last.target, "layout": layout, "chain": number}
            done = [f"{kill.phase}/{kill.target}" for kill in chain.done]
            with self._lock:
                self.failures.append({**facts, "kills": done, "what": str(error)})
            for pid in inhabitants(place):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.copytree(place, Path(tempfile.gettempdir()) / f"kills-{label}-{number}", dirs_exist_ok=True)
        with self._lock:
            self.kills.update((kill.phase, kill.target, layout) for kill in chain.done)
            self.fresh += chain.fresh
        shutil.rmtree(place, ignore_errors=True)
        return left


@dataclass
class Chain:
    """One directory: the same command again and again."""

    storm: Storm
    place: Path
    layout: str
    rng: random.Random
    words: list[str]
    done: list[Kill] = field(default_factory=list)
    finished: bool = False
    fresh: int = 0
    #: seconds to wait after the phase has begun, at most
    length: float = 0.15

    def start(self, fresh: bool) -> Session:
        """The command, in fresh interpreters or in forks."""
        self.fresh += fresh
        return Session(self.words, self.place, None if fresh else self.storm.warm)

    def kill(self, kill: Kill) -> bool:
        """Start, wait for the phase, kill; False where the run ended before."""
        if kill.phase == "relaunch" and not self._first_of_two():
            return False
        session = self.start(fresh=kill.phase == "import" or self.rng.random() < FRESH)
        if not self._await_phase(session, kill):
            return False
        victims = self._victims(session, kill.target)
        phase = kill.phase if kill.phase == "relaunch" else self._phase_of(session, victims, kill.phase)
        hit = 0
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                hit += 1
        if hit:
            self.done.append(Kill(phase, kill.target))
        self._settle(session, kill)
        return bool(hit)

    def _first_of_two(self) -> bool:
        """A kill amid the steps, of what the next kill is not waited for."""
        session = self.start(fresh=False)
        first = Kill("steps", self.rng.choice(("launcher", "all")))
        if not self._await_phase(session, first):
            return False
        for pid in self._victims(session, first.target):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.done.append(first)
        session.wait()
        return True

    def _await_phase(self, session: Session, kill: Kill) -> bool:
        """Wait for its beginning, as often as chance wants, and then a part of it."""
        alone = self.layout == "one process"
        wanted = self.rng.choice((1, 1, 2, 5)) if kill.phase in ("steps", "evaluation") else 1
        end = time.monotonic() + PATIENCE
        length = {"import": 2.5, "relaunch": 2.5, "export": 0.05, "steps": 0.03}.get(kill.phase, self.length)
        while session.end() is None:
            marks = [pid for pid, sign, phase in session.marks() if sign == "+" and phase == kill.phase]
            if kill.phase == "relaunch" and (kill.target != "rank" or alone or children_of(session.pid)):
                break
            if kill.target == "rank" and not alone:
                marks = [pid for pid in marks if pid != session.pid]
            if len(marks) >= wanted and (kill.target != "workers" or session.workers()):
                break
            if time.monotonic() > end:
                raise Wrong(f"hangs: does not come to {kill.phase}")
            time.sleep(0.003)
        time.sleep(self.rng.uniform(0.0, length))
        return self._alive(session)

    def _alive(self, session: Session) -> bool:
        """Whether it still runs; an end that is no success is an error here."""
        code = session.end()
        if code not in (None, 0):
            raise Wrong(f"ended with {code}: {self._said()}")
        self.finished |= code == 0
        return code is None

    def _said(self) -> str:
        return " | ".join((self.place / "console.txt").read_text(errors="replace").splitlines()[-4:])[-600:]

    def _victims(self, session: Session, target: str) -> list[int]:
        if target == "all":
            found = [session.pid, *children_of(session.pid), *session.workers()]
            self.rng.shuffle(found)
            return found
        ranks = children_of(session.pid)
        if target == "stopped":
            for pid in ranks[:1]:
                os.kill(pid, signal.SIGSTOP)
            return [session.pid]
        rank = [self.rng.choice(ranks)] if ranks else []
        return {"launcher": [session.pid], "rank": rank}[target] if target != "workers" else session.workers()[:1]

    def _phase_of(self, session: Session, victims: Iterable[int], wanted: str) -> str:
        """What goes on at the moment: the phase that was waited for, if it is not over, or the latest one."""
        begun: dict[str, int] = {}
        latest, chosen = wanted, {*victims, *session.ranks()}
        for pid, sign, phase in session.marks():
            if pid in chosen or phase == wanted:
                begun[phase] = begun.get(phase, 0) + (1 if sign == "+" else -1)
                latest = phase if sign == "+" else latest
        return wanted if begun.get(wanted, 0) > 0 or latest not in PHASES else latest

    def _settle(self, session: Session, kill: Kill) -> None:
        """What follows a kill without anybody's doing."""
        code = session.wait()
        self.finished |= code == 0
        if kill.target in ("rank", "workers") and self.layout != "one process" and code not in (0, 3):
            raise Wrong(f"after a kill of {kill.target} the run ended with {code}: {self._said()}")
        alone = kill.target in ("launcher", "stopped")
        if not alone or self.rng.random() < 0.5:  # else the next start comes at once
            await_gone(self.place, GONE if alone else 15.0)
        if found := damaged(self.place / "out"):
            raise Wrong(f"damaged after {kill}: {found}")

    def complete(self) -> None:
        """The same command, to its end."""
        if not self.finished and (code := self.start(fresh=False).wait()) != 0:
            raise Wrong(f"the same command ended with {code}: {self._said()}")
        await_gone(self.place, 15.0)
        if found := damaged(self.place / "out"):
            raise Wrong(f"damaged at the end: {found}")
        if outcome_of(self.place / "out") != self.storm.straight[self.layout]:
            raise Wrong("other losses or tensors than without kills")
