"""Vendors' command-line tools: which are there, and what they say of driver and cards. Each is given a few seconds, for
a driver that hangs is one of the things to find out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from erniecore.doctor.findings import Finding, ok, problem, remark

SECONDS = 10.0
#: how the tools word the driver's version: nvidia-smi and ixsmi, xpu-smi, mx-smi; npu-smi heads its table with its own
_DRIVER = re.compile(
    r"(?:driver|kmd|kernel mode driver)[ _]?version\s*[:=]\s*v?(\d+(?:\.\w+)+)|^\W*npu-smi\s+v?(\d+(?:\.\w+)+)",
    re.IGNORECASE | re.MULTILINE,
)
_RUNTIME = re.compile(r"CUDA Version\s*:\s*(\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Cards:
    """What a tool says. ``driver`` and ``runtime`` (the CUDA version that the driver runs) are empty where it does not;
    ``names``: one per card, where the tool lists them."""

    tool: str
    driver: str = ""
    runtime: str = ""
    names: tuple[str, ...] = ()


class Silent(Exception):
    """A tool that is there, but hangs or fails; its words are the message."""


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


def read_cards(command: str, seconds: float = SECONDS) -> Cards | None:
    """Ask a vendor's tool (``nvidia-smi``, ``npu-smi info``); None when it is not installed. Raises :class:`Silent`."""
    words = command.split()
    try:
        text = ask(words, seconds)
        names = _names(words[0], seconds)
    except FileNotFoundError:
        return None
    driver, runtime = _DRIVER.search(text), _RUNTIME.search(text)
    version = (driver[1] or driver[2]) if driver else ""
    return Cards(words[0], version, runtime[1] if runtime else "", names)


def _names(tool: str, seconds: float) -> tuple[str, ...]:
    """Cards by name. Only NVIDIA's tool and the one made after it list them in a form that is meant for programs."""
    if tool not in ("nvidia-smi", "ixsmi"):
        return ()
    try:
        lines = ask((tool, "--query-gpu=name", "--format=csv,noheader"), seconds).splitlines()
    except Silent:
        return ()
    return tuple(line.strip() for line in lines if line.strip())


def tool_finding(device: str, cards: Cards | Silent | None, command: str) -> Finding | None:
    """What to say of a vendor's tool; nothing where it is not installed."""
    if cards is None:
        return None
    if isinstance(cards, Silent):
        fix = f"run `{command}` yourself; the driver may need to be loaded or the machine restarted"
        return problem("devices", f"{device} driver", f"{command.split()[0]}: {cards}", fix)
    if not cards.driver:
        return remark("devices", f"{device} driver", f"{cards.tool} answers, but its driver version was not understood")
    many = f", {len(cards.names)} x {cards.names[0]}" if cards.names else ""
    runs = f", CUDA up to {cards.runtime}" if cards.runtime else ""
    return ok("devices", f"{device} driver", f"{cards.driver}{runs}{many}")
