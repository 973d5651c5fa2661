"""The command ``ernie doctor``: prints what is wrong with this machine, its Paddle wheels, devices and plugins, and what to
do about it. The checks are in the other files of this package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.api import Exit, counted
from erniecore.api.command import JsonOption, show, show_json, show_table

if TYPE_CHECKING:
    from erniecore_doctor.findings import Finding

#: columns before the message of a finding
_MESSAGE = 38
_LABELS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


def doctor(
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="This device must work.")] = "",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where runs are written.")] = Path("runs"),
    really_open: Annotated[
        bool, typer.Option("--open", help="Open the device too (cpu if none is named); imports paddle.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--all", help="Also show absent devices.")] = False,
    kernels: Annotated[
        bool,
        typer.Option("--kernels", help="Instead, list the implementations of each operator and which one is used."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Examine this machine: Python, paddle, devices, plugins, disk. Exit 0: no problem; 3: there are problems."""
    if kernels:
        return _kernels(device or "cpu", as_json)
    from erniecore_doctor.examination import examine
    from erniecore_doctor.findings import summary

    findings: list[Finding] = []
    for finding in examine(os.environ, out, device=device, really_open=really_open):
        findings.append(finding)
        if not as_json and (verbose or not _uninteresting(finding)):
            show(*_lines(finding), indent=_MESSAGE)
    counts = summary(findings)
    if as_json:
        show_json({**counts, "findings": [finding.as_json() for finding in findings]})
    else:
        hidden = 0 if verbose else sum(map(_uninteresting, findings))
        more = f"; {counted(hidden, 'absent device')} hidden (--all shows them)" if hidden else ""
        done = f"{counted(counts['problems'], 'problem')}, {counted(counts['warnings'], 'warning')}, {counts['ok']} ok"
        show(done + more, indent=2)
    return int(Exit.ENVIRONMENT if counts["problems"] else Exit.OK)


def _kernels(device: str, as_json: bool) -> int:
    """``--kernels``: the implementation of each operator that a run on ``device`` uses, and why."""
    from erniecore.api.installation import load
    from erniecore_doctor.kernels import candidates, described

    load("device", device)
    rows, warnings = candidates(device, {})
    if as_json:
        found = [row.as_json() for row in rows]
        show_json({"device": device, "implementations": found, "warnings": list(warnings), "remarks": list(warnings)})
    else:
        show_table(("", "operator", "implementation", "devices", "dtypes", "why"), [described(row) for row in rows])
        hint = f"* chosen on {device}; `ernie run … device.kernels.OPERATOR=NAME` chooses another"
        show(*warnings, hint, indent=2)
    return int(Exit.OK)


def _uninteresting(finding: Finding) -> bool:
    """Whether the finding is about an absent device that was not asked for, which is the usual case."""
    from erniecore_doctor.devices import ABSENT

    return finding.area == "devices" and finding.level == "ok" and finding.message.startswith(ABSENT)


def _lines(finding: Finding) -> list[str]:
    lines = [f"{_LABELS[finding.level]:<8} {f'{finding.area}: {finding.name}':<28} {finding.message}"]
    return [*lines, f"{'':<8} {'':<28} {finding.remedy}"] if finding.remedy else lines
