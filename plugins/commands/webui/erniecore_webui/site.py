"""What all pages share: the directory of the runs, the directory ``.web`` in it, the token and who may ask."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path

from erniecore_runs.trash import Trash

from erniecore.api import EnvironmentFault, UsageError
from erniecore_webui.actions import Actions
from erniecore_webui.chats import Chats
from erniecore_webui.curve_store import CurveStore
from erniecore_webui.data_files import PACKED, ROWS, DataFiles, is_data
from erniecore_webui.index import Index
from erniecore_webui.model_dirs import ModelDirs
from erniecore_webui.settings_files import SettingsFiles
from erniecore_webui.state_files import kept_secret, locked
from erniecore_webui.tasks import AHEAD, Tasks

#: below the runs: token, audit log, tasks, trash, tags
STATENAME = ".web"
#: of files and directories that are made from the page
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Site:
    """One server's view of a directory of runs.

    Attributes:
        root: where the runs are; no path outside of it is read or written.
        home: the directory in which commands are started.
        state: ``root/.web``.
        token: what a browser must know. It is kept, so that open pages survive a restart of the server.
        data: files of rows below the root and the directory of commands.
        models: model directories below the root and the directories in ``models``, by default the one of commands.
        settings: settings files below the root and the directory of commands.
        hosts: values of the Host header that are answered.
        stopping: set when the server is asked to stop.
    """

    def __init__(
        self,
        root: Path,
        *,
        password: str = "",
        places: int = 1,
        of_device: Mapping[str, int] | None = None,
        models: Sequence[Path] | None = None,
    ) -> None:
        self.home = Path.cwd()
        self.root = root.absolute()
        self.state = self.root / STATENAME
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            self.token = password or kept_secret(self.state / "token")
        except OSError as error:
            raise EnvironmentFault(
                "the directory of the runs cannot be written", where=str(error.filename or root),
                found=error.strerror or "", fix="name another one: ernie web DIRECTORY",
            ) from error  # fmt: skip
        self.root = self.root.resolve()
        self.state = self.root / STATENAME
        self.hosts: frozenset[str] = frozenset()
        self.stopping = threading.Event()
        self.index = Index(self.root, self.state)
        self.curves = CurveStore(self.state / "curves")
        self.actions = Actions(self.state, self.home)
        self.tasks = Tasks(self.state, self.home, self.actions, places=places, of_device=of_device)
        self.models = ModelDirs([self.root, *([self.home] if models is None else models)], self.home)
        self.data = DataFiles([self.root, self.home], self.models)
        self.settings = SettingsFiles([self.root, self.home], self.models)
        self.chats = Chats(self.state, self.tasks)
        self.trash = Trash(self.root, self.actions.audit)

    def admit(self, hosts: Sequence[str]) -> None:
        """Answer requests for these values of the Host header."""
        self.hosts = frozenset(host.lower() for host in hosts)

    def data_file(self, place: str) -> Path:
        """A file of data that a page named, relative to where commands are started.

        Raises:
            UsageError: it is not below the directory of the runs nor below that one, or there is none.
        """
        path = self._below(place)
        if path is None or not is_data(path.name) or not os.path.isfile(path):
            raise UsageError("there is no such file of data here", where=place,
                             expected=f"{', '.join((*ROWS, *PACKED))} below {self.home}")  # fmt: skip
        return path

    def directory(self, place: str) -> Path:
        """A directory that a page named; where, and errors as for :meth:`data_file`."""
        path = self._below(place)
        if path is None or not os.path.isdir(path):
            raise UsageError("there is no such directory here", where=place, expected=f"one below {self.home}")
        return path

    def _below(self, place: str) -> Path | None:
        """The path, if it is below the directory of the runs or the one of commands and nothing in it is hidden."""
        path = (self.home / place).resolve() if place and "\0" not in place else Path("/")
        root = next((root for root in (self.root, self.home) if path.is_relative_to(root)), None)
        hidden = root is None or any(part.startswith(".") for part in path.relative_to(root).parts)
        return None if hidden else path

    def new_directory(self, group: str, name: str) -> Path:
        """``GROUP/NAME`` below the root, for what a command is to write.

        Raises:
            UsageError: the name is no plain one, or it is taken: by a directory, or by a task that has not ended.
        """
        path = self.root / group / name
        place = self.models.place(path)
        if (
            not NAME.fullmatch(name)
            or path.exists()
            or any(task.state in AHEAD and ("--out", place) in pairwise(task.argv) for task in self.tasks.all())
        ):
            raise UsageError(
                "this name is taken" if NAME.fullmatch(name) else "this is no name for a directory", where=name,
                expected="a new name of letters, digits, dots, hyphens and underscores",
            )  # fmt: skip
        return path

    def naming(self) -> AbstractContextManager[None]:
        """Hold it from :meth:`new_directory` until the task is queued: of two tabs, one gets the name."""
        return locked(self.state / "names.lock")

    @contextmanager
    def threads_running(self) -> Iterator[None]:
        """As long as the block runs: start what waits in the queue, read the events of runs for the list and for curves."""
        jobs = {"queue": self.tasks.work, "index": self.index.work, "curves": self.curves.work}
        threads = [
            threading.Thread(target=job, args=(self.stopping,), name=f"erniecore-{name}", daemon=True)
            for name, job in jobs.items()
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join(5)
