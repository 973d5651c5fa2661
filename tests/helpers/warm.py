"""``ernie`` without the second that importing paddle takes: a server that has imported it forks a process for every command
that it is asked for. For tests that start many commands; users' commands, and tests of the start itself, begin with a
fresh interpreter.

The forked process gets the arguments, the directory, the environment and the standard streams of who asks, so it is killed,
waited for and read like any other. Forks share no state: the server itself never runs a command.

``python warm.py SOCKET`` is the server; ``python warm_client.py SOCKET ARGUMENTS...`` asks it in place of
``ernie ARGUMENTS...``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

CLIENT = Path(__file__).with_name("warm_client.py")
_STREAMS = 3
#: modules that most commands import
WANTED = (
    "erniecore.cli.app",
    "erniecore.cli.run",
    "erniecore.config.compose",
    "erniecore_text.template",
    "erniecore_text.tokenizer",
    "erniecore.engine.entry",
    "erniecore.engine.training.build",
    "erniecore.engine.training.trainer",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
)


class Warm:
    """The server as its user sees it: started with the first command, stopped with :meth:`close`."""

    def __init__(self) -> None:
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def address(self) -> str:
        """Path of the socket of a server that listens."""
        if self._place is None:
            self._place = tempfile.TemporaryDirectory(prefix="warm")
            path = Path(self._place.name) / "socket"
            environ = {k: v for k, v in os.environ.items() if not k.startswith(("ERNIE_", "PADDLE_"))}
            command = [sys.executable, __file__, str(path)]
            self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**environ, "OMP_NUM_THREADS": "1"})
            while not path.exists():
                assert self._server.poll() is None, "the server of warm processes ended"
                time.sleep(0.01)
        return str(Path(self._place.name) / "socket")

    def start(self, arguments: Sequence[object], cwd: Path, environ: Mapping[str, str]) -> Process:
        """``ernie ARGUMENTS`` in ``cwd``, with exactly ``environ``."""
        return Process(self.address(), [str(word) for word in arguments], cwd, environ)

    def close(self) -> None:
        """Stop the server; processes that run go on."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        if self._place is not None:
            self._place.cleanup()
        self._place = self._server = None


class Process:
    """A command that runs: as much of ``subprocess.Popen`` with pipes for text as tests use.

    Attributes:
        pid: of the command itself. stdout: what it prints. returncode: as ``Popen`` has it, once it was waited for.
    """

    def __init__(self, address: str, arguments: list[str], cwd: Path, environ: Mapping[str, str]) -> None:
        out, err = os.pipe(), os.pipe()
        with open(os.devnull, "rb") as nothing:
            self._connection = ask(address, arguments, str(cwd), environ, (nothing.fileno(), out[1], err[1]))
        os.close(out[1])
        os.close(err[1])
        self.stdout: TextIO = open(out[0], encoding="utf-8")  # noqa: SIM115 - closed by communicate
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, args=(err[0],), daemon=True)
        self._reader.start()
        self.pid = int(self._connection.readline())
        self.returncode: int | None = None

    def _read_errors(self, number: int) -> None:
        with open(number, encoding="utf-8") as stream:
            self._errors.append(stream.read())

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Its end: the exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            self.returncode = int(self._connection.readline())
            self._connection.close()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """What is left of its output, and its errors, once it has ended."""
        with self.stdout:
            printed = self.stdout.read()
        self._reader.join()
        self.wait()
        return printed, "".join(self._errors)


def ask(
    address: str, arguments: list[str], cwd: str, environ: Mapping[str, str], streams: tuple[int, int, int]
) -> TextIO:
    """Ask the server for a command; the answer is a line with its process id and, in the end, one with how it ended."""
    request = json.dumps({"arguments": arguments, "cwd": cwd, "environ": dict(environ)}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], list(streams))
        connection.sendall(request)
        return connection.makefile("r", encoding="utf-8")


def serve(address: str) -> None:
    """Answer until the process that started this one has ended."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    settings = _import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address + ".new")
        listener.listen(64)
        os.rename(address + ".new", address)
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(connection, settings)
            connection.close()


def _attend(connection: socket.socket, settings: Mapping[str, str]) -> None:
    """In a fork of the server: start the command in another one, say its process id, and how it ends."""
    head, streams, _, _ = socket.recv_fds(connection, 8, _STREAMS)
    with connection.makefile("rw", encoding="utf-8") as talk:
        data = b""
        while len(data) < int.from_bytes(head, "big"):
            data += connection.recv(1 << 20)
        pid = os.fork()
        if not pid:
            connection.close()
            _be(json.loads(data), streams, settings)
        for number in streams:
            os.close(number)
        talk.write(f"{pid}\n")
        talk.flush()
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            talk.write(f"{os.waitstatus_to_exitcode(status)}\n")
            talk.flush()
    os._exit(0)


def _be(request: dict[str, Any], numbers: list[int], settings: Mapping[str, str]) -> None:
    """In the command's own process: be ``python -m erniecore ARGUMENTS``, and end."""
    for target, number in enumerate(numbers):
        os.dup2(number, target)
        os.close(number)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - all three live as long as the process
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update({**settings, **request["environ"]})
    sys.argv = ["ernie", *request["arguments"]]
    code = 1
    try:
        runpy.run_module("erniecore", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _import_all() -> dict[str, str]:
    """Import what commands need; returns the variables that the device wanted set before."""
    from erniecore.engine.launch import apply_environment, default_device

    device = default_device("cpu")
    apply_environment(device.environment())
    device.open()
    for name in WANTED:
        importlib.import_module(name)
    return dict(device.environment())


if __name__ == "__main__":
    serve(sys.argv[1])
