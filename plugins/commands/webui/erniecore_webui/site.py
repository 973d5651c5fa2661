"""What all pages share: the directory of the runs, the directory ``.web`` in it, the token and who may ask."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from erniecore.api import EnvironmentFault
from erniecore_webui.actions import Actions
from erniecore_webui.curves import CurveStore
from erniecore_webui.index import Index
from erniecore_webui.tasks import Tasks
from erniecore_webui.trash import Trash

#: below the runs: token, audit log, tasks, trash, tags
STATE_NAME = ".web"


class Site:
    """One server's view of a directory of runs.

    Attributes:
        root: where the runs are; no path outside of it is read or written.
        home: the directory in which commands are started.
        state: ``root/.web``.
        token: what a browser must know. It is kept, so that open pages survive a restart of the server.
        hosts: values of the Host header that are answered.
        stopping: set when the server is asked to stop.
    """

    def __init__(self, root: Path, *, password: str = "", places: int = 1) -> None:
        self.home = Path.cwd()
        self.root = root.absolute()
        self.state = self.root / STATE_NAME
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            self.token = password or _kept_token(self.state / "token")
        except OSError as error:
            raise EnvironmentFault(
                "the directory of the runs cannot be written", where=str(error.filename or root),
                found=error.strerror or "", fix="name another one: ernie web DIRECTORY",
            ) from error  # fmt: skip
        self.root = self.root.resolve()
        self.state = self.root / STATE_NAME
        self.hosts: frozenset[str] = frozenset()
        self.stopping = threading.Event()
        self.index = Index(self.root, self.state)
        self.curves = CurveStore()
        self.actions = Actions(self.state, self.home)
        self.tasks = Tasks(self.state, self.home, self.actions, places=places)
        self.trash = Trash(self.root, self.state, self.actions)

    def admit(self, hosts: Sequence[str]) -> None:
        """Answer requests for these values of the Host header."""
        self.hosts = frozenset(host.lower() for host in hosts)

    @contextmanager
    def queue_open(self) -> Iterator[None]:
        """Start what waits in the queue, as long as the block runs."""
        thread = threading.Thread(target=self.tasks.work, args=(self.stopping,), name="erniecore-queue", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            thread.join(5)


def _kept_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
        if len(token) >= 32:
            return token
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    token = secrets.token_urlsafe(32)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(token, encoding="ascii")
    return token
