"""The exporters ``hf``, the Hugging Face format that transformers and servers read, and ``safetensors``, our own
structured names. What is written is compared with the model before it gets its name.
"""

from __future__ import annotations

from pathlib import Path

from erniecore.api import Plugin, hookimpl
from erniecore.api.export import ExportConfig, ExporterCapability, ModelBundle


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
        from erniecore.api.model_files import write_model_files
        from erniecore_export.exporting import verify_export

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
        from erniecore.api.model_files import write_structured

        write_structured(bundle, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
        return target


hf = HfExporter()
flat = FlatExporter()
