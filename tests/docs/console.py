"""Runs the ``console`` blocks of a page as a reader would: top to bottom, in one empty directory, with an environment
of its own on top of the one that runs the tests, so that ``pip install`` on a page changes nothing else.

A line that starts with ``$ `` is a command (a trailing backslash continues it); the lines below it are what it prints:
each must appear, in this order, where ``…`` stands for anything and a line that is only ``…`` for any lines.
``<!-- exit: 2 -->`` before a block expects that exit code of its last command; ``<!-- file: name -->`` before any other
block writes that block to a file, so a page can show a file and then use it. ``<!-- shorter: train.max_steps=3 -->``
before a block adds these words to its ``ernie run``, except in ``make test-all``: for runs of more than a few seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

from warm import CLIENT, Warm

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:<!--\s*(?P<note>[^>]*?)\s*-->\s*\n)?^```(?P<lang>\w*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass
class Command:
    """One command of a page with what it is expected to print and return."""

    line: int
    text: str
    output: list[str] = field(default_factory=list)
    exit: int = 0
    shorter: str = ""


@dataclass
class File:
    """A block that is saved under ``name`` before the next command."""

    name: str
    text: str


def steps(page: Path) -> list[Command | File]:
    """Commands and files of ``page`` in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Command | File] = []
    for match in _BLOCK.finditer(text):
        note = match["note"] or ""
        if note.startswith("file:"):
            found.append(File(note.removeprefix("file:").strip(), match["body"]))
        elif match["lang"] == "console":
            first = text.count("\n", 0, match.start("body")) + 1
            commands = _commands(match["body"], first)
            if commands and note.startswith("exit:"):
                commands[-1].exit = int(note.removeprefix("exit:"))
            if note.startswith("shorter:"):
                _shorten(commands, note.removeprefix("shorter:").strip(), first)
            found += commands
    return found


def _shorten(commands: list[Command], words: str, line: int) -> None:
    """Raises ``ValueError`` where there is no run to be shortened."""
    runs = [command for command in commands if command.text.startswith("ernie run ")]
    if not runs:
        raise ValueError(f"line {line}: no `ernie run` that {words} could shorten")
    for command in runs:
        command.shorter = f"{command.text} {words}"


def _commands(body: str, first: int) -> list[Command]:
    commands: list[Command] = []
    continued = False
    for number, line in enumerate(body.splitlines(), first):
        if continued:
            commands[-1].text += "\n" + line
            continued = line.endswith("\\")
        elif line.startswith("$ "):
            commands.append(Command(number, line[2:]))
            continued = line.endswith("\\")
        elif commands:
            commands[-1].output.append(line)
        else:
            raise ValueError(f"line {number}: output before any command")
    return commands


def run_page(page: Path, directory: Path, warm: Warm, whole: bool = False) -> None:
    """Run every step of ``page``; raises ``AssertionError`` that names page, line and command.

    ``ernie`` is a fork of ``warm``, which has imported paddle, until a page installs something. ``whole``: no run is
    shortened.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}
    bin_directory = _overlay(directory.with_name(directory.name + "-env"))
    _ask(bin_directory, warm.address())
    environment["PATH"] = f"{bin_directory}{os.pathsep}{environment['PATH']}"
    environment.update(NO_COLOR="1", COLUMNS="200", TERM="dumb", PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0")
    # a page's `export` ends with its command: what is measured must not reach the plans of who runs the tests
    environment["XDG_CACHE_HOME"] = str(directory.with_name(directory.name + "-cache"))
    environment.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore")
    for step in steps(page):
        if isinstance(step, File):
            target = directory / step.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.text, encoding="utf-8")
            continue
        if step.text.strip() == "make test":  # this very suite; running it here would not end
            subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, check=True, capture_output=True)
            continue
        # make has its own environment, which it may have to build first
        where, variables = (ROOT, dict(os.environ)) if step.text.startswith("make ") else (directory, environment)
        shell = ["bash", "-euo", "pipefail", "-c", step.text if whole else step.shorter or step.text]
        if step.text.startswith("pip install"):
            _begin_anew(bin_directory)
        done = subprocess.run(
            shell, cwd=where, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        place = f"{page.relative_to(ROOT)}:{step.line}: {step.text}"
        assert done.returncode == step.exit, (
            f"{place}\nexit {done.returncode}, expected {step.exit}\n{done.stdout[-3000:]}"
        )
        missing = first_missing(step.output, done.stdout.splitlines())
        assert missing is None, (
            f"{place}\nnot printed (in this order): {missing!r}\n--- printed:\n{done.stdout[-3000:]}"
        )


def _overlay(home: Path) -> Path:
    """A virtual environment that sees everything of the present one; returns its directory of programs."""
    venv.create(home, with_pip=False, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    outer = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in outer]
    (site / "outer.pth").write_text("\n".join(lines) + "\n")
    programs = home / "bin"
    for name in ("pip", "pytest"):
        _program(programs, name, f"-m {name}")
    return programs


def _ask(programs: Path, address: str) -> None:
    """``ernie`` asks the server at ``address``."""
    _program(programs, "ernie", f'-I -S "{CLIENT}" "{address}"')


def _begin_anew(programs: Path) -> None:
    """``ernie`` begins with a fresh interpreter, which sees what was installed."""
    _program(programs, "ernie", "-m erniecore")


def _program(programs: Path, name: str, words: str) -> None:
    (programs / name).write_text(f'#!/bin/sh\nexec "{programs / "python"}" {words} "$@"\n')
    (programs / name).chmod(0o755)


def first_missing(expected: list[str], printed: list[str]) -> str | None:
    """The first expected line that does not follow the earlier ones in ``printed``, or None."""
    position = 0
    for line in expected:
        if line.strip() in ("", "…"):
            continue
        pattern = re.compile(".*".join(re.escape(" ".join(part.split())) for part in line.split("…")))
        for index in range(position, len(printed)):
            if pattern.fullmatch(" ".join(printed[index].split())):
                position = index + 1
                break
        else:
            return line
    return None
