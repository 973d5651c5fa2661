"""The base class of plugin objects.

A plugin object is what an entry point names: light (its module imports neither paddle nor numpy),
stateless, with a ``Config`` and methods marked ``@hookimpl``. What it builds is imported inside the hooks.
"""

from __future__ import annotations

from typing import ClassVar

import pluggy

from erniecore.config.section import Field, Section

#: Marks a method of a plugin as the implementation of a hook (see ``hookspecs.py``).
hookimpl = pluggy.HookimplMarker("erniecore")


class EmptyConfig(Section):
    """The section of a plugin that has nothing to set."""


class ScorerConfig(Section):
    """The section of a scorer that has nothing but its weight; every scorer's section derives from it."""

    weight: float = Field(1.0, description="Factor of this score in the sum that is learned from; negative: a penalty.")


class Plugin:
    """Base of all plugins.

    Attributes:
        kind: a key of ``kinds.KINDS``.
        name: the entry point's name, lower-case kebab; a point between digits is allowed where a run has one plugin of the kind.
        summary: one line for ``ernie plugins``.
        Config: the plugin's own section of the settings.
        capabilities: what conformance checks may rely on; a missing capability skips a check, with a reason.
        expected_failures: conformance checks that must fail, with the reason.
        needs: abilities of the device that the plugin cannot do without, such as ``"fp8"``
            (``erniecore.accelerators.profile.ABILITIES``); a device that lacks one is refused by name.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    summary: ClassVar[str]
    Config: ClassVar[type[Section]] = EmptyConfig
    capabilities: ClassVar[frozenset[str]] = frozenset()
    expected_failures: ClassVar[dict[str, str]] = {}
    needs: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        return f"<{self.kind} plugin {self.name!r}>"


class ModelPlugin(Plugin):
    """Base of model plugins: also says which ``model_type`` of a ``config.json`` it reads."""

    kind = "model"
    model_types: ClassVar[tuple[str, ...]] = ()
    #: package (of the plugin) whose ``*.yaml`` files are the recipes that ``model.size`` can name
    recipes: ClassVar[str] = ""
