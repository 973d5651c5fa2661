"""Servers that ``benchmarks.serving`` starts: ours on a model directory, llama.cpp's on a GGUF file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import Target
from erniecore.api.launcher import free_port

#: seconds between two looks at whether a server answers
LOOK = 0.05
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@contextmanager
def ours(
    model: Path, log: Path, settings: Sequence[str], *, rows: int
) -> Iterator[tuple[Target, subprocess.Popen[bytes]]]:
    """``ernie serve`` until the block ends, which it must do with exit code 0."""
    port = free_port()
    words = ["-m", "erniecore", "serve", "--backend", "openai", "--model", str(model), f"port={port}", f"rows={rows}"]
    with _started([sys.executable, *words, "name=bench", *settings], port, log) as process:
        yield Target(f"http://127.0.0.1:{port}/v1", "bench"), process
    if process.returncode:
        raise RuntimeError(f"ernie serve: exit code {process.returncode}: {log.read_text(errors='replace')[-600:]}")


@contextmanager
def llama(
    program: Path, file: Path, log: Path, *, rows: int, context: int
) -> Iterator[tuple[Target, subprocess.Popen[bytes]]]:
    """llama.cpp's server with as many slots as ours has rows, and all cores of this process."""
    port, threads = free_port(), str(len(os.sched_getaffinity(0)))
    words = [str(program), "-m", str(file), "--host", "127.0.0.1", "--port", str(port), "-np", str(rows),
             "-c", str(rows * context), "-t", threads, "-tb", threads]  # fmt: skip
    with _started(words, port, log) as process:
        yield Target(f"http://127.0.0.1:{port}/v1", "bench"), process


@contextmanager
def _started(words: Sequence[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(list(words), stdout=file, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        _wait(process, port, log)
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until ``/health`` is 200. Raises ``RuntimeError`` if the process ends before."""
    while process.poll() is None:
        try:
            _OPEN(f"http://127.0.0.1:{port}/health").close()
            return
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass
        time.sleep(LOOK)
    said = log.read_text(errors="replace")[-600:]
    raise RuntimeError(f"{Path(str(process.args[0])).name} ended with {process.returncode}: {said}")  # type: ignore[index]
