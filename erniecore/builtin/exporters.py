"""The exporters of the core: ``hf``, the public layout that transformers and servers read, and ``safetensors``, our own
structured names. What is written is compared with the model before it gets its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from erniecore.capabilities import ExporterCapability
from erniecore.plugin import Plugin, hookimpl
from erniecore.sections import Field, Section
from erniecore.types.model import ModelBundle


class ExportConfig(Section):
    """Options of exporters that write weights."""

    dtype: Literal["", "float32", "bfloat16", "float16"] = Field(
        "", description="Dtype of the stored weights; empty: as they are in memory. Router weights stay float32."
    )
    max_shard_bytes: int = Field(5 * 1000**3, ge=1, description="Larger weights are cut into shards of this size.")


class HfExporter(Plugin):
    """Public layout ('-PT'): config.json, safetensors, tokenizer, chat template, provenance."""

    kind = "exporter"
    name = "hf"
    summary = "public safetensors layout for transformers and servers; verified bit for bit"
    capabilities = frozenset({ExporterCapability.INSTALLED_MODEL})
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write, load again, compare. Raises ``CheckpointError`` when the export differs from the model."""
        from erniecore.engine.exporting.export import verify_export
        from erniecore.engine.models.model_files import write_model_files

        write_model_files(bundle, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
        verify_export(bundle, target, config.dtype)
        return target


class FlatExporter(Plugin):
    """Our own names and shapes (matrices [in, out], stacked experts): ``weights*.safetensors`` and config.json."""

    kind = "exporter"
    name = "safetensors"
    summary = "flat safetensors with erniecore's own tensor names and shapes, and config.json"
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write the tensors under their structured names."""
        from erniecore.engine.models.model_files import write_structured

        write_structured(bundle, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
        return target


hf = HfExporter()
flat = FlatExporter()
