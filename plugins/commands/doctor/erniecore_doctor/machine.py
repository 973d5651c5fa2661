"""Python, operating system, processor, memory and the disk of the run directory. Knows nothing of paddle or devices."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from erniecore.api.installation import existing_parent, free_bytes, host_memory, size_text
from erniecore_doctor.findings import Finding, ok, problem, warning

#: versions of Python that every release is tested with
PYTHONS = ((3, 10), (3, 13))
#: written and read back to the disk by the speed probe
PROBE_BYTES = 32 << 20
#: below these a run is possible, but checkpoints of real models do not fit, or make it wait
FEW_BYTES, SLOW_RATE = 10 << 30, 50e6


def python_finding(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    """Whether this Python is one of those that are tested."""
    text = f"{'.'.join(map(str, version))} {platform.python_implementation()}"
    low, high = (".".join(map(str, p)) for p in PYTHONS)
    if version[:2] < PYTHONS[0]:
        return problem("machine", "python", text, f"use Python {low} to {high}")
    if version[:2] > PYTHONS[1]:
        return warning("machine", "python", f"{text}, newer than what is tested", f"Python {low} to {high} are tested")
    return ok("machine", "python", text)


def system_finding(system: str = "") -> Finding:
    """Linux is what is supported."""
    found = system or platform.system()
    text = f"{found} {platform.release()} {platform.machine()}"
    if found != "Linux":
        return warning("machine", "system", text, "only Linux is tested; elsewhere use a container or WSL")
    return ok("machine", "system", text)


def processor_finding(environ: Mapping[str, str], cpuinfo: Path = Path("/proc/cpuinfo")) -> Finding:
    """Processor, cores that this process may use, and threads per operator that it was told to use."""
    name = _field(cpuinfo, "model name") or platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text, threads = f"{name}, {cores} usable cores", environ.get("OMP_NUM_THREADS", "")
    if threads and not threads.isdigit():
        return warning("machine", "processor", f"{text}; OMP_NUM_THREADS={threads} is not a number", "unset it")
    if threads and int(threads) > cores:
        fix = f"unset it, or set it to at most {cores}"
        return warning("machine", "processor", f"{text}; OMP_NUM_THREADS={threads} is more than that", fix)
    return ok("machine", "processor", text + (f", OMP_NUM_THREADS={threads}" if threads else ""))


def memory_finding(root: Path = Path("/")) -> Finding:
    """Memory of the machine, what is left of it, and the limit of the container if there is one."""
    memory = host_memory(root)
    if memory is None:
        return warning("machine", "memory", "unknown: this system has no /proc/meminfo")
    text = f"{size_text(memory.total)}, {size_text(memory.available)} available"
    if memory.limit is not None:
        return warning(
            "machine", "memory", f"{text}; this container may use {size_text(memory.limit)}", "plan with that"
        )
    return ok("machine", "memory", text)


def disk_findings(out: Path) -> Iterator[Finding]:
    """Free space below ``out`` and how fast it can be written there. Writes a scratch file of 32 MiB and removes it."""
    home = existing_parent(out.absolute())
    free = free_bytes(home)
    text = f"{size_text(free)} free at {home}"
    if free < FEW_BYTES:
        yield warning(
            "machine", "disk", text, "a checkpoint of the 0.3B model takes 4.0 GiB; `--out` chooses another disk"
        )
    else:
        yield ok("machine", "disk", text)
    if free < 4 * PROBE_BYTES:
        yield problem("machine", "disk speed", "not measured: too little space", f"free space at {home}")
        return
    try:
        rate = write_rate(home)
    except OSError as error:
        fix = "choose a directory that you may write to with `--out`"
        yield problem("machine", "disk speed", f"cannot write at {home}: {error.strerror or error}", fix)
        return
    text = f"{rate / 1e6:.0f} MB/s written and flushed"
    if rate < SLOW_RATE:
        yield warning("machine", "disk speed", text, "checkpoints will take long; put run.out on a local disk")
    else:
        yield ok("machine", "disk speed", text)


def write_rate(directory: Path, size: int = PROBE_BYTES) -> float:
    """Bytes per second of one file that is written and flushed to the disk. Raises ``OSError``."""
    block = os.urandom(1 << 20)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".ernie-doctor-") as file:
        started = time.perf_counter()
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return size / max(time.perf_counter() - started, 1e-9)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(path: Path, name: str) -> str:
    for line in _read(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
