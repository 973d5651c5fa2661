"""Checks of plugins that are broken, incompatible or of another version than the core, and of missing optional packages.
Imports plugin objects, which must be light; one that is not gets a warning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

from erniecore.api import PluginError, counted, install_command
from erniecore.api.installation import CONFLICT, all_entries, find, harm, known, load, load_object
from erniecore_doctor.findings import Finding, ok, problem, warning

#: optional distribution -> (what it is for, the one of ours that needs it and brings it)
OPTIONAL: Mapping[str, tuple[str, str]] = {
    "pyarrow": ("reading .parquet and .arrow files", "erniecore-columnar"),
    "tensorboardX": ("callback `tensorboard`", "erniecore-tensorboard"),
    "visualdl": ("callback `visualdl`", "erniecore-visualdl"),
}


def plugin_findings() -> Iterator[Finding]:
    """One finding per plugin with a fault, and one that counts the others."""
    good = 0
    for entry in all_entries():
        name = f"{entry.kind} {entry.name}"
        heavy = "paddle" in sys.modules
        if found := harm(entry):
            fix = f"pip uninstall {entry.distribution}"
            yield problem("plugins", name, f"{found} ({entry.origin()}); it is left out unless it is named", fix)
            continue
        try:
            if entry.kind == "command":
                load_object(find(entry.kind, entry.name))
            else:
                load(entry.kind, f"{entry.distribution}:{entry.name}")
        except PluginError as error:
            fix = error.fix or error.next or install_command(entry.distribution, option="--force-reinstall")
            yield problem("plugins", name, f"{error.message} ({entry.origin()})", fix)
            continue
        if entry.status == CONFLICT:
            fix = f"write {entry.distribution}:{entry.name}, or uninstall the others"
            yield warning(
                "plugins", name, f"another distribution has a plugin of the same name ({entry.origin()})", fix
            )
        elif not heavy and "paddle" in sys.modules:
            fix = f"ask the authors of {entry.distribution} to move heavy imports into the hooks"
            yield warning("plugins", name, "imports paddle when it is loaded, which delays every command", fix)
        else:
            good += 1
    yield ok("plugins", "usable", f"{counted(good, 'plugin')} can be loaded")


def version_findings(core: str = "") -> Iterator[Finding]:
    """erniecore's own distributions share one version; another version was left behind by an update."""
    core, ours = core or metadata.version("erniecore"), set(known().values())
    found = {entry.distribution: entry.version for entry in all_entries() if entry.distribution in ours}
    for name, version in sorted(found.items()):
        if version != core:
            message = f"{name} is {version}, erniecore is {core}"
            yield warning("plugins", name, message, install_command(f"{name}=={core}"))


def optional_findings(packages: Mapping[str, tuple[str, str]] = OPTIONAL) -> Iterator[Finding]:
    """Optional packages, and what needs them."""
    for name, (purpose, home) in packages.items():
        try:
            yield ok("packages", name, f"{metadata.version(name)}: {purpose}")
        except metadata.PackageNotFoundError:
            yield warning("packages", name, f"not installed; {purpose} is unavailable", install_command(home))
