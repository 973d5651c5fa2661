"""Processes in which nothing of a plugin was imported yet, without the third of a second that the contracts take to import: a
server that imported the contracts and the kit, and nothing else, forks one for every probe. It never uses a plugin itself.

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
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore_conformance.expect import CheckFailed

#: What the server must never have imported: a probe tells whether its plugin does.
HEAVY = ("paddle", "numpy")


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


def serve() -> None:
    """The server itself: one task after the other until its input ends."""
    import typer.testing  # noqa: F401

    assert not [name for name in HEAVY if name in sys.modules]
    for line in iter(sys.stdin.buffer.readline, b""):
        pid = os.fork()
        if not pid:
            os._exit(_answered(json.loads(line)))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _answered(task: Mapping[str, Any]) -> int:
    """The exit status of a fork; its streams are files from here on, its answer is one too."""
    place = Path(task["place"])
    with open(os.devnull, "rb") as nothing, (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        for number, stream in enumerate((nothing, out, err)):
            os.dup2(stream.fileno(), number)
    try:
        sys.path[:] = task["path"]
        os.environ.clear()
        os.environ.update(task["environ"])
        os.chdir(task["cwd"])
        from erniecore_conformance.probe import answer

        (place / "answer.json").write_text(json.dumps(answer(task["request"])))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
