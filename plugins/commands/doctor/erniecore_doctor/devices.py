"""Checks of every installed device plugin: whether it can be opened, and if not, why, and what its vendor says to install.
Without paddle only packages and tools are checked; ``opened`` opens the device in a subprocess.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from erniecore_accelerators import AcceleratorPlugin

from erniecore.api import DeviceUnavailable
from erniecore.api.device import Device
from erniecore.api.installation import loadable
from erniecore_doctor.findings import Finding, ok, problem, warning
from erniecore_doctor.tools import Accelerators, Silent, read_accelerators

#: a vendor's library may hang when its driver is broken
OPEN_SECONDS = 180.0
#: prefix of the message about an absent device that was not asked for
ABSENT = "not here"


def monitors() -> dict[str, str]:
    """Device -> the vendor's tool, of the accelerators that are installed."""
    found = loadable("device")
    return {plugin.name: plugin.profile.monitor for plugin in found if isinstance(plugin, AcceleratorPlugin)}


def tools(commands: Mapping[str, str]) -> dict[str, Accelerators | Silent | None]:
    """The output of each vendor's tool, parsed."""
    reports: dict[str, Accelerators | Silent | None] = {}
    for name, command in commands.items():
        try:
            reports[name] = read_accelerators(command)
        except Silent as silence:
            reports[name] = silence
    return reports


def preflight_finding(
    name: str, device: Device, accelerators: Accelerators | Silent | None, *, wanted: bool
) -> Finding:
    """Whether the device could be opened, from what is installed.

    ``wanted``: the user named it: then what is missing is a problem. If only its driver is found, it is a warning.
    """
    try:
        device.preflight()
    except DeviceUnavailable as error:
        text = f"{error.message.partition(': ')[2] or error.message}" + (
            f" ({error.found or error.expected})" if error.found or error.expected else ""
        )
        if wanted:
            return problem("devices", name, text, error.fix)
        if isinstance(accelerators, Accelerators):
            return warning("devices", name, f"its driver is here, but {text}", error.fix)
        return Finding("devices", name, "ok", f"{ABSENT}: {text}", error.fix)
    return ok("devices", name, "always available" if device.is_host else "its packages are installed; --open tries it")


def environment_findings(name: str, device: Device, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that the device will set, and those that are set to something else already."""
    wanted = device.environment()
    other = {key: environ[key] for key, value in wanted.items() if key in environ and environ[key] != value}
    unset = {key: value for key, value in wanted.items() if key not in environ}
    for key, value in other.items():
        fix = f"unset {key}, unless it is set on purpose: erniecore never overrides it"
        yield warning("environment", key, f"is {value!r}; device {name} would use {wanted[key]!r}", fix)
    if unset:
        listed = " ".join(f"{key}={value}" for key, value in unset.items())
        yield ok("environment", name, f"will be set when the device is opened: {listed}")


def opened(name: str, seconds: float = OPEN_SECONDS) -> Finding:
    """Open the device in a subprocess, which imports paddle."""
    command = [sys.executable, "-m", "erniecore_doctor.opening", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return problem("devices", f"{name} opened", f"no answer within {seconds:g} s", "restart its driver")
    line = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        fix = f"python -m erniecore_doctor.opening {name} shows everything that it says"
        return problem("devices", f"{name} opened", f"the process died (exit {done.returncode}): {said}", fix)
    if "facts" in answer:
        return ok("devices", f"{name} opened", ", ".join(f"{k} {v}" for k, v in answer["facts"].items()))
    return problem("devices", f"{name} opened", answer["message"], answer["fix"])
