"""Building block: opens a model directory or a checkpoint outside of a run. Imports Paddle when it opens one."""

from erniecore.engine.loading import open_model
from erniecore.engine.models.adapters import (
    adapter_directory,
    adapter_plugin,
    base_notes,
    base_of,
    load_adapter,
    named_directory,
    origin_of,
)
from erniecore.engine.models.bundles import load_bundle, locate, open_device, open_located
from erniecore.engine.models.stored import open_stored

__all__ = [
    "adapter_directory",
    "adapter_plugin",
    "base_of",
    "load_adapter",
    "load_bundle",
    "locate",
    "named_directory",
    "open_device",
    "open_located",
    "open_model",
    "open_stored",
    "origin_of",
    "base_notes",
]
