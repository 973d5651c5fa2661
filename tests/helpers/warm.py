"""``ernie`` and ``python -c`` without the seconds that importing paddle takes: a server that has imported it forks a process
for every command that it is asked for. For tests that start many commands; users' commands, and tests of the start
itself, begin with a fresh interpreter.

The forked process gets the arguments, the directory, the environment and the standard streams of who asks, so it is killed,
waited for and read like any other. Forks share no state: the server itself never runs a command. All of them end with the
process that started the server, whatever ends it.

``python warm.py SOCKET`` is the server; ``python warm_client.py SOCKET ARGUMENTS...`` asks it in place of
``ernie ARGUMENTS...``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

CLIENT = Path(__file__).with_name("warm_client.py")
_STREAMS = 3
#: variable with the process that the server ends with
PARENT = "WARM_PARENT"
#: modules that most commands import
WANTED = (
    "erniecore.cli.app",
    "erniecore.cli.run",
    "erniecore.config.compose",
    "erniecore.api.planning",
    "erniecore.api.training",
    "erniecore.builtin.auto",
    "erniecore.builtin.console",
    "erniecore.builtin.events",
    "erniecore.builtin.local_launcher.plugin",
    "erniecore.builtin.readers",
    "erniecore.builtin.single",
    "erniecore.config.resolved",
    "erniecore.data.encode",
    "erniecore.engine.entry",
    "erniecore.engine.optimizers.adamw",
    "erniecore.engine.preparation.forecast",
    "erniecore.engine.preparation.prepare",
    "erniecore.engine.step",
    "erniecore.engine.training.build",
    "erniecore.engine.training.next_token",
    "erniecore.engine.training.trainer",
    "ernie_third_party_kernels.kernel_set",
    "PIL.ImageDraw",
    "PIL.ImageFont",
    "PIL.PngImagePlugin",
    "sentencepiece",
)
#: distributions of which most commands import something: all their modules
WANTED_WHOLE = (
    "erniecore_chat",
    "erniecore_columnar",
    "erniecore_ernie45",
    "erniecore_ernie45_moe",
    "erniecore_formats",
    "erniecore_generation",
    "erniecore_hybrid_parallel",
    "erniecore_lora",
    "erniecore_ops",
    "erniecore_planner",
    "erniecore_preference",
    "erniecore_sft",
    "erniecore_text",
    "erniecore_token_files",
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
            environ |= {"OMP_NUM_THREADS": "1", PARENT: str(os.getpid())}
            self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ)
            while not path.exists():
                assert self._server.poll() is None, "the server of warm processes ended"
                time.sleep(0.01)
        return str(Path(self._place.name) / "socket")

    def start(self, arguments: Sequence[object], cwd: Path, environ: Mapping[str, str]) -> Process:
        """``ernie ARGUMENTS`` in ``cwd``, with exactly ``environ``."""
        return Process(self.address(), [str(word) for word in arguments], cwd, environ)

    def start_code(self, code: str, argument: str, environ: Mapping[str, str], output: Path) -> Fork:
        """``python -c CODE ARGUMENT``, whose output goes to a file: one rank of a launch of the conformance kit."""
        with open(os.devnull, "rb") as nothing, output.open("wb") as file:
            streams = (nothing.fileno(), file.fileno(), file.fileno())
            return Fork(ask(self.address(), [argument], os.getcwd(), environ, streams, code))

    def close(self) -> None:
        """Stop the server, and with it what it still runs."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        if self._place is not None:
            self._place.cleanup()
        self._place = self._server = None


class Fork:
    """A command that runs: as much of ``subprocess.Popen`` as tests use.

    Attributes:
        pid: of the command itself. returncode: as ``Popen`` has it, once it was waited for.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(self._line())
        self.returncode: int | None = None

    def _line(self) -> bytes:
        """What the server says next; byte by byte, so that nothing of a later line is taken with it."""
        line = b""
        while not line.endswith(b"\n"):
            line += self._connection.recv(1) or b"\n"
        return line

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Its status, or ``None`` while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self) -> int:
        """Its end: the exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            self.returncode = int(self._line())
            self._connection.close()
        return self.returncode


