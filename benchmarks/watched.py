"""Commands that are watched from outside: wall time, CPU seconds, and the highest memory of a process and of those that it
started. And the rate at which this machine reads memory, which bounds how fast weights can be read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
#: seconds between two looks at the memory of the processes
LOOK = 0.02


@dataclass(frozen=True)
class Watched:
    """How a command ran.

    Attributes:
        code: exit code, negative for a signal. wall, cpu: seconds; CPU of everything that it started too.
        peak: most bytes resident at once, all processes together, pages of mapped files included; a page that several map
            counts for each. anonymous: the same without pages of files. ranks: the peak of each process, highest first.
        out, err: what it wrote.
    """

    code: int
    wall: float
    cpu: float
    peak: int
    anonymous: int
    ranks: tuple[int, ...]
    out: str
    err: str

    def last_json(self) -> dict[str, object]:
        """The last line, or all of the output, as JSON; raises ``RuntimeError`` for a command that failed."""
        if self.code:
            raise RuntimeError(f"exit code {self.code}: {self.err.strip()[-600:]}")
        try:
            found: dict[str, object] = json.loads(self.out)
        except ValueError:
            found = json.loads(self.out.strip().splitlines()[-1])
        return found


def ernie(
    words: Sequence[object], cwd: Path, *, kill_after: float | None = None, env: Mapping[str, str] | None = None
) -> Watched:
    """One ``ernie`` command, as a user starts it; see :func:`watch`."""
    return watch([sys.executable, "-m", "erniecore", *map(str, words)], cwd, kill_after=kill_after, env=env)


def watch(
    command: Sequence[str], cwd: Path, *, kill_after: float | None = None, env: Mapping[str, str] | None = None
) -> Watched:
    """Run a command to its end, or until ``kill_after`` seconds, when SIGKILL ends it and all that it started. Byte code is kept,
    whatever the shell says: compiling Paddle's sources takes longer than many a command."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started, peaks, each = time.monotonic(), [0, 0], dict[int, int]()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=out,
            stderr=err,
            text=True,
            env={**environment, **(env or {})},
            start_new_session=True,
        )
        over = threading.Event()
        looking = threading.Thread(target=_look, args=(process.pid, over, peaks, each), daemon=True)
        looking.start()
        try:
            if kill_after is not None:
                _kill_after(process, kill_after)
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            over.set()
            looking.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - started
        out.seek(0), err.seek(0)
        texts = out.read(), err.read()
    cpu = usage.ru_utime + usage.ru_stime
    ranks = tuple(sorted(each.values(), reverse=True))
    return Watched(process.returncode, wall, cpu, max(peaks[0], *ranks, 0), peaks[1], ranks, *texts)


def _kill_after(process: subprocess.Popen[str], seconds: float) -> None:
    """Without reaping, so that the group's number stays the command's."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(LOOK)
    os.killpg(process.pid, signal.SIGKILL)


def _look(pid: int, over: threading.Event, peaks: list[int], each: dict[int, int]) -> None:
    while not over.wait(LOOK):
        found = {p: memory(p) for p in tree(pid)}
        each.update({p: max(each.get(p, 0), sizes[2]) for p, sizes in found.items()})
        for i in (0, 1):
            peaks[i] = max(peaks[i], sum(sizes[i] for sizes in found.values()))


def tree(pid: int) -> list[int]:
    """A process and all that it started and that are alive."""
    found, waiting = [], [pid]
    while waiting:
        at = waiting.pop()
        found.append(at)
        tasks = Path(f"/proc/{at}/task")
        with suppress(OSError):  # the process ended
            for task in os.listdir(tasks):
                with suppress(OSError):  # the thread ended
                    waiting += [int(word) for word in (tasks / task / "children").read_text(encoding="ascii").split()]
    return found


def memory(pid: int) -> tuple[int, int, int]:
    """(resident, anonymous, most resident ever) bytes of a process; zeros when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0, 0, 0
    sizes = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (li.partition(":") for li in lines) if " kB" in rest
    }
    return sizes.get("VmRSS", 0), sizes.get("RssAnon", 0), sizes.get("VmHWM", 0)


def read_rate(gib: float = 1.5, rounds: int = 5) -> float:
    """Bytes per second that all cores together read from memory: the best of some passes over more than caches hold, in a
    process of its own, as other processes only ever take away."""
    words = [sys.executable, "-m", "benchmarks.watched", str(gib), str(rounds)]
    root = Path(__file__).resolve().parent.parent
    one = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=root, env=one, check=True, capture_output=True, text=True)
    return float(done.stdout)


def _read_rate(gib: float, rounds: int) -> float:
    import numpy as np

    cores = len(os.sched_getaffinity(0))
    pieces = np.ones((cores, int(gib * 2**30) // 4 // cores), np.float32)
    best = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(rounds):
            started = time.perf_counter()
            list(pool.map(lambda piece: np.dot(piece, piece), pieces))
            best = min(best, time.perf_counter() - started)
    return pieces.nbytes / best


if __name__ == "__main__":
    print(_read_rate(float(sys.argv[1]), int(sys.argv[2])))
