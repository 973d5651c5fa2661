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
from collections import deque
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
#: requests that are sent ahead of the one that is waited for, and their bytes: less than a socket takes without a reader
AHEAD, AHEAD_BYTES = 32, 1 << 16
#: bytes of answers that are kept until somebody asks for them; what is beyond is rendered again when it is wanted
KEPT_BYTES = 4 << 20
#: version of ``marshal`` without references to equal objects, so that equal requests are equal bytes
_PLAIN = 2
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

    def send(self, request: bytes) -> None:
        """Put a request on its way; it may wait for room. Raises ``_Ended``."""
        try:
            self._connection.send_bytes(request)
        except (EOFError, ConnectionError) as error:
            raise _Ended(self._process.wait()) from error

    def receive(self) -> bytes:
        """The answer to the oldest request that has none. Raises ``_Ended``, and ``TimeoutError`` where nothing came."""
        try:
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
    """The one process of this one; requests of several threads wait for each other. Requests that are expected go ahead of the
    one that wants the answer: the process renders while this one works. Each has the limits to itself, and its fault is
    told to whoever asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None
        #: sent ahead and not answered yet, in order; answered and not asked for yet
        self._ahead: deque[bytes] = deque()
        self._answers: dict[bytes, bytes] = {}

    def expect(self, request: bytes) -> None:
        """``request`` is going to be asked. It is sent if that cannot block."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            room = len(self._ahead) < AHEAD and sum(map(len, self._ahead)) + len(request) <= AHEAD_BYTES
            known = request in self._answers or request in self._ahead
            if room and not known and self._process is not None:
                self._process.send(request)
                self._ahead.append(request)
        except _Ended:
            self.end()
        finally:
            self._lock.release()

    def ask(self, request: bytes, opening: bytes = b"") -> bytes:
        """The answer of a living process; ``opening``: what it is told first if it does not know the template, because it is
        new or had many since. Raises ``RenderFault`` where the limits ended it, or it ended twice, whatever the reason."""
        with self._lock:
            try:
                return self._opened(request, opening)
            except _Ended as first:
                if first.status == -signal.SIGXCPU:
                    raise _too_slow() from None
            try:  # whoever killed it did not mean this template
                return self._opened(request, opening)
            except _Ended as second:
                if second.status == -signal.SIGXCPU:
                    raise _too_slow() from None
                found = f"the process that renders it ended with status {second.status}, twice"
                raise RenderFault(RESOURCES, 0, found) from None

    def _opened(self, request: bytes, opening: bytes) -> bytes:
        answer = self._ask(request)
        if answer[:1] == UNKNOWN and opening:
            _checked(self._ask(opening))
            answer = self._ask(request)
        return answer

    def _ask(self, request: bytes) -> bytes:
        self._take_ahead(request)
        if request in self._answers:
            return self._answers.pop(request)
        if self._process is None or not self._process.alive():
            self.end()
            self._process = _Process()
        answered = b""
        try:
            self._process.send(request)
            answered = self._process.receive()
        except TimeoutError:
            raise RenderFault(RESOURCES, 0, f"no answer within {WAIT:g} s") from None
        finally:
            if not _is_harmless(answered):
                self.end()
        return answered

    def _take_ahead(self, request: bytes) -> None:
        """Answers to what was sent ahead, up to that to ``request``; all of them where it was not. Where the process ends
        meanwhile, what it has not answered is forgotten, and asked when it is wanted; so is an answer that would be too much
        memory, for each of them may have :data:`MAX_TEXT` characters."""
        if len(self._answers) > 4 * AHEAD or sum(map(len, self._answers.values())) > KEPT_BYTES // 2:
            self._answers.clear()  # nobody came for them
        while self._ahead and self._process is not None and request not in self._answers:
            try:
                answered = self._process.receive()
            except (_Ended, TimeoutError):
                self.end()
                return
            first = self._ahead.popleft()
            if first == request or sum(map(len, self._answers.values())) + len(answered) <= KEPT_BYTES:
                self._answers[first] = answered
            if not _is_harmless(answered):
                self.end()

    def end(self) -> None:
        self._ahead.clear()
        if self._process is not None:
            self._process.end()
            self._process = None

    def forget(self) -> None:
        """In a forked process: the one that renders is the parent's."""
        self._lock, self._process, self._ahead, self._answers = threading.Lock(), None, deque(), {}


def _is_harmless(answer: bytes) -> bool:
    """Whether an answer left the process as it was: not none, and not a fault of time or memory."""
    return bool(answer) and (answer[:1] != FAULT or json.loads(answer[1:])[0] != RESOURCES)


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

    def expect(self, messages: list[dict[str, Any]], tools: Any, asked: Mapping[str, Any]) -> None:
        """:meth:`text` is going to be asked for this; the process may render it meanwhile."""
        _keeper.expect(self._request(messages, tools, asked))

    def _request(self, messages: list[dict[str, Any]], tools: Any, asked: Mapping[str, Any]) -> bytes:
        return marshal.dumps(("text", self._key, messages, tools, dict(asked)), _PLAIN)

    def text(self, messages: list[dict[str, Any]], tools: Any, asked: Mapping[str, Any]) -> str:
        """A rendering. Raises ``RenderFault``."""
        request = self._request(messages, tools, asked)
        return _checked(_keeper.ask(request, self._open)).decode("utf-8", "surrogatepass")


def _checked(answer: bytes) -> bytes:
    if answer[:1] == FAULT:
        kind, line, found = json.loads(answer[1:])
        raise RenderFault(str(kind), int(line), str(found))
    return answer[1:]
