"""Standard streams that nobody reads, or that a full disk no longer takes: what is still to be printed goes nowhere, and
the process goes on. Imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def complete() -> None:
    """Open the standard streams that whoever started the process has closed: files of ours must not take their places."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, open(number, "r" if not number else "w", encoding="utf-8"))  # noqa: SIM115


def columns(stream: TextIO) -> int:
    """Of the terminal that ``stream`` is, or as COLUMNS says; 80 elsewhere."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def silence(stream: TextIO) -> None:
    """What is still in its buffer, and whatever comes, goes nowhere."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def flush(stream: TextIO) -> None:
    """Flush; a stream that cannot be written is silenced."""
    try:
        stream.flush()
    except (OSError, ValueError):
        silence(stream)


def write(stream: TextIO, text: str) -> None:
    """A line, if somebody takes it."""
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):
        silence(stream)
