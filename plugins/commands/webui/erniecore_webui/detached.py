"""``python -m erniecore_webui.detached DIRECTORY``: runs the command of a task and writes how it ended.

It is the leader of a session of its own, so that it outlives the server; standard library only, so that it costs nothing.
``started.json`` has its process id with the start time (ids come again, start times do not), ``exit.json`` the exit code.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def start_ticks(process: int) -> int:
    """When a process started, in the kernel's ticks since boot; 0: there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def _write(path: Path, content: object) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)


def main(directory: Path) -> int:
    """Run the task in ``directory``; its exit code."""
    task = json.loads((directory / "task.json").read_text(encoding="utf-8"))
    # signals are for the command, which knows how to end
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    own = os.getpid()
    with (directory / "output.log").open("ab") as output:
        process = subprocess.Popen(
            task["argv"], cwd=task["cwd"], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            preexec_fn=_default_signals,
        )  # fmt: skip
    started = {"pid": own, "ticks": start_ticks(own), "child": process.pid, "time": time.time()}
    _write(directory / "started.json", started)
    code = process.wait()
    _write(directory / "exit.json", {"code": code if code >= 0 else 128 - code, "time": time.time()})
    return 0


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
