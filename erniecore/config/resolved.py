"""resolved.yaml: the settings of a run as one file that reproduces it, each value with its source.

Values are written so that a YAML 1.2 reader gets back exactly what went in; facts about the machine are comments.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from erniecore_catalog.known import installed

import erniecore
from erniecore import kernels, registry
from erniecore.config.compose import LoadedSettings
from erniecore.config.hubs import hub_of
from erniecore.config.settings import values
from erniecore.config.values import scalar
from erniecore.types.run import Cluster


def write_resolved(loaded: LoadedSettings, path: Path, facts: Mapping[str, object] | None = None) -> Path:
    """Write resolved.yaml; ``facts`` are further header lines (they win over :func:`facts_of`).

    The file replaces an older one in one step. ``compose.load(path)`` gives the same settings again.
    """
    from erniecore_system.durable import replace_file

    header = {**facts_of(loaded), **(facts or {})}
    replace_file(path, resolved_text(loaded, header).encode())
    return path


def resolved_text(loaded: LoadedSettings, header: Mapping[str, object]) -> str:
    """The file's content: header comments, then every section."""
    lines = ["# Settings of one run, written by erniecore; `ernie run` on this file repeats it."]
    lines += [f"# {key}: {_one_line(value)}" for key, value in header.items() if value not in ("", None)]
    if loaded.plugin_files:
        files = [{"path": os.path.relpath(f.path), "sha256": f.sha256} for f in loaded.plugin_files]
        lines += ["", f"plugins: {scalar(files)}"]
    previous: tuple[str, ...] = ()
    for path, value in values(loaded.settings):
        if path[0] == "launcher":  # how a run is started is no part of what it computes
            continue
        if path[0] != (previous or ("",))[0]:
            lines.append("")
        shared = _shared(previous[:-1], path[:-1])
        lines += [f"{'  ' * depth}{scalar(path[depth])}:" for depth in range(shared, len(path) - 1)]
        source = _one_line(loaded.provenance.get(".".join(path), "default"))
        if path == ("model", "path") and hub_of(source):  # fetched from there; on another machine again
            value, source = source, f"fetched into {value}"
        lines.append(f"{'  ' * (len(path) - 1)}{scalar(path[-1])}: {scalar(value)}  # {source}")
        previous = path
    return "\n".join(lines) + "\n"


def _shared(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """How many steps two paths have in common at their start."""
    return next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))  # noqa: B905


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def facts_of(loaded: LoadedSettings) -> dict[str, str]:
    """What the header says: versions, environment of the device, git revision, command line."""
    facts = {"erniecore": erniecore.__version__, "python": platform.python_version(), "paddle": _listed(installed())}
    facts["plugins"] = _listed(dict(sorted(distributions(loaded))))
    device = loaded.host.hook.ernie_open_device(config=loaded.settings.device, cluster=Cluster())
    facts["environment"] = " ".join(f"{k}={v}" for k, v in device.environment().items())
    facts["kernels"] = kernels.described(kernels.choose(device.name, loaded.settings.device.kernels))
    facts["seed"] = str(loaded.settings.run.seed)
    facts["git"] = git_revision()
    program, *args = loaded.request.command or ("",)
    facts["command"] = shlex.join([Path(program).name, *args])
    return facts


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def distributions(loaded: LoadedSettings) -> Iterator[tuple[str, str]]:
    """(distribution, version) of every plugin of the run."""
    for kind, value in loaded.plugins.items():
        for plugin in value if isinstance(value, list) else [value]:
            name = loaded.settings.plugins.get(kind, plugin.name)
            entry = registry.find(kind, name)
            yield entry.distribution, entry.version


def git_revision(directory: Path | None = None) -> str:
    """The commit checked out in ``directory``, with ``+changes`` if files differ; empty outside a repository."""
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    commit, changes = "", ""
    for line in done.stdout.splitlines():
        if line.startswith("# branch.oid "):
            commit = line.split()[-1]
        changes = changes if line.startswith("#") else "+changes"
    return "" if commit == "(initial)" else commit + changes
