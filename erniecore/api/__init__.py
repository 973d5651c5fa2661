"""Everything that plugins, examples and tests of plugins may import; nothing else of the core is public.

Every name is resolved on first use, so that a command whose help is asked for imports little. The surface with its
signatures is frozen in ``tests/architecture/api_surface.txt``, so a change of it is a visible diff.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erniecore_catalog import install_command
    from erniecore_ops import functions as ops

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
    from erniecore.types.model import Layout, ModelBundle, StateAdapter, TensorMap
    from erniecore.types.records import Conversation, Document, Json, Message, Origin, Preference, Record
    from erniecore.types.run import Cluster, Device, LossOutput, Objective, ParallelPlan, RunView
    from erniecore.types.samples import IGNORE, Batch, Encoder, Sample
    from erniecore.types.shape import DecoderShape
    from erniecore.types.text import Tokenizer
    from erniecore.units import counted

#: name -> (module, attribute or None for the module itself)
_LAZY: dict[str, tuple[str, str | None]] = {
    "install_command": ("erniecore_catalog", "install_command"),
    "ops": ("erniecore_ops.functions", None),
}

__all__ = [
    "IGNORE",
    "Batch",
    "Capability",
    "CheckpointError",
    "Cluster",
    "ConfigError",
    "Conversation",
    "DataError",
    "DecoderShape",
    "Device",
    "DeviceUnavailable",
    "Document",
    "EmptyConfig",
    "Encoder",
    "EnvironmentFault",
    "ErnieError",
    "Exit",
    "Field",
    "Json",
    "Layout",
    "LossOutput",
    "MemoryFault",
    "Message",
    "ModelBundle",
    "NumericsError",
    "Objective",
    "Origin",
    "ParallelPlan",
    "Plugin",
    "PluginError",
    "Preference",
    "Problem",
    "Record",
    "RowError",
    "RunView",
    "Sample",
    "Section",
    "StateAdapter",
    "TensorMap",
    "Tokenizer",
    "UsageError",
    "counted",
    "hookimpl",
    "install_command",
    "nearest",
    "ops",
    "shorten",
]


#: where the other names are, the cheapest to import first
_TYPES = ("records", "samples", "shape", "text", "model", "run")
_LIGHT = (
    "erniecore.errors",
    *(f"erniecore.types.{subject}" for subject in _TYPES),
    *(f"erniecore.{name}" for name in ("units", "capabilities", "sections", "plugin")),
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'erniecore.api' has no attribute {name!r}")
    if name not in _LAZY:
        return next(getattr(found, name) for found in map(import_module, _LIGHT) if hasattr(found, name))
    module_name, attribute = _LAZY[name]
    module = import_module(module_name)
    return module if attribute is None else getattr(module, attribute)
