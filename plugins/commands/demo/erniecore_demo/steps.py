"""What both stories are told with: commands that the reader sees, a training that is killed and goes on, tables."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from erniecore.api import Exit
from erniecore.api.launcher import parent_variables
from erniecore.api.runs import EVENTS_NAME
from erniecore_demo.tasks import Row


def train_with_a_kill(home: Path, run: Path, kill_after: int) -> bool:
    """Train, SIGKILL in the middle, the same command again; whether the repeated steps have the very same losses."""
    arguments = command("run", home / "sft.yaml", "--out", run)
    say(f"4. Training, killed without warning after step {kill_after}", shown=arguments)
    process = subprocess.Popen(arguments, start_new_session=True, env=environ())
    for step, _ in losses(run / EVENTS_NAME, process):
        if step >= kill_after:
            os.killpg(process.pid, signal.SIGKILL)
            break
    code = process.wait()
    if code != -signal.SIGKILL:
        raise SystemExit(code or int(Exit.BUG))
    if sys.stdout.isatty():
        print("\x1b[?25h", end="")  # the killed process could not give the cursor back
    print(f"\nkilled by SIGKILL (process {process.pid})")
    say("5. The same command again continues from the last verified checkpoint", shown=arguments)
    subprocess.run(arguments, check=True, env=environ())
    found: dict[int, list[float]] = {}
    for step, loss in losses(run / EVENTS_NAME):
        found.setdefault(step, []).append(loss)
    repeated = {step: values for step, values in found.items() if len(values) > 1}
    equal = bool(repeated) and all(len(set(values)) == 1 for values in repeated.values())
    verdict = "all equal to the last bit" if equal else "NOT EQUAL"
    first, last = min(repeated, default=0), max(repeated, default=0)
    print(f"steps {first} to {last} were computed twice, before the kill and after it: losses {verdict}")
    return equal


def losses(events: Path, process: subprocess.Popen[bytes] | None = None) -> Iterator[tuple[int, float]]:
    """(step, loss) of the events so far; with ``process``, further ones as they come, while it runs."""
    position = 0
    while True:
        ended = process is None or process.poll() is not None
        if events.exists():
            with events.open(encoding="utf-8") as file:
                file.seek(position)
                while (line := file.readline()).endswith("\n"):
                    position = file.tell()
                    event = json.loads(line)
                    if event["event"] == "step":
                        yield event["step"], event["loss"]
        if ended:
            return
        time.sleep(0.02)


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    """One JSON object a line."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def environ() -> dict[str, str]:
    """Of the commands: they end with this process, whatever kills it."""
    return {**os.environ, **parent_variables()}


def command(*args: object) -> list[str]:
    """The arguments of a process that runs an ``ernie`` command."""
    return [sys.executable, "-m", "erniecore", *map(str, args)]


def ernie(*args: object) -> None:
    """Run an ``ernie`` command for the reader to see; a failure ends the example with its exit code."""
    arguments = command(*args)
    show(arguments)
    done = subprocess.run(arguments, env=environ())
    if done.returncode:
        raise SystemExit(done.returncode)


def ernie_json(*args: object) -> Any:
    """The JSON that a command prints."""
    done = subprocess.run(command(*args), stdout=subprocess.PIPE, text=True, env=environ())
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)


def say(title: str, shown: Sequence[str] = ()) -> None:
    """Print the title of a step, and the command that it runs."""
    print(f"\n── {title}", flush=True)
    if shown:
        show(shown)


def show(arguments: Sequence[str]) -> None:
    """Print a command as people type it."""
    print("$ ernie " + shlex.join(arguments[3:]), flush=True)


def short(text: str, limit: int = 40) -> str:
    """On one line, at most so long, without what a terminal cannot show."""
    text = "".join(c if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}" else "·" for c in " ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their longest cell."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def free_directory(parent: Path) -> Path:
    """The first ``demo-N`` that is not there."""
    number = 1
    while (parent / f"demo-{number}").exists():
        number += 1
    return parent / f"demo-{number}"
