"""What is under test: a plugin object with the facts of its entry point. Calls hooks the way a run does.

A plugin can help its checks with optional members (all plain data or light functions):

* ``conformance_config``: mapping, settings for fields of ``Config`` that have no default.
* ``conformance_architecture()`` of a model plugin: a tiny architecture; otherwise its recipe ``tiny`` is used.
* ``conformance_media(architecture)`` of a model plugin that reads media: two or more rows of one length, each its ids, which
  begin with text, and further inputs of the model by name, numpy arrays that are joined along their first axis; pixels are
  floats from 0 to 1.
* ``examples`` of a format plugin: rows of its own, as parsed JSON.
* ``conformance_file(folder)`` of a reader: writes a file of a few rows that it reads into an empty folder; its path.
* ``conformance_corpus(folder)`` of a corpus plugin: writes a small corpus of token ids from 0 to at most 255 into an empty
  folder, and returns the source as a user would name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import pluggy

from erniecore.api import Plugin, Section
from erniecore.api.testing import all_specifications
from erniecore_conformance.expect import CheckFailed

#: Seconds that a probe in its own process may take before it counts as hanging.
PROBE_LIMIT = 300.0


def resolve(target: str) -> Any:
    """What ``package.module:attribute`` names; ``package.module:Class()`` makes an instance (mutants)."""
    module, _, attribute = target.partition(":")
    found = getattr(import_module(module), attribute.removesuffix("()"))
    return found() if attribute.endswith("()") else found


class Command(Plugin):
    """Entry points of kind ``command`` name a typer app or a function; this gives it the members of a plugin."""

    kind = "command"
    app: Any

    @classmethod
    def of(cls, app: Any, name: str) -> Command:
        """The plugin for ``app``."""
        commands = [command.callback for command in getattr(app, "registered_commands", ())]
        documented = [app] if not commands else commands[:1]
        texts = [getattr(getattr(app, "info", None), "help", None), *(getattr(d, "__doc__", None) for d in documented)]
        text = next((t.strip() for t in texts if isinstance(t, str) and t.strip()), "")
        summary = text.partition("\n")[0].rstrip(".")
        plugin: Command = type("Command", (cls,), {"name": name, "summary": summary, "__module__": __name__})()
        plugin.app = app
        return plugin


@dataclass(frozen=True)
class Subject:
    """A plugin and what its entry point says about it.

    Attributes:
        plugin: the object that the entry point names.
        kind, name: of the entry point (the plugin's own attributes may disagree: that is checked).
        target: ``package.module:attribute``.
        requires: the distribution's ``Requires-Dist`` lines; ``None`` for plugins of the core itself, and of a file.
    """

    plugin: Plugin
    kind: str
    name: str
    target: str
    requires: tuple[str, ...] | None = ("erniecore>=0.1,<0.2",)

    @classmethod
    def installed(cls, kind: str, name: str) -> Subject:
        """The plugin that ``kind`` and ``name`` select; raises the registry's errors."""
        from importlib.metadata import distribution

        from erniecore.api.testing import find, load, load_object

        entry = find(kind, name)
        plugin = Command.of(load_object(entry), entry.name) if kind == "command" else load(kind, name)
        requires = None
        if entry.distribution != "erniecore" and not entry.is_file:
            requires = tuple(distribution(entry.distribution).requires or ())
        return cls(plugin, kind, entry.name, entry.target, requires)

    @classmethod
    def at(cls, target: str, **facts: Any) -> Subject:
        """The plugin at ``package.module:attribute``, installed or not; ``facts`` replace what it says itself."""
        plugin = resolve(target)
        if facts.get("kind") == "command":
            plugin = Command.of(plugin, facts.get("name", "command"))
        return cls(plugin, **{"kind": plugin.kind, "name": plugin.name, "target": target, **facts})

    def config(self, **values: Any) -> Section:
        """The plugin's section with its defaults, ``conformance_config`` and ``values``."""
        return self.plugin.Config(**{**getattr(self.plugin, "conformance_config", {}), **values})

    def implements(self, hook: str) -> bool:
        """Whether the plugin has an implementation of ``hook``."""
        return hasattr(getattr(self.plugin, hook, None), "erniecore_impl")

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call one hook through pluggy, as a run does; raises ``CheckFailed`` when it is not implemented."""
        if not self.implements(hook):
            raise CheckFailed(f"{hook} is not implemented")
        return getattr(self._hooks, hook)(**arguments)

    @cached_property
    def _hooks(self) -> Any:
        manager = pluggy.PluginManager("erniecore")
        for specifications in all_specifications():
            manager.add_hookspecs(specifications)
        manager.register(self.plugin, self.name)
        return manager.hook

    @cached_property
    def probe(self) -> dict[str, Any]:
        """What a process that imported no plugin before sees of it (see ``probe.py``); one process for all checks."""
        return run_probe({"action": "look", "target": self.target, "kind": self.kind, "name": self.name})


def run_probe(request: dict[str, Any], limit: float = PROBE_LIMIT) -> dict[str, Any]:
    """Send ``request`` to ``erniecore_conformance.probe`` in a process that has imported no plugin and sees the same
    ``sys.path``."""
    from erniecore_conformance.probing import ask

    return ask(request, limit)
