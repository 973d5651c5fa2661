"""Every implementation of every operator, and why a run on a device takes it or does not. Reads the registry; loads no
kernel and no paddle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from erniecore.api import install_command
from erniecore.api.installation import (
    OPERATORS,
    REFERENCE,
    KernelSet,
    choose_kernels,
    entries,
    installed_kernels,
    kernels_for,
)
from erniecore_doctor.findings import Finding, ok, warning


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of one operator.

    Attributes:
        operator: key of ``OPERATORS``. name: of the kernel set, or ``reference``.
        devices, dtypes: that it is for; empty for the reference, which takes all.
        chosen: whether a run on the device takes it. reason: why, or why not.
    """

    operator: str
    name: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    chosen: bool
    reason: str

    def as_json(self) -> dict[str, Any]:
        """A JSON object, with the functions that the operator consists of."""
        return {**asdict(self), "functions": list(OPERATORS[self.operator])}


def findings(device: str) -> Iterator[Finding]:
    """Whether a run on ``device`` takes kernels, and what to do about those that it cannot take."""
    sets, _ = installed_kernels()
    here = {name: found for name, found in sets.items() if device in found.devices and not found.on_request}
    home = kernels_for(device)
    if not here and home:
        message = f"no kernels for {device} are installed; the reference operators run, which are slower"
        yield warning("kernels", device, message, install_command(home))
    owners = {entry.name: entry.distribution for entry in entries("kernels")}
    for name, found in here.items():
        if fault := found.fault():
            again = install_command(owners[name], option="--force-reinstall")
            yield warning("kernels", name, f"{fault}; the reference operators run", f"with a C++ compiler: {again}")
        else:
            yield ok("kernels", name, f"{len(found.operators)} of {len(OPERATORS)} operators on {device}")


def candidates(device: str, asked: Mapping[str, str]) -> tuple[list[Candidate], tuple[str, ...]]:
    """All implementations that are installed, operator by operator, and warnings about kernel sets that cannot be used.

    Args:
        device: name of the device plugin that a run would use. asked: its setting ``kernels``.
    Raises:
        ConfigError: what ``choose_kernels`` refuses.
    """
    choice = choose_kernels(device, asked)
    sets, _ = installed_kernels()
    faults = {name: found.fault() for name, found in sets.items() if device in found.devices}
    rows = []
    for operator in OPERATORS:
        chosen = choice.names[operator]
        for name, found in sets.items():
            if operator in found.operators:
                why = _why(name, found, chosen, device, faults.get(name, ""), operator in asked)
                devices, dtypes = tuple(sorted(found.devices)), tuple(found.operators[operator])
                rows.append(Candidate(operator, name, devices, dtypes, name == chosen, why))
        reason = _why_reference(chosen, operator in asked)
        rows.append(Candidate(operator, REFERENCE, (), (), chosen == REFERENCE, reason))
    return rows, choice.warnings


def _why(name: str, found: KernelSet, chosen: str, device: str, fault: str, asked: bool) -> str:
    if name == chosen:
        return "the settings name it" if asked else f"the kernel that is installed for {device}"
    if device not in found.devices:
        return f"not for {device}"
    if fault:
        return fault
    if asked:
        return f"the settings name {chosen}"
    return f"only where the settings name it: {found.on_request}"


def _why_reference(chosen: str, asked: bool) -> str:
    if chosen == REFERENCE:
        return "the settings name it" if asked else "no kernel can run here"
    return f"{chosen} is there; runs the calls that it does not take"


def described(row: Candidate) -> tuple[str, ...]:
    """A row of the table on the console; the chosen implementation is marked."""
    devices, dtypes = ", ".join(row.devices), ", ".join(row.dtypes)
    return "*" if row.chosen else "", row.operator, row.name, devices or "all", dtypes or "all", row.reason
