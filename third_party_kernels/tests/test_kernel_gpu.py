"""The GPU kernels where triton is installed: compiled for a GPU that is not there, and run in Triton's interpreter on
tensors of torch. And the set of them that erniecore sees, which needs neither.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
from ernie_third_party_kernels import gpu, gpu_cases
from ernie_third_party_kernels.triton_set import kernels

TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def selftest(tmp_path, *words, **environ):
    command = [sys.executable, "-m", "ernie_third_party_kernels.selftest", *words]
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **environ}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@TRITON
@pytest.mark.parametrize("arch", ["80", "90"])
def test_all_are_compiled_for_an_accelerator_that_is_not_here(tmp_path, arch):
    done = selftest(tmp_path, "--compile", "--arch", arch)
    assert done.returncode == 0, done.stdout + done.stderr
    for operator in gpu_cases.OPERATORS:
        assert f"compiled for sm_{arch}: {operator}." in done.stdout or f"not for sm_{arch}: {operator}" in done.stdout


@TRITON
@TORCH
def test_all_compute_what_numpy_computes(tmp_path):
    done = selftest(tmp_path, "--device", "interpreter", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == len(list(gpu_cases.cases()))


@TRITON
@TORCH
def test_the_bench_runs_every_operator(tmp_path):
    done = selftest(tmp_path, "--device", "interpreter", "--bench", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the numbers mean nothing" in done.stdout
    for word in ("attention backward", "grouped product", "loss", "nf4", "FP8 with Hadamard"):
        assert word in done.stdout


def test_without_an_accelerator_it_says_so(tmp_path):
    done = selftest(tmp_path, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "sees no CUDA device" in done.stdout


def test_the_interpreter_has_to_be_asked_for(tmp_path):
    assert selftest(tmp_path, "--device", "interpreter", TRITON_INTERPRET="0").returncode == 2


def test_erniecore_sees_them_for_cuda_and_never_takes_them_by_itself():
    assert kernels.devices == {"cuda"}
    assert "not run" in kernels.on_request
    assert bool(kernels.fault()) == (importlib.util.find_spec("triton") is None)


def test_cases_have_every_operator():
    assert {case.operator for case in gpu_cases.cases()} == set(gpu_cases.OPERATORS)


@pytest.mark.parametrize(("n", "power"), [(1, 1), (2, 2), (3, 4), (129, 256)])
def test_powers_of_two(n, power):
    assert gpu.power_of_two(n) == power
