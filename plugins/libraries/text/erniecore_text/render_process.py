"""Templates of others, rendered in a process of their own that is started once and kept.

``RemoteRendering`` is used as ``Rendering`` is. The process is shared by all templates of this one, and a new one is started
where it has ended; what it takes and what it answers is in ``render_server.py``.
"""

from __future__ import annotations

import atexit
import itertools
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from erniecore_text.jinja_env import MAX_TEXT
from erniecore_text.render_server import FAULT, MEMORY, SECONDS, UNKNOWN
from erniecore_text.rendering import RESOURCES, RenderFault

#: seconds until an answer must be there, however busy the machine is
WAIT = 300.0
#: the package of this file without what its ``__init__`` imports
_START = """
import json, sys, types
from importlib import import_module
sys.path[:] = json.loads(sys.argv[1])
package = sys.modules["erniecore_text"] = types.ModuleType("erniecore_text")
package.__path__ = [sys.argv[2]]
module, name, *its = json.loads(sys.argv[4])
getattr(import_module(module), name)(*its)
from erniecore_text.render_server import serve
serve(*json.loads(sys.argv[3]))
"""
_numbers = itertools.count()


class _Ended(Exception):
    """The process ended before it answered; ``status`` as ``Popen.returncode``."""

    def __init__(self, status: int | None) -> None:
        self.status = status


class _Process:
    """The process and this end of its socket. For one thread at a time."""

    def __init__(self, start: str = _START) -> None:
        from erniecore.api.launcher import follow_parent  # and with it the engine's processes: only where it is wanted

        own, other = socket.socketpair()
        with other:
            serve = [other.fileno(), SECONDS, MEMORY]
            follow = [follow_parent.__module__, follow_parent.__name__, int(signal.SIGKILL), os.getpid()]
            words = [json.dumps(sys.path), str(Path(__file__).parent), json.dumps(serve), json.dumps(follow)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", start, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        self._connection = Connection(own.detach())
        self.pid = self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes) -> bytes:
        """Raises ``_Ended``, and ``TimeoutError`` where nothing came."""
        try:
            self._connection.send_bytes(request)
            if not self._connection.poll(WAIT):
                raise TimeoutError
            return self._connection.recv_bytes(4 * MAX_TEXT + 1024)
        except (EOFError, ConnectionError) as error:
            raise _Ended(self._process.wait()) from error

    def end(self) -> None:
        """It has nothing to save."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._connection.close()


class _Keeper:
    """The one process of this one; requests of several threads wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: bytes) -> bytes:
        """The answer of a living process. Raises ``RenderFault`` where the limits ended it."""
        with self._lock:
            try:
                return self._ask(request)
            except _Ended as first:
                if first.status == -signal.SIGXCPU:
                    raise _too_slow() from None
            try:  # whoever killed it did not mean this template
                return self._ask(request)
            except _Ended as second:
                if second.status == -signal.SIGXCPU:
                    raise _too_slow() from None
                found = f"the process that renders it ended with status {second.status}, twice"
                raise RenderFault(RESOURCES, 0, found) from None

    def _ask(self, request: bytes) -> bytes:
        if self._process is None or not self._process.alive():
            self.end()
            self._process = _Process()
        answered = b""
        try:
            answered = self._process.ask(request)
        except TimeoutError:
            raise RenderFault(RESOURCES, 0, f"no answer within {WAIT:g} s") from None
        finally:
            if answered[:1] in (b"", FAULT) and not _is_harmless(answered):
                self.end()
        return answered

    def end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def forget(self) -> None:
        """In a forked process: the one that renders is the parent's."""
        self._lock, self._process = threading.Lock(), None


def _is_harmless(answer: bytes) -> bool:
    """Whether a fault left the process as it was: not one of time or memory."""
    return bool(answer) and json.loads(answer[1:])[0] != RESOURCES


def _too_slow() -> RenderFault:
    return RenderFault(RESOURCES, 0, f"it takes more than {SECONDS:g} s of processor time")


_keeper = _Keeper()
atexit.register(_keeper.end)
os.register_at_fork(after_in_child=_keeper.forget)


class RemoteRendering:
    """A template in the process that renders; arguments and errors as ``Rendering``."""

    def __init__(self, source: str, prefix: str, variables: Mapping[str, Any]) -> None:
        self._key = next(_numbers)
        self._open = marshal.dumps(("open", self._key, source, prefix, dict(variables)))
        self.verbatim = _checked(_keeper.ask(self._open)) == b"1"

    def text(self, messages: list[dict[str, Any]], tools: Any, asked: Mapping[str, Any]) -> str:
        """A rendering. Raises ``RenderFault``."""
        request = marshal.dumps(("text", self._key, messages, tools, dict(asked)))
        answer = _keeper.ask(request)
        while answer[:1] == UNKNOWN:  # a new process, or many templates since
            _checked(_keeper.ask(self._open))
            answer = _keeper.ask(request)
        return _checked(answer).decode("utf-8", "surrogatepass")


def _checked(answer: bytes) -> bytes:
    if answer[:1] == FAULT:
        kind, line, found = json.loads(answer[1:])
        raise RenderFault(str(kind), int(line), str(found))
    return answer[1:]
