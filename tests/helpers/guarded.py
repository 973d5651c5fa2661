"""A call in a fork of this process, with hard limits of memory, of processor time and of time: whatever a hostile file makes of
it, the machine and the other tests stay as they are. A hang is the failure of its own case.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

#: bytes beyond what this process has, seconds of a processor, seconds
MEMORY, CPU, LIMIT = 3 << 30, 60, 180


class Outcome(NamedTuple):
    """How a call ended: its exit code (negative: the signal that ended it), and what it wrote."""

    code: int
    out: str
    err: str


#: exit code of a call that did what no file may make it do
FORBIDDEN = 99
#: events of the interpreter that are forbidden: code from a file, a connection to somewhere
_FORBIDDEN = {"pickle.find_class", "os.system"}
_NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
_CHANGES = {
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
}
_ALLOWED = ("/dev/", "/proc/self/", sys.prefix, str(sys.pycache_prefix))


def guarded(
    function: Callable[[], int],
    *,
    box: Path | None = None,
    memory: int = MEMORY,
    cpu: int = CPU,
    limit: float = LIMIT,
    port: int = 0,
) -> Outcome:
    """``function()`` in a fork, which ends with the number that it returns, as a program does.

    Args:
        box: the only directory in which files may be written; a write elsewhere, a pickle that looks for a class, a
            connection to a network end the call with :data:`FORBIDDEN`. Not: every call may do all.
        port: of localhost, to which it may connect all the same.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            if box is not None:
                sys.addaudithook(_watch(box.resolve(), port))
            _be(function, out.fileno(), err.fileno(), memory, cpu)
        code = _end(pid, limit)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "backslashreplace"))
        return Outcome(code, *texts)


def _end(pid: int, limit: float) -> int:
    """The exit code of the child, which is killed with all that it started once the limit is over."""
    handle = os.pidfd_open(pid)
    try:
        select.select([handle], [], [], limit)
    finally:
        os.close(handle)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _be(function: Callable[[], int], out: int, err: int, memory: int, cpu: int) -> None:
    """In the fork: call, and end."""
    code = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - they live as long as the process
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
        most = _address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        code = function()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 255)


def _watch(box: Path, port: int) -> Callable[[str, Any], None]:
    """An audit hook that ends the process at what no file may make it do."""
    allowed = (str(box), *_ALLOWED)

    def watch(event: str, arguments: Any) -> None:
        if event in _FORBIDDEN:
            _stop(event, arguments)
        if event in _NETWORK and not (port and _is_local(event, arguments, port)):
            _stop(event, arguments)
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and isinstance(path, str | bytes):
                _within(event, path, allowed)
        elif event in _CHANGES:
            for path in arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]:
                if isinstance(path, str | bytes):
                    _within(event, path, allowed)

    return watch


def _is_local(event: str, arguments: Any, port: int) -> bool:
    """Whether a connection goes to this port of localhost, or its name is looked up."""
    address = arguments[:2] if event == "socket.getaddrinfo" else arguments[1]
    return isinstance(address, tuple) and str(address[0]) == "127.0.0.1" and int(address[1] or 0) in (0, port)


def _within(event: str, path: str | bytes, allowed: tuple[str, ...]) -> None:
    place = os.path.abspath(os.fsdecode(path))
    if not place.startswith(allowed):
        _stop(event, place)


def _stop(event: str, what: object) -> None:
    os.write(2, f"forbidden: {event} {what!r}\n".encode())
    os._exit(FORBIDDEN)


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
