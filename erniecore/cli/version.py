"""``ernie version``: the version, or everything that a bug report should say. No names of hosts, users or paths."""

from __future__ import annotations

import os
import platform
from typing import Annotated

import typer
from erniecore_catalog.known import installed

import erniecore
from erniecore import registry
from erniecore.cli import render
from erniecore.cli.options import JsonOption
from erniecore.plugin_entry import OK

#: distributions whose versions matter for a bug, besides the paddle wheels
LIBRARIES = (
    "numpy",
    "pydantic",
    "pydantic-settings",
    "pluggy",
    "stevedore",
    "typer",
    "rich",
    "PyYAML",
    "jinja2",
    "safetensors",
    "sentencepiece",
    "regex",
)


def version(
    bug_report: Annotated[bool, typer.Option("--bug-report", help="Everything that a bug report should say.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the version of erniecore, or all that a bug report needs."""
    found = facts() if bug_report else {"erniecore": erniecore.__version__}
    if as_json:
        render.show_json(found)
    elif not bug_report:
        render.show(f"erniecore {erniecore.__version__}")
    else:
        render.show("```text", *(f"{name:<18} {value}" for name, value in found.items()), "```")


def facts() -> dict[str, str]:
    """Versions of everything that takes part, and the machine in general terms."""
    found = {
        "erniecore": erniecore.__version__,
        "python": f"{platform.python_version()} {platform.python_implementation()}",
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }
    found |= installed() or {"paddle": "not installed"}
    found |= installed(LIBRARIES)
    for e in registry.all_entries():
        status = "" if e.status == OK else f", {e.status}"
        text = f"{e.name} ({e.distribution} {e.version}{status})"
        found[e.kind] = f"{found[e.kind]}, {text}" if e.kind in found else text
    return found
