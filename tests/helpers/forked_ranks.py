"""``ernie`` in a fork of a process that has imported paddle, whose ranks are forks of it: child processes as a launcher has
them, which follow it and are killed like any other, without the seconds of their imports. For loops of many kills; the code
of :func:`ernie` runs in a fork of ``warm.py``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

sys.path.insert(0, str(Path(__file__).with_name("phases")))
sys.modules.pop("sitecustomize", None)  # Debian's Python has one, which is there already

import sitecustomize  # noqa: E402


class ForkedRank:
    """As much of ``subprocess.Popen`` as the launcher uses: the command is a module of ours, run in a fork."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: IO[bytes] | None,
        stderr: IO[bytes],
        start_new_session: bool,
    ) -> None:
        assert list(argv[1:2]) == ["-m"]
        assert start_new_session
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _be(argv[2], env, 1 if stdout is None else stdout.fileno(), stderr.fileno())

    def poll(self) -> int | None:
        if self.returncode is None:
            self._reap(os.WNOHANG)
        return self.returncode

    def wait(self) -> int:
        while self.returncode is None:
            self._reap(0)
        return self.returncode

    def _reap(self, how: int) -> None:
        found, status = os.waitpid(self.pid, how)
        if found:
            self.returncode = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


def _be(module: str, environ: Mapping[str, str], out: int, err: int) -> None:
    """In the fork: what `exec` would do of itself, then ``python -m MODULE``."""
    code = 1
    try:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, 4096)  # locks among them: they are the launcher's alone
        from warm import _device

        os.environ.clear()
        os.environ.update({**_device(environ).environment(), **environ})
        sitecustomize.note("+", "import")
        code = _run(module, [module])
    finally:
        os._exit(code)


def _run(module: str, argv: list[str]) -> int:
    """``python -m MODULE ARGUMENTS``; its exit code."""
    sys.argv = argv
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    return 0


def ernie(words: list[str]) -> None:
    """``ernie WORDS``, and the end of the process."""
    from erniecore.builtin.local_launcher import launcher

    class Processes:
        """In the place of the module ``subprocess``."""

        Popen = cast(Any, ForkedRank)
        DEVNULL = -3

    cast(Any, launcher).subprocess = Processes
    raise SystemExit(_run("erniecore", ["ernie", *words]))
