"""What the page does: commands as lists of arguments, never a shell, each with a line in the audit log.

``.web/audit.jsonl`` has the time, the command as it can be pasted into a terminal, and how it ended.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erniecore.api.files import parse_json

#: The command line, whatever PATH says.
ERNIE = (sys.executable, "-m", "erniecore")
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended: exit code (-1: it took too long), and what it printed."""

    code: int
    output: str

    def json(self) -> Any:
        """What the command printed with ``--json``; None where there is nothing, or an error."""
        found = printed_json(self.output)
        return None if isinstance(found, dict) and found.get("event") == "error" else found


def printed_json(output: str) -> Any:
    """The first object or array that begins and ends with a line, amid lines of warnings; also the error that a command printed.
    None where there is none."""
    for begin in re.finditer(r"^[{\[]", output, re.MULTILINE):
        with suppress(ValueError, RecursionError):
            end = json.JSONDecoder().raw_decode(output, begin.start())[1]
            if not output[end:].partition("\n")[0].strip():
                return parse_json(output[begin.start() : end])
    return None


def shown(argv: Sequence[str]) -> str:
    """A command as one would type it."""
    short = ["ernie", *argv[len(ERNIE) :]] if tuple(argv[: len(ERNIE)]) == ERNIE else list(argv)
    return shlex.join(short)


class Actions:
    """Runs commands in ``home`` and writes ``state/audit.jsonl``."""

    def __init__(self, state: Path, home: Path) -> None:
        self._log, self._home = state / "audit.jsonl", home

    def ernie(self, *arguments: str) -> Result:
        """``ernie ARGUMENTS``, waited for; for what takes seconds. What takes longer is a task."""
        result = self.asked(*arguments)
        self.audit([*ERNIE, *arguments], code=result.code)
        return result

    def asked(self, *arguments: str) -> Result:
        """The same without a line in the log, for what changes nothing and is asked while somebody types."""
        argv = [*ERNIE, *arguments]
        try:
            done = subprocess.run(
                argv, cwd=self._home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=_SECONDS, check=False, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return Result(-1, (error.stdout or b"").decode(errors="replace"))
        return Result(done.returncode, done.stdout.decode(errors="replace"))

    def audit(self, argv: Sequence[str], **facts: object) -> None:
        """One line: the command that was run, or that does the same as what was done."""
        line = json.dumps({"time": round(time.time(), 3), "command": shown(argv), "cwd": str(self._home), **facts})
        handle = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, (line + "\n").encode())
        finally:
            os.close(handle)
