"""Plugins that are broken, incompatible or of another version than the core, and optional packages that are missing.
Imports plugin objects, which are light; one that is not is told of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

import erniecore
from erniecore import registry
from erniecore.doctor.findings import Finding, ok, problem, remark
from erniecore.errors import PluginError
from erniecore.known import known

#: optional distribution -> (what it is for, what installs it)
OPTIONAL: Mapping[str, tuple[str, str]] = {
    "pyarrow": ("reading .parquet and .arrow files", "pip install 'erniecore[data]'"),
    "matplotlib": ("loss.png beside the report", "pip install 'erniecore[plot]'"),
    "visualdl": ("the callback visualdl", "pip install 'erniecore[visualdl]' visualdl"),
}


def plugin_findings() -> Iterator[Finding]:
    """One finding per plugin with a fault, and one that counts the others."""
    good = 0
    for entry in registry.all_entries():
        name = f"{entry.kind} {entry.name}"
        heavy = "paddle" in sys.modules
        try:
            if entry.kind == "command":
                registry.load_object(registry.find(entry.kind, entry.name))
            else:
                registry.load(entry.kind, f"{entry.distribution}:{entry.name}")
        except PluginError as error:
            fix = error.fix or error.next or f"pip install --force-reinstall {entry.distribution}"
            yield problem("plugins", name, f"{error.message} ({entry.origin()})", fix)
            continue
        if entry.status == registry.CONFLICT:
            fix = f"write {entry.distribution}:{entry.name}, or uninstall the others"
            yield remark("plugins", name, f"another distribution brings one of the same name ({entry.origin()})", fix)
        elif not heavy and "paddle" in sys.modules:
            fix = f"tell the authors of {entry.distribution}: heavy imports belong into the hooks"
            yield remark("plugins", name, "imports paddle as soon as it is loaded: every command waits for it", fix)
        else:
            good += 1
    yield ok("plugins", "usable", f"{good} plugins load")


def version_findings(core: str = erniecore.__version__) -> Iterator[Finding]:
    """Our own distributions have one version; another one beside the core was forgotten in an update."""
    ours = set(known().values())
    found = {entry.distribution: entry.version for entry in registry.all_entries() if entry.distribution in ours}
    for name, version in sorted(found.items()):
        if version != core:
            message = f"{name} is {version}, erniecore is {core}"
            yield remark("plugins", name, message, f"pip install '{name}=={core}'")


def optional_findings(packages: Mapping[str, tuple[str, str]] = OPTIONAL) -> Iterator[Finding]:
    """Packages that some features want."""
    for name, (purpose, install) in packages.items():
        try:
            yield ok("packages", name, f"{metadata.version(name)}: {purpose}")
        except metadata.PackageNotFoundError:
            yield remark("packages", name, f"not installed: no {purpose}", install)
