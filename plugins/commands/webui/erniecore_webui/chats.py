"""Models that answer in the page: each an ``ernie serve`` of its own on loopback, started as a task.

So they outlive the server of the page: the tasks say which ones run, and what they printed says where. They ask for a key that
only this directory has, since loopback is open to every user of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from erniecore_webui.actions import ERNIE
from erniecore_webui.state_files import kept_secret, locked
from erniecore_webui.tasks import Task, Tasks

#: what the servers call their model
MODEL = "model"
_PREFIX = (*ERNIE, "serve", "--backend", "openai", "--model")
_PORT = re.compile(rb" at http://127\.0\.0\.1:(\d+)/v1;")
_HEAD = 64 << 10
#: of a request: a conversation has images
_BODY_BYTES = 128 << 20
#: in the directory of a task that was asked to end
_STOPPING = "stopping"
#: states of a task whose model will not answer
_GONE = ("failed", "lost", "removed")
ChatState = Literal["none", "waiting", "starting", "ready", "stopping", "failed"]


@dataclass(frozen=True, slots=True)
class Chat:
    """A model that answers, or is about to. ``port``: 0 until it listens."""

    place: str
    task: Task
    state: ChatState
    port: int


class Chats:
    """The models that answer, by their place."""

    def __init__(self, state: Path, tasks: Tasks) -> None:
        self._key_file, self._tasks = state / "serve.key", tasks

    @property
    def key(self) -> str:
        """What the servers ask for."""
        return kept_secret(self._key_file)

    def all(self) -> list[Chat]:
        """One for each place: the one that goes on, else the newest that failed; those that were stopped are left out."""
        found: dict[str, Chat] = {}
        for task in self._tasks.all():
            if task.argv[: len(_PREFIX)] == _PREFIX and task.state not in ("done", "removed"):
                place = task.argv[len(_PREFIX)]
                found.setdefault(place, self._chat(place, task))
        return list(found.values())

    def of(self, place: str) -> Chat | None:
        """The one at a place."""
        return next((chat for chat in self.all() if chat.place == place), None)

    def start(self, place: str, after: Sequence[str] = ()) -> Chat:
        """Start to answer, after some tasks; nothing happens where it goes on already."""
        with locked(self._key_file.with_name("chats.lock")):  # else two tabs start one each
            now = self.of(place)
            if now is not None and now.state != "failed":
                return now
            assert self.key  # the file is there
            served = f"name={MODEL}", f"key_file={self._key_file}"
            argv = [*_PREFIX, place, "port=0", *served, "drain_seconds=1", "rows=4", f"max_body_bytes={_BODY_BYTES}"]
            return self._chat(place, self._tasks.add(argv, f"chat {place}", after=after))

    def stop(self, place: str) -> None:
        """Send its process the signal that ends it; nothing happens where it does not go on."""
        now = self.of(place)
        if now is not None:
            if now.task.state == "running":
                (now.task.directory / _STOPPING).touch()
            self._tasks.cancel(now.task.name)

    def _chat(self, place: str, task: Task) -> Chat:
        port = _port(task) if task.state == "running" else 0
        if task.state == "running" and (task.directory / _STOPPING).exists():
            return Chat(place, task, "stopping", 0)
        if task.state == "running":
            return Chat(place, task, "ready" if port else "starting", port)
        if task.state == "waiting" and any(self._tasks.get(name).state in _GONE for name in task.after):
            return Chat(place, task, "failed", 0)
        state: ChatState = "failed" if task.state in _GONE else "waiting"
        return Chat(place, task, state, 0)


def _port(task: Task) -> int:
    try:
        with (task.directory / "output.log").open("rb") as file:
            found = _PORT.search(file.read(_HEAD))
    except OSError:
        return 0
    return int(found[1]) if found else 0
