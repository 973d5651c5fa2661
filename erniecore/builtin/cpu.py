"""The ``cpu`` device: float32 on the host's processor. Knows two things that decide its speed: which code path the
bundled MKL takes on processors that are not Intel's, and how glibc gives out small blocks of memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from erniecore_catalog import install_command
from erniecore_system.memory import keep_freed_memory
from erniecore_system.units import size_text

from erniecore.errors import DeviceUnavailable
from erniecore.plugin import DevicePlugin, hookimpl
from erniecore.sections import DeviceConfig, Field
from erniecore.signals import guarding_import
from erniecore.types.run import Cluster, Device

_THREADS = "OMP_NUM_THREADS"
#: bytes of blocks that small objects shall use, and how many of each
_SMALL_BLOCKS, _SMALL_COUNT = (56, 120, 248, 504, 1016, 2040, 3000), 2000
#: MKL_DEBUG_CPU_TYPE and the instruction sets that its code needs, best first
_MKL_CODES = (("7", {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"}), ("5", {"avx2", "fma"}))


class CpuConfig(DeviceConfig):
    """Settings of ``device.*`` for the CPU."""

    threads: int = Field(
        0,
        ge=0,
        description="Threads per operator. 0: OMP_NUM_THREADS if it is set, else this process's share of the cores.",
    )
    keep_memory: bool = Field(
        True,
        description="Keep freed memory in the process (glibc only): about ten times faster elementwise operations.",
    )


class CpuDevice(Device):
    """See ``erniecore.types.run.Device``.

    Args:
        config: the device's section.
        cpuinfo: text of /proc/cpuinfo; decides :meth:`environment`. num_processes: of the run; several talk over gloo.
        omp_num_threads: the user's OMP_NUM_THREADS, ``""`` when unset; see :func:`threads_asked`.
    """

    name = "cpu"
    dtypes = frozenset({"float32"})
    deterministic = True
    is_host = True
    lacks = {"host-offload": "its memory is the host's already; leave it off"}

    def __init__(self, config: CpuConfig, cpuinfo: str, omp_num_threads: str, num_processes: int = 1) -> None:
        self._config, self._cpuinfo, self._omp = config, cpuinfo, omp_num_threads
        self._num_processes = num_processes

    def environment(self) -> Mapping[str, str]:
        """A function of the processor's vendor and instruction sets. No thread counts: they differ by host.

        MKL chooses its slowest code on x86 processors that are not Intel's. 5 selects AVX2, 7 AVX-512. OpenMP's idle
        threads otherwise spin for 200 ms and take the core from the operators' own threads.
        """
        settings = {"KMP_BLOCKTIME": "1"}
        if "x86" in _machine(self._cpuinfo) and "GenuineIntel" not in self._cpuinfo:
            flags = set(_field(self._cpuinfo, "flags").split())
            settings |= next(({"MKL_DEBUG_CPU_TYPE": code} for code, needs in _MKL_CODES if flags >= needs), {})
        if self._num_processes > 1:
            settings["PADDLE_DISTRI_BACKEND"] = "gloo"
        return settings

    def open(self) -> None:
        """Raise glibc's thresholds, import paddle, select the CPU and set the number of threads."""
        kept = self._config.keep_memory and keep_freed_memory()
        try:
            with guarding_import():
                import paddle
        except ImportError as error:
            raise DeviceUnavailable(
                "PaddlePaddle is not installed", fix=install_command("paddlepaddle", of="erniecore"), found=str(error)
            ) from error
        if not self._omp:  # paddle has written 1, which processes that this one starts would take for the user's
            os.environ.pop(_THREADS, None)
        paddle.set_device("cpu")
        paddle.base.core.set_num_threads(self.threads)
        if kept:
            reserve_small_blocks()

    @property
    def threads(self) -> int:
        """Threads that :meth:`open` sets."""
        if self._config.threads:
            return self._config.threads
        if self._omp.isdigit() and int(self._omp):
            return int(self._omp)
        return max(1, _cores() // self._num_processes)

    def describe(self) -> Mapping[str, str]:
        """Processor, threads and memory."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "processor": _field(self._cpuinfo, "model name") or platform.processor() or platform.machine(),
            "threads": str(self.threads),
            "memory": size_text(memory),
        }

    def peak_tensors(self) -> int:
        """Most bytes that paddle's tensors held; less than :meth:`peak_memory`, which counts the whole process."""
        import paddle

        return int(paddle.base.core.host_memory_stat_peak_value("Allocated", 0))

    def peak_memory(self) -> int:
        """Peak resident memory of this process."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@lru_cache(maxsize=1)
def reserve_small_blocks() -> None:
    """Once per process, free blocks of a few sizes, 14 MB in all, each between two that stay in use. After paddle's import,
    which would use them up.

    Paddle aligns tensors to pages, which leaves a scrap of up to a page beside each. A small object that lands there keeps
    the place of the tensor, once that is freed, too small for the next one of the same size: a third of the memory of a
    training step was such holes. glibc takes the smallest block that fits, so these come first.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks = []
    for size in _SMALL_BLOCKS:
        for _ in range(_SMALL_COUNT):
            blocks.append(libc.malloc(size))
            libc.malloc(24)
    for block in blocks:
        libc.free(block)


def threads_asked() -> str:
    """OMP_NUM_THREADS as the user has set it. Paddle writes ``1`` there when it is imported and the variable is not set: a 1
    behind that import counts only if the process was started with it."""
    value = os.environ.get(_THREADS, "")
    started = Path("/proc/self/environ")
    if value != "1" or "paddle" not in sys.modules or not started.exists():
        return value
    return value if f"\0{_THREADS}=".encode() in b"\0" + started.read_bytes() else ""


def _machine(cpuinfo: str) -> str:
    return "x86" if _field(cpuinfo, "vendor_id") else platform.machine()


def _field(cpuinfo: str, name: str) -> str:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuPlugin(DevicePlugin):
    """Runs on the CPU of the host."""

    name = "cpu"
    summary = "float32 on the host's processor"
    Config = CpuConfig

    @hookimpl
    def ernie_open_device(self, config: CpuConfig, cluster: Cluster) -> Device:
        cpuinfo = Path("/proc/cpuinfo")
        text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
        return CpuDevice(config, text, threads_asked(), cluster.world_size)


plugin = CpuPlugin()
