"""Every installed device plugin: can it be opened, and if not, why and what does its vendor say to install. What is
asked without paddle is only what is plain from packages and tools; ``opened`` really opens, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from erniecore import registry
from erniecore.accelerators import AcceleratorPlugin
from erniecore.doctor.findings import Finding, ok, problem, remark
from erniecore.doctor.tools import Cards, Silent, read_cards
from erniecore.errors import DeviceUnavailable
from erniecore.plugin import Plugin
from erniecore.types import Cluster, Device

#: a vendor's library may hang where its driver is not well
OPEN_SECONDS = 180.0
#: how the message begins for a device that nobody asked for and that is not there
ABSENT = "not here"


def device_of(plugin: Plugin) -> Device:
    """The plugin's device with default settings, not opened."""
    hook = getattr(plugin, "ernie_open_device")  # noqa: B009 - not every plugin has this hook
    device: Device = hook(config=plugin.Config(), cluster=Cluster())
    return device


def monitors() -> dict[str, str]:
    """Device -> the vendor's tool, of the accelerators that are installed."""
    found = registry.loadable("device")
    return {plugin.name: plugin.profile.monitor for plugin in found if isinstance(plugin, AcceleratorPlugin)}


def tools(commands: Mapping[str, str]) -> dict[str, Cards | Silent | None]:
    """What each vendor's tool says."""
    answers: dict[str, Cards | Silent | None] = {}
    for name, command in commands.items():
        try:
            answers[name] = read_cards(command)
        except Silent as silence:
            answers[name] = silence
    return answers


def preflight_finding(name: str, device: Device, cards: Cards | Silent | None, *, wanted: bool) -> Finding:
    """Whether the device could be opened, from what is installed.

    ``wanted``: the user named it, or its cards are there: then what is missing is a problem or at least worth saying.
    """
    check = getattr(device, "preflight", None)
    try:
        if check is not None:
            check()
    except DeviceUnavailable as error:
        text = f"{error.message.partition(': ')[2] or error.message}" + (
            f" ({error.found or error.expected})" if error.found or error.expected else ""
        )
        if wanted:
            return problem("devices", name, text, error.fix)
        if isinstance(cards, Cards):
            return remark("devices", name, f"its driver is here, but {text}", error.fix)
        return Finding("devices", name, "ok", f"{ABSENT}: {text}", error.fix)
    return ok("devices", name, "its packages are installed; --open tries it" if check is not None else "always there")


def environment_findings(name: str, device: Device, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that the device will set, and those that are set to something else already."""
    wanted = device.environment()
    other = {key: environ[key] for key, value in wanted.items() if key in environ and environ[key] != value}
    unset = {key: value for key, value in wanted.items() if key not in environ}
    for key, value in other.items():
        fix = f"unset {key}, or know why it is set: a value of yours is never changed"
        yield remark("environment", key, f"is {value!r}; device {name} would use {wanted[key]!r}", fix)
    if unset:
        listed = " ".join(f"{key}={value}" for key, value in unset.items())
        yield ok("environment", name, f"will be set when the device is opened: {listed}")


def opened(name: str, seconds: float = OPEN_SECONDS) -> Finding:
    """Open the device in a process of its own; imports paddle there."""
    command = [sys.executable, "-m", "erniecore.doctor.opening", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return problem("devices", f"{name} opened", f"no answer within {seconds:g} s", "restart its driver")
    line = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        fix = f"python -m erniecore.doctor.opening {name} shows everything that it says"
        return problem("devices", f"{name} opened", f"the process died (exit {done.returncode}): {said}", fix)
    if "facts" in answer:
        return ok("devices", f"{name} opened", ", ".join(f"{k} {v}" for k, v in answer["facts"].items()))
    return problem("devices", f"{name} opened", answer["message"], answer["fix"])
