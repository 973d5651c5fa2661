"""Vendors' tools, played by small programs on the PATH."""

import pytest
from erniecore_doctor.tools import Accelerators, Silent, read_accelerators, tool_finding

NVIDIA = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a program on the PATH: ``tool(name, body of a shell script)``."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name, body):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    return write


def test_nvidia_driver_cuda_and_gpus_are_read(tool):
    listed = "echo 'NVIDIA H100 80GB HBM3'; echo 'NVIDIA H100 80GB HBM3'; exit"
    tool("nvidia-smi", f'[ "$#" -gt 0 ] && {{ {listed}; }}\ncat <<"E"\n{NVIDIA}E')
    names = ("NVIDIA H100 80GB HBM3",) * 2
    assert read_accelerators("nvidia-smi") == Accelerators("nvidia-smi", "550.54.15", "12.4", names)


@pytest.mark.parametrize(
    ("command", "text", "driver"),
    [
        ("npu-smi info", "| npu-smi 23.0.3                   Version: 23.0.3        |", "23.0.3"),
        ("xpu-smi", "| XPU-SMI               Driver Version: 5.0.21.21    XPU-RT Version: 5.0 |", "5.0.21.21"),
        ("mx-smi", "mx-smi  version: 2.1.12\n| KMD Version: 2.15.9 |", "2.15.9"),
    ],
)
def test_driver_versions_of_other_vendors(tool, command, text, driver):
    tool(command.split()[0], f"cat <<'E'\n{text}\nE")
    assert read_accelerators(command).driver == driver


def test_a_tool_that_is_not_there_is_no_news(tool):
    assert read_accelerators("nvidia-smi") is None
    assert tool_finding("cuda", None, "nvidia-smi") is None


def test_a_tool_that_hangs_is_given_up(tool):
    tool("nvidia-smi", "exec sleep 60")
    with pytest.raises(Silent, match="no answer"):
        read_accelerators("nvidia-smi", seconds=0.2)


def test_a_tool_that_fails_is_quoted(tool):
    tool("nvidia-smi", 'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the driver"; exit 9')
    with pytest.raises(Silent, match="exit 9: NVIDIA-SMI has failed"):
        read_accelerators("nvidia-smi")


def test_a_silent_tool_is_a_problem():
    found = tool_finding("cuda", Silent("no answer within 10 s"), "nvidia-smi")
    assert (found.level, found.name) == ("problem", "cuda driver")


def test_an_answer_that_is_not_understood_is_a_warning(tool):
    tool("ixsmi", "echo hello")
    assert tool_finding("iluvatar", read_accelerators("ixsmi"), "ixsmi").level == "warning"
