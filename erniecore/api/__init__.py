"""The public interface for plugins, in layers: one module per kind of plugin, such as ``erniecore.api.method``. This module has
the names that plugins of every kind use: the plugin base, hooks, settings, errors and operators. Nothing else is public.

Names are resolved on first use, so that the help of a command imports little. The surface with its signatures is frozen in
``tests/architecture/api_surface.txt``, so a change of it is a visible diff. Python users need ``erniecore`` only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erniecore_catalog import install_command
    from erniecore_ops import functions as ops
    from erniecore_system.units import counted

    from erniecore.capabilities import Capability
    from erniecore.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DeviceUnavailable,
        EnvironmentFault,
        ErnieError,
        Exit,
        MemoryFault,
        NumericsError,
        PluginError,
        Problem,
        RowError,
        UsageError,
        nearest,
        shorten,
    )
    from erniecore.plugin import (
        EmptyConfig,
        Plugin,
        hookimpl,
    )
    from erniecore.sections import Field, Section
    from erniecore.types.records import Json

#: name -> (module, attribute or None for the module itself)
_LAZY: dict[str, tuple[str, str | None]] = {
    "install_command": ("erniecore_catalog", "install_command"),
    "ops": ("erniecore_ops.functions", None),
}

__all__ = [
    "Capability",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceUnavailable",
    "EmptyConfig",
    "EnvironmentFault",
    "ErnieError",
    "Exit",
    "Field",
    "Json",
    "MemoryFault",
    "NumericsError",
    "Plugin",
    "PluginError",
    "Problem",
    "RowError",
    "Section",
    "UsageError",
    "counted",
    "hookimpl",
    "install_command",
    "nearest",
    "ops",
    "shorten",
]


#: where the other names are, the cheapest to import first
_LIGHT = (
    "erniecore.errors",
    "erniecore.types.records",
    "erniecore_system.units",
    "erniecore.capabilities",
    "erniecore.sections",
    "erniecore.plugin",
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'erniecore.api' has no attribute {name!r}")
    if name not in _LAZY:
        return next(getattr(found, name) for found in map(import_module, _LIGHT) if hasattr(found, name))
    module_name, attribute = _LAZY[name]
    module = import_module(module_name)
    return module if attribute is None else getattr(module, attribute)
