"""Probes: processes in which nothing of a plugin was imported yet. ``probe_server`` forks one for each.

Its standard input and output carry the requests and answers, one JSON value per line: a request of :func:`ask`, then the
process id of the fork, then its exit status (negative: the number of the signal that ended it).
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore_conformance.expect import CheckFailed


def ask(request: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """What ``probe.answer`` returns for ``request`` in a fork with the ``sys.path``, the environment and the directory of this
    process; ``CheckFailed`` where it ends otherwise, or not within ``limit`` seconds."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        task = {"path": [p for p in sys.path if p], "environ": dict(os.environ), "cwd": os.getcwd()}
        status = _server().run({**task, "place": directory, "request": dict(request)}, limit)
        if status is None:
            raise CheckFailed(f"a process of its own did not end within {limit:.0f} s")
        if status:
            errors = (place / "stderr").read_text(errors="replace").strip()[-600:]
            raise CheckFailed(f"a process of its own ended with status {status}: {errors}")
        answer: dict[str, Any] = json.loads((place / "answer.json").read_text())
        return answer


class _Server:
    """The server as the process that started it sees it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        path = [p for p in sys.path if p]
        code = f"import sys; sys.path[:] = {path!r}; from erniecore_conformance.probe_server import serve; serve()"
        self._process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self.close)

    @property
    def runs(self) -> bool:
        """Whether this process may use it: a fork of its owner may not."""
        return self.owner == os.getpid() and self._process.poll() is None

    def run(self, task: Mapping[str, Any], limit: float) -> int | None:
        """The exit status of a fork, ``None`` for one that was ended after ``limit`` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        self._process.stdin.flush()
        pid = self._number()
        assert self._process.stdout is not None
        late = not select.select([self._process.stdout], [], [], limit)[0]
        if late:
            os.kill(pid, signal.SIGKILL)
        status = self._number()
        return None if late else status

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it; nothing in a fork, whose server it is not."""
        if self.runs:
            self._process.communicate()


_servers: list[_Server] = []


def _server() -> _Server:
    """The server of this process, started with its first probe."""
    if not _servers or not _servers[-1].runs:
        _servers[:] = [_Server()]
    return _servers[-1]
