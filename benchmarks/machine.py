"""The machine that is measured on: what it is, whether it is quiet, and running one command on it."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CORES = os.cpu_count() or 1


def describe() -> str:
    """One line: processor, cores, memory."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = names[0] if names else platform.processor()
    return f"{name}, {CORES} cores, {vectors}, {memory:.0f} GiB; Python {platform.python_version()}."


def busy_seconds() -> float:
    """CPU seconds used by everything since boot; time stolen from this machine counts as used."""
    values = [int(x) for x in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(share: float = 0.15, at_most: float = 60.0) -> None:
    """Return once other processes use less than ``share`` of the machine, or after ``at_most`` seconds."""
    end = time.time() + at_most
    while time.time() < end:
        before, started = busy_seconds(), time.time()
        time.sleep(2)
        if (busy_seconds() - before) / (CORES * (time.time() - started)) < share:
            return


def children_seconds() -> float:
    """CPU seconds of finished children of this process."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_json(command: Sequence[str], env: Mapping[str, str], cwd: Path, timeout: float = 900) -> dict[str, Any]:
    """Run a command whose last line is JSON: ``result`` or ``error``, wall and CPU seconds, and ``others``, the share
    of the machine that other processes took meanwhile."""
    busy, own, started = busy_seconds(), children_seconds(), time.time()
    try:
        done = subprocess.run(
            command, env={**os.environ, **env}, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
        )
        out, error = done.stdout.strip().splitlines(), done.stderr.strip()
    except subprocess.TimeoutExpired:
        out, error = [], f"no result after {timeout:.0f} s"
    wall, cpu = time.time() - started, children_seconds() - own
    others = max(0.0, busy_seconds() - busy - cpu) / (CORES * wall)
    record: dict[str, Any] = {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "others": round(others, 3)}
    try:
        record["result"] = json.loads(out[-1])
    except (IndexError, ValueError):
        record["error"] = (error or "\n".join(out))[-1500:]
    return record
