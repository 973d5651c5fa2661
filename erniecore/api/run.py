"""Building block: opens a model directory or a checkpoint outside of a run. Imports Paddle when it opens one."""

from erniecore.config.selection import plugin_for_directory
from erniecore.engine.fingerprint import tree_digest
from erniecore.engine.loading import open_model
from erniecore.engine.models.adapters import (
    adapter_directory,
    adapter_plugin,
    base_difference,
    base_notes,
    base_of,
    load_adapter,
    named_directory,
    origin_of,
    tokenizer_home,
)
from erniecore.engine.models.bundles import (
    Opened,
    described_by,
    left_alone,
    load_bundle,
    open_device,
    open_located,
    read_bundle,
    stored_dtype,
)
from erniecore.engine.models.located import Located, locate

__all__ = [
    "Located",
    "Opened",
    "described_by",
    "left_alone",
    "plugin_for_directory",
    "read_bundle",
    "stored_dtype",
    "adapter_directory",
    "adapter_plugin",
    "base_difference",
    "base_of",
    "load_adapter",
    "load_bundle",
    "locate",
    "named_directory",
    "open_device",
    "open_located",
    "open_model",
    "origin_of",
    "base_notes",
    "tokenizer_home",
    "tree_digest",
]
