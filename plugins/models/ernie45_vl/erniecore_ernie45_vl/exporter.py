"""The exporter ``hf-nested``: the Hugging Face format with the config.json that transformers wants of models that see. Light;
what it writes is imported inside the hook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from erniecore.api import Plugin, hookimpl
from erniecore.api.export import ExportConfig, ExporterCapability
from erniecore.api.model import ModelBundle


class HfNestedExporter(Plugin):
    """As ``hf``; config.json of ERNIE 4.5 VL says the same in nested keys. That of other models is what ``hf`` writes."""

    kind = "exporter"
    name = "hf-nested"
    summary = "as hf, with the nested config.json of ERNIE 4.5 VL that transformers reads"
    capabilities = frozenset({ExporterCapability.INSTALLED_MODEL})
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write, load again, compare. Raises ``CheckpointError`` when the export differs from the model."""
        from erniecore_export.exporting import verify_export

        from erniecore.api.model_files import write_model_files
        from erniecore_ernie45_vl.nesting import nested
        from erniecore_ernie45_vl.plugin import plugin as vl

        is_vl = bundle.architecture.get("model_type") in vl.model_types
        written = replace(bundle, architecture=nested(bundle.architecture)) if is_vl else bundle
        write_model_files(written, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
        verify_export(bundle, target, config.dtype)
        return target


plugin = HfNestedExporter()