class Process(Fork):
    """A command with pipes for text.

    Attributes:
        stdout: what it prints.
    """

    def __init__(self, address: str, arguments: list[str], cwd: Path, environ: Mapping[str, str]) -> None:
        out, err = os.pipe(), os.pipe()
        with open(os.devnull, "rb") as nothing:
            connection = ask(address, arguments, str(cwd), environ, (nothing.fileno(), out[1], err[1]))
        os.close(out[1])
        os.close(err[1])
        self.stdout: TextIO = open(out[0], encoding="utf-8")  # noqa: SIM115 - closed by communicate
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, args=(err[0],), daemon=True)
        self._reader.start()
        super().__init__(connection)

    def _read_errors(self, number: int) -> None:
        with open(number, encoding="utf-8") as stream:
            self._errors.append(stream.read())

    def communicate(self) -> tuple[str, str]:
        """What is left of its output, and its errors, once it has ended."""
        with self.stdout:
            printed = self.stdout.read()
        self._reader.join()
        self.wait()
        return printed, "".join(self._errors)


def ask(
    address: str,
    arguments: list[str],
    cwd: str,
    environ: Mapping[str, str],
    streams: tuple[int, int, int],
    code: str = "",
) -> socket.socket:
    """Ask the server for ``ernie``, or for ``code``; the answer is a line with its process id and, in the end, one with how
    it ended."""
    request = json.dumps({"arguments": arguments, "cwd": cwd, "environ": dict(environ), "code": code}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [len(request).to_bytes(8, "big")], list(streams))
    connection.sendall(request)
    return connection


def serve(address: str) -> None:
    """Answer until the process that started this one has ended."""
    _follow(int(os.environ.pop(PARENT)))
    import_all({})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address + ".new")
        listener.listen(64)
        os.rename(address + ".new", address)
        server = os.getpid()
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                _follow(server)
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(connection)
            connection.close()


def _follow(parent: int) -> None:
    """SIGKILL when the process ``parent``, which started this one, ends; at once, if it has. A fork does not inherit it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _attend(connection: socket.socket) -> None:
    """In a fork of the server: start the command in another one, say its process id, and how it ends."""
    head, streams, _, _ = socket.recv_fds(connection, 8, _STREAMS)
    with connection.makefile("rw", encoding="utf-8") as talk:
        data = b""
        while len(data) < int.from_bytes(head, "big"):
            data += connection.recv(1 << 20)
        here, pid = os.getpid(), os.fork()
        if not pid:
            _follow(here)
            connection.close()
            _be(json.loads(data), streams)
        for number in streams:
            os.close(number)
        talk.write(f"{pid}\n")
        talk.flush()
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            talk.write(f"{os.waitstatus_to_exitcode(status)}\n")
            talk.flush()
    os._exit(0)


def _be(request: dict[str, Any], numbers: list[int]) -> None:
    """In the command's own process: be ``python -m erniecore ARGUMENTS`` or ``python -c CODE ARGUMENTS``, and end."""
    for target, number in enumerate(numbers):
        os.dup2(number, target)
        os.close(number)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - all three live as long as the process
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    # what the device would set before paddle is imported, which is too late here
    device = _device(request["environ"] if request["code"] else {})
    os.environ.update({**device.environment(), **request["environ"]})
    # instead of this script's directory; what it has imported already comes from where it came from
    sys.path[:1] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.argv = ["-c" if request["code"] else "ernie", *request["arguments"]]
    code = 1
    try:
        if request["code"]:
            exec(request["code"], {"__name__": "__main__"})
        else:
            runpy.run_module("erniecore", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def import_all(environ: Mapping[str, str]) -> None:
    """Import what commands need, with the variables that the device wants set before in a process with ``environ``."""
    from erniecore.engine.launch import apply_environment

    device = _device(environ)
    apply_environment(device.environment())
    device.open()
    for name in WANTED:
        importlib.import_module(name)
    for name in WANTED_WHOLE:
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    _remember()


def _remember() -> None:
    """What a process finds out once and keeps: which plugins there are, the settings of usual ones, chat templates, whether the
    kernels are those of their sources, the commit."""
    import revision
    from ernie_third_party_kernels import library
    from erniecore_ernie45.templating import TEMPLATES, builtin_source
    from erniecore_text import JinjaChatTemplate

    from erniecore.config import resolved
    from erniecore.config.compose import load
    from erniecore.registry import all_entries

    all_entries()
    library.fault()
    resolved.git_revision = revision.git_revision
    resolved.git_revision()
    for model in ("ernie45", "ernie45-moe"):
        load(None, [f"model.name={model}", "model.size=tiny", "method.name=sft", "data.train=none.jsonl"], {}, {})
    for name in TEMPLATES:
        JinjaChatTemplate(builtin_source(name))


def _device(environ: Mapping[str, str]) -> Any:
    """The CPU, as the process with this environment opens it."""
    from erniecore.engine.launch import default_device, read_cluster

    return default_device("cpu", read_cluster(environ))


if __name__ == "__main__":
    serve(sys.argv[1])
