"""The cpu device: its environment is a pure function of the processor."""

import os
import platform

import pytest

from erniecore.builtin.cpu import CpuConfig, CpuDevice, keep_freed_memory, plugin
from erniecore.types import Cluster

AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7763\n"
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\n"
HYGON = "vendor_id : HygonGenuine\n"
ARM = "processor : 0\nBogoMIPS : 50.00\nCPU implementer : 0x41\n"


def device(cpuinfo=AMD, omp="", **config):
    return CpuDevice(CpuConfig(**config), cpuinfo, omp)


@pytest.mark.parametrize(("cpuinfo", "expected"), [(AMD, {"MKL_DEBUG_CPU_TYPE": "5"}), (INTEL, {})])
def test_environment_depends_on_the_vendor(cpuinfo, expected):
    assert device(cpuinfo).environment() == expected


def test_other_vendors_of_x86_count():
    assert device(HYGON).environment() == {"MKL_DEBUG_CPU_TYPE": "5"}


def test_other_architectures_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert device(ARM).environment() == {}


def test_environment_is_the_same_for_any_thread_setting():
    assert device(threads=7).environment() == device(omp="3").environment()


@pytest.mark.parametrize(("omp", "config", "threads"), [("3", {}, 3), ("3", {"threads": 2}, 2), ("nonsense", {}, None)])
def test_threads(omp, config, threads):
    assert device(omp=omp, **config).threads == (threads or len(os.sched_getaffinity(0)))


def test_only_float32():
    assert device().dtypes == {"float32"}


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
