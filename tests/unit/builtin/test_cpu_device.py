"""The cpu device: its environment is a pure function of the processor."""

import os
import platform
import subprocess
import sys

import pytest
from erniecore_system.memory import keep_freed_memory

from erniecore.builtin.cpu import CpuConfig, CpuDevice, plugin
from erniecore.types.run import Cluster

AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu sse2 fma avx2\n"
ZEN5 = AMD.replace("avx2", "avx2 avx512f avx512dq avx512cd avx512bw avx512vl")
OLD = AMD.replace("avx2", "avx")
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\n"
HYGON = "vendor_id : HygonGenuine\nflags : avx2 fma\n"
ARM = "processor : 0\nBogoMIPS : 50.00\nCPU implementer : 0x41\n"


def device(cpuinfo=AMD, omp="", **config):
    return CpuDevice(CpuConfig(**config), cpuinfo, omp)


@pytest.mark.parametrize(("cpuinfo", "code"), [(AMD, "5"), (HYGON, "5"), (ZEN5, "7"), (OLD, None), (INTEL, None)])
def test_mkl_code_path_follows_vendor_and_instruction_sets(cpuinfo, code):
    assert device(cpuinfo).environment().get("MKL_DEBUG_CPU_TYPE") == code


def test_other_architectures_choose_no_mkl_code_path(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "MKL_DEBUG_CPU_TYPE" not in device(ARM).environment()


def test_environment_is_the_same_for_any_thread_setting():
    assert device(threads=7).environment() == device(omp="3").environment()


@pytest.mark.parametrize(("omp", "config", "threads"), [("3", {}, 3), ("3", {"threads": 2}, 2), ("nonsense", {}, None)])
def test_threads(omp, config, threads):
    assert device(omp=omp, **config).threads == (threads or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("given", ["", "1", "3"])
@pytest.mark.parametrize("first", ["", "import paddle; "])
def test_what_paddle_writes_is_not_taken_for_the_users_number_of_threads(given, first):
    opened = "bundles.open_device(); print(cpu.threads_asked(), os.environ.get('OMP_NUM_THREADS'))"
    code = f"{first}import os; from erniecore.builtin import cpu; from erniecore.engine.models import bundles; {opened}; {opened}"
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environ |= {"OMP_NUM_THREADS": given} if given else {}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.splitlines() == [f"{given} {given or None}"] * 2
    if not first and given != "3":  # paddle comes in without a warning but its own, of numbers other than 1
        assert done.stderr == ""


def test_only_float32():
    assert device().dtypes == {"float32"}


def test_paddle_comes_in_without_a_warning():
    """With the operators; with a device: above."""
    done = subprocess.run(
        [sys.executable, "-c", "from erniecore.api import ops"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_results_repeat():
    assert device().deterministic is True


def test_description_names_the_processor():
    facts = device(threads=2).describe()
    assert facts["processor"] == "AMD EPYC 7763"
    assert facts["threads"] == "2"


def test_peak_memory_is_in_bytes():
    assert device().peak_memory() > 1 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
def test_glibc_accepts_the_thresholds():
    assert keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


def test_plugin_opens_a_device_that_computes():
    made = plugin.ernie_open_device(CpuConfig(), Cluster())
    made.open()
    import paddle

    assert paddle.ones([2]).place.is_cpu_place()
