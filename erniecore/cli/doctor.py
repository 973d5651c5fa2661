"""``ernie doctor``: what is wrong with this machine, its paddle, its devices and plugins, and what to do about it.
Prints; what is looked at is in ``erniecore/doctor``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erniecore.cli import render
from erniecore.cli.options import JsonOption
from erniecore.errors import Exit

if TYPE_CHECKING:
    from erniecore.doctor.findings import Finding

_MARKS = {"ok": "ok", "remark": "remark", "problem": "PROBLEM"}


def doctor(
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="This device must work.")] = "",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where runs are written.")] = Path("runs"),
    really_open: Annotated[
        bool, typer.Option("--open", help="Open the device too (cpu if none is named); imports paddle.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--all", help="Also show devices that are simply not here.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Instead: the implementations of each operator, and which is chosen.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Examine this machine: Python, paddle, devices, plugins, disk. Exit 0: no problem; 3: there are problems."""
    if kernels:
        return _kernels(device or "cpu", as_json)
    from erniecore.doctor.examination import examine
    from erniecore.doctor.findings import summary

    findings: list[Finding] = []
    for finding in examine(os.environ, out, device=device, really_open=really_open):
        findings.append(finding)
        if not as_json and (verbose or not _uninteresting(finding)):
            render.show(*_lines(finding))
    counts = summary(findings)
    if as_json:
        render.show_json({**counts, "findings": [finding.as_json() for finding in findings]})
    else:
        hidden = 0 if verbose else sum(map(_uninteresting, findings))
        more = f"; {hidden} devices are not here (--all shows them)" if hidden else ""
        render.show(f"{counts['problems']} problems, {counts['remarks']} remarks, {counts['ok']} ok{more}")
    return int(Exit.ENVIRONMENT if counts["problems"] else Exit.OK)


def _kernels(device: str, as_json: bool) -> int:
    """``--kernels``: what a run on ``device`` computes with, and why not with something else."""
    from erniecore import registry
    from erniecore.doctor.kernels import candidates, table

    registry.load("device", device)
    rows, remarks = candidates(device, {})
    if as_json:
        found = [row.as_json() for row in rows]
        render.show_json({"device": device, "implementations": found, "remarks": list(remarks)})
    else:
        render.show(
            *table(rows), *remarks, f"* chosen on {device}; `ernie run … device.kernels.OPERATOR=NAME` chooses another"
        )
    return int(Exit.OK)


def _uninteresting(finding: Finding) -> bool:
    """A device that nobody asked for and that is not there: the rule, not the exception."""
    from erniecore.doctor.devices import ABSENT

    return finding.area == "devices" and finding.level == "ok" and finding.message.startswith(ABSENT)


def _lines(finding: Finding) -> list[str]:
    lines = [f"{_MARKS[finding.level]:<8} {f'{finding.area}: {finding.name}':<28} {finding.message}"]
    return [*lines, f"{'':<8} {'':<28} {finding.remedy}"] if finding.remedy else lines
