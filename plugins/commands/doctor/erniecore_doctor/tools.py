"""Vendors' command-line tools: which are installed, and what they report about driver and accelerators. Each has a timeout
of a few seconds, because a hanging driver is one of the things to detect.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from erniecore_doctor.findings import Finding, ok, problem, warning

SECONDS = 10.0
#: how the tools word the driver's version: nvidia-smi and ixsmi, xpu-smi, mx-smi; npu-smi heads its table with its own
_DRIVER = re.compile(
    r"(?:driver|kmd|kernel mode driver)[ _]?version\s*[:=]\s*v?(\d+(?:\.\w+)+)|^\W*npu-smi\s+v?(\d+(?:\.\w+)+)",
    re.IGNORECASE | re.MULTILINE,
)
_RUNTIME = re.compile(r"CUDA Version\s*:\s*(\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Accelerators:
    """What a tool reports. ``driver`` and ``runtime`` (the CUDA version that the driver supports) are empty where it does not;
    ``names``: one per accelerator, where the tool lists them."""

    tool: str
    driver: str = ""
    runtime: str = ""
    names: tuple[str, ...] = ()


class Silent(Exception):
    """A tool that is installed, but hangs or fails; the message is its output."""


def ask(command: Sequence[str], seconds: float = SECONDS) -> str:
    """What a tool prints.

    Raises:
        FileNotFoundError: it is not on the PATH. Silent: it failed or did not answer in time.
    """
    program = shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(command[0])
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise Silent(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise Silent(error.strerror or str(error)) from error
    if done.returncode:
        said = next((line for line in (done.stderr + done.stdout).splitlines() if line.strip()), "")
        raise Silent(f"exit {done.returncode}: {said.strip()}" if said else f"exit {done.returncode}")
    return done.stdout


def read_accelerators(command: str, seconds: float = SECONDS) -> Accelerators | None:
    """Ask a vendor's tool (``nvidia-smi``, ``npu-smi info``); None when it is not installed. Raises :class:`Silent`."""
    arguments = command.split()
    try:
        text = ask(arguments, seconds)
        names = _names(arguments[0], seconds)
    except FileNotFoundError:
        return None
    driver, runtime = _DRIVER.search(text), _RUNTIME.search(text)
    version = (driver[1] or driver[2]) if driver else ""
    return Accelerators(arguments[0], version, runtime[1] if runtime else "", names)


def _names(tool: str, seconds: float) -> tuple[str, ...]:
    """Names of the accelerators. Only NVIDIA's tool and the one modeled on it list them in a machine-readable format."""
    if tool not in ("nvidia-smi", "ixsmi"):
        return ()
    try:
        lines = ask((tool, "--query-gpu=name", "--format=csv,noheader"), seconds).splitlines()
    except Silent:
        return ()
    return tuple(line.strip() for line in lines if line.strip())


def tool_finding(device: str, accelerators: Accelerators | Silent | None, command: str) -> Finding | None:
    """The finding about a vendor's tool; None where it is not installed."""
    if accelerators is None:
        return None
    if isinstance(accelerators, Silent):
        fix = f"run `{command}` yourself; the driver may need to be loaded or the machine restarted"
        return problem("devices", f"{device} driver", f"{command.split()[0]}: {accelerators}", fix)
    if not accelerators.driver:
        return warning(
            "devices", f"{device} driver", f"{accelerators.tool} answers, but its driver version was not understood"
        )
    many = f", {len(accelerators.names)} x {accelerators.names[0]}" if accelerators.names else ""
    runs = f", CUDA up to {accelerators.runtime}" if accelerators.runtime else ""
    return ok("devices", f"{device} driver", f"{accelerators.driver}{runs}{many}")
