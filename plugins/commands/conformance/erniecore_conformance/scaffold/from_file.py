"""A package from a Python file with plugins (``ernie new plugin --from FILE``): the file, and what makes it a distribution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from erniecore.api import Plugin
from erniecore.api.testing import KINDS
from erniecore_conformance.scaffold.generate import check_name, names_for, rendered


def default_name(file: Path, plugins: Mapping[str, Plugin]) -> str:
    """The plugin's name; of several that of the file."""
    names = [plugin.name for plugin in plugins.values()]
    return names[0] if len(names) == 1 else re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")


def render(file: Path, plugins: Mapping[str, Plugin], name: str) -> dict[str, str]:
    """Path inside the new package -> text of the file.

    Args:
        plugins: name in the file's module -> plugin object. name: of the distribution, behind ``erniecore-``.

    Raises ``UsageError`` for a name that no distribution can have.
    """
    found = list(plugins.items())
    kind = found[0][1].kind
    check_name(kind, name)
    values = names_for(kind, name)
    package = values["package"]
    groups: dict[str, list[tuple[str, str]]] = {}
    for attribute, plugin in found:
        groups.setdefault(KINDS[plugin.kind].group, []).append((plugin.name, f"{package}.plugin:{attribute}"))
    suffixes = [f"_{p.kind}_{re.sub(r'[^a-z0-9]', '_', p.name)}" if len(found) > 1 else "" for _, p in found]
    values |= {
        "name": name if len(found) > 1 else found[0][1].name,
        "main_module": "plugin",
        "about": "; ".join(plugin.summary for _, plugin in found),
        "usage": " ".join(_usage(plugin) for _, plugin in found),
        "points": [{"group": group, "names": names} for group, names in groups.items()],
        "plugins": [
            {"kind": plugin.kind, "name": plugin.name, "suffix": suffix}
            for (_, plugin), suffix in zip(found, suffixes, strict=True)
        ],
    }
    texts = rendered(("common",), values)
    return dict(sorted({**texts, f"{package}/plugin.py": file.read_text(encoding="utf-8")}.items()))


def _usage(plugin: Plugin) -> str:
    flag = KINDS[plugin.kind].flag
    return f"`ernie run … {flag} {plugin.name}`" if flag else f"it is found by its name, `{plugin.name}`"
