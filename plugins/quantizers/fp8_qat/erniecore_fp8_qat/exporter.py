"""The exporter ``hf-fp8``: the Hugging Face format with FP8 weights. Light; what it writes is imported inside the hook."""

from __future__ import annotations

from pathlib import Path

from erniecore.api import Plugin, hookimpl
from erniecore.api.export import ExportConfig, ExporterCapability
from erniecore.api.model import ModelBundle


class HfFp8Exporter(Plugin):
    """The Hugging Face format with FP8 weights by blocks: for transformers, and offline FP8 in FastDeploy."""

    kind = "exporter"
    name = "hf-fp8"
    summary = "Hugging Face format with FP8 weights by 128x128 blocks, for transformers and FastDeploy"
    capabilities = frozenset({ExporterCapability.INSTALLED_MODEL, ExporterCapability.LOSSY})
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write, check. Raises ``CheckpointError`` when a server would not take it."""
        from erniecore_model_check.rules import require_contract

        from erniecore_fp8_qat.hf_export import write_fp8_files

        write_fp8_files(bundle, target, dtype=config.dtype, max_shard_bytes=config.max_shard_bytes)
        require_contract(target, "hf")
        return target


plugin = HfFp8Exporter()
