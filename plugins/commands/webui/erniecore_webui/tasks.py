"""Commands that outlive the server, and the queue of those that wait. The directory ``.web/tasks`` is the only truth.

A task is a directory: ``task.json`` says what to run, on which device, behind which tasks; ``started.json`` and ``exit.json``
are written by the process itself (``detached.py``), so that a server that was killed finds out how everything ended.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from erniecore.api import UsageError
from erniecore.api.command import store_text
from erniecore_webui.actions import Actions, shown
from erniecore_webui.detached import start_ticks
from erniecore_webui.state_files import locked, stored_object

State = Literal["waiting", "starting", "running", "done", "failed", "lost", "removed"]
#: of tasks that have not ended
AHEAD: tuple[State, ...] = ("waiting", "starting", "running")
#: Seconds between looks at the queue, and for a process that was started to say so.
_PAUSE, _STARTING = 0.5, 30.0
#: in the directory of a task that was taken out of the queue
_REMOVED = "removed"
#: what a command that was stopped and can be resumed exits with
STOPPED = 75


@dataclass(frozen=True, slots=True)
class Task:
    """A command with its place in the queue and how it ended.

    Attributes:
        device: tasks of one device wait for its places; ``""``: it uses none.
        at_once: it does not wait for a place, but has one.
        after: names of tasks that must have ended well before.
        run: the run directory that it writes, relative to the root; ``""``: none.
        code: exit code; None: not known.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    device: str
    at_once: bool
    after: tuple[str, ...]
    order: float
    created: float
    run: str
    state: State
    code: int | None
    started: float | None
    ended: float | None
    directory: Path

    @property
    def command(self) -> str:
        """As one would type it."""
        return shown(self.argv)

    def output(self, most: int = 64 << 10) -> str:
        """The end of what it printed."""
        with suppress(OSError), (self.directory / "output.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode(errors="replace")
        return ""


class Tasks:
    """The tasks of a site. Methods may be called from any thread, and by servers beside this one."""

    def __init__(
        self, state: Path, home: Path, actions: Actions, *, places: int = 1, of_device: Mapping[str, int] | None = None
    ) -> None:
        self._directory, self._home, self._actions = state / "tasks", home, actions
        self.places, self.of_device = places, dict(of_device or {})
        self._directory.mkdir(exist_ok=True)
        self._ended: dict[str, Task] = {}

    def add(
        self, argv: Sequence[str], title: str, *, device: str = "", after: Sequence[str] = (), run: str = "",
        at_once: bool = False,
    ) -> Task:  # fmt: skip
        """Queue a command; one that waits for nothing starts at once.

        Raises:
            UsageError: it is to wait for a task that is not there.
        """
        for name in after:
            self.get(name)
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(3)}"
        content = {"title": title, "argv": list(argv), "cwd": str(self._home), "device": device, "at_once": at_once,
                   "after": list(after), "order": now, "created": now, "run": run}  # fmt: skip
        # the directory appears with its content: a look at the queue meanwhile sees nothing of it
        part = self._directory / f".{name}"
        part.mkdir()
        store_text(part / "task.json", json.dumps(content), "queueing a task")
        part.rename(self._directory / name)
        self._actions.audit(argv, task=name)
        self.advance()
        return self.get(name)

    def get(self, name: str) -> Task:
        """The task with this name. Raises ``UsageError`` without one."""
        directory = self._directory / name
        if not name or "/" in name or name.startswith(".") or not (directory / "task.json").is_file():
            raise UsageError("there is no such task", where=name)
        return self._read(directory)

    def all(self) -> list[Task]:
        """Every task: those that go on, then those that wait in their order, then the others, the newest first."""
        found = [self._read(path) for path in self._directory.iterdir() if not path.name.startswith(".")]
        ranks: dict[str, int] = {"running": 0, "starting": 0, "waiting": 1}
        return sorted(found, key=lambda t: (ranks.get(t.state, 2), t.order if t.state == "waiting" else -t.created))

    def move(self, name: str, places: int) -> None:
        """A waiting task so many places on (negative: to the front)."""
        with self._lock():
            waiting = [task for task in self.all() if task.state == "waiting"]
            names = [task.name for task in waiting]
            if name not in names:
                return
            old = names.index(name)
            waiting.insert(max(0, min(len(waiting) - 1, old + places)), waiting.pop(old))
            for order, task in zip(sorted(task.order for task in waiting), waiting, strict=True):
                content = stored_object(task.directory / "task.json")
                store_text(task.directory / "task.json", json.dumps({**content, "order": order}), "moving a task")

    def release(self, name: str) -> None:
        """Let a task that waits wait for no other one."""
        with self._lock():
            task = self.get(name)
            if task.state == "waiting" and task.after:
                content = stored_object(task.directory / "task.json")
                store_text(task.directory / "task.json", json.dumps({**content, "after": []}), "releasing a task")

    def restore(self, name: str) -> None:
        """A task that was removed waits again. Raises ``UsageError`` where another one has taken the name of its run."""
        with self._lock():
            task = self.get(name)
            if task.run and any(other.run == task.run for other in self.all() if other.state in AHEAD):
                raise UsageError("another task has taken this name", where=task.run, fix="begin it anew")
            (task.directory / _REMOVED).unlink(missing_ok=True)

    def places_of(self, device: str) -> int:
        """How many tasks of a device may go on at a time."""
        return self.of_device.get(device, self.places)

    def cancel(self, name: str) -> None:
        """Remove a task that waits, until it is restored, or send SIGTERM to one that goes on."""
        with self._lock():
            task = self.get(name)
            if task.state == "waiting":
                (task.directory / _REMOVED).touch()
                self._actions.audit(["touch", str(task.directory / _REMOVED)])
            elif task.state == "running":
                child = int(stored_object(task.directory / "started.json").get("child", 0))
                if child > 0 and _parent(child) == int(stored_object(task.directory / "started.json")["pid"]):
                    os.kill(child, signal.SIGTERM)
                    self._actions.audit(["kill", "-TERM", str(child)], task=name)

    def work(self, stopping: threading.Event) -> None:
        """Start what waits, until asked to stop."""
        while not stopping.wait(_PAUSE):
            with suppress(OSError, ValueError):
                self.advance()

    def advance(self) -> None:
        """Start the tasks whose turn it is."""
        with self._lock():
            tasks = self.all()
            states = {task.name: task.state for task in tasks}
            busy: dict[str, int] = {}
            for task in tasks:
                if task.state in ("running", "starting"):
                    busy[task.device] = busy.get(task.device, 0) + 1
            for task in tasks:
                if task.state != "waiting" or any(states.get(name) != "done" for name in task.after):
                    continue
                if task.device and not task.at_once and busy.get(task.device, 0) >= self.places_of(task.device):
                    continue
                busy[task.device] = busy.get(task.device, 0) + 1
                self._start(task)

    def _start(self, task: Task) -> None:
        (task.directory / "starting").touch()
        process = subprocess.Popen(
            [sys.executable, "-m", "erniecore_webui.detached", str(task.directory)], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=True,
        )  # fmt: skip
        # a child that nobody waits for stays as a zombie
        threading.Thread(target=process.wait, name=f"task-{task.name}", daemon=True).start()

    def _lock(self) -> AbstractContextManager[None]:
        return locked(self._directory.parent / "queue.lock")

    def _read(self, directory: Path) -> Task:
        if (known := self._ended.get(directory.name)) is not None:
            return known
        content, started = stored_object(directory / "task.json"), stored_object(directory / "started.json")
        ended = stored_object(directory / "exit.json")
        code = ended.get("code")
        task = Task(
            name=directory.name, title=str(content.get("title", "")), argv=tuple(map(str, content.get("argv", ()))),
            device=str(content.get("device", "")), at_once=bool(content.get("at_once")),
            after=tuple(map(str, content.get("after", ()))),
            order=float(content.get("order", 0)), created=float(content.get("created", 0)),
            run=str(content.get("run", "")), state=_state(directory, started, code),
            code=code if isinstance(code, int) else None, started=started.get("time"), ended=ended.get("time"),
            directory=directory,
        )  # fmt: skip
        if task.code is not None:
            self._ended[task.name] = task
        return task


def _state(directory: Path, started: dict[str, Any], code: object) -> State:
    if (directory / _REMOVED).exists():
        return "removed"
    if isinstance(code, int):
        return "done" if code == 0 else "failed"
    if started:
        return "running" if start_ticks(int(started["pid"])) == started["ticks"] else _last_look(directory)
    try:
        since = time.time() - (directory / "starting").stat().st_mtime
    except FileNotFoundError:
        return "waiting"
    # a server that was killed between its note and the start
    return "starting" if since < _STARTING else "waiting"


def _last_look(directory: Path) -> State:
    """It may have ended between two looks."""
    code = stored_object(directory / "exit.json").get("code")
    return "lost" if code is None else "done" if code == 0 else "failed"


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0
