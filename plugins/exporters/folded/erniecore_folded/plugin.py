"""The exporter ``hf-folded``: the Hugging Face format of a model whose residual stream is scaled, with the scaling folded into
the weights, for programs that do not know it. Light; what it writes is imported inside the hook."""

from __future__ import annotations

from pathlib import Path

from erniecore.api import Field, Plugin, hookimpl
from erniecore.api.export import ExportConfig, ExporterCapability
from erniecore.api.model import ModelBundle


class FoldedConfig(ExportConfig):
    """Section of the exporter ``hf-folded``."""

    tolerance: float = Field(
        0.01,
        gt=0,
        description="Refuse an export whose log-probabilities differ from the model's by more on 64 random tokens. The epsilon "
        "of the norms cannot be folded: it counts more in a stream that was scaled down.",
    )


class FoldedExporter(Plugin):
    """As ``hf``; what GPAS and LayerNorm scaling do is in the weights. Other models are written as ``hf`` does."""

    kind = "exporter"
    name = "hf-folded"
    summary = "as hf, with GPAS gates and LayerNorm scaling folded into the weights of ERNIE 4.5"
    capabilities = frozenset({ExporterCapability.INSTALLED_MODEL, ExporterCapability.LOSSY})
    Config = FoldedConfig

    @hookimpl
    def ernie_export(self, config: FoldedConfig, bundle: ModelBundle, target: Path) -> Path:
        """Fold, compare, write. Raises ``CheckpointError`` for what cannot be folded."""
        from erniecore_export.exporting import verify_export

        from erniecore.api.model_files import write_model_files
        from erniecore_folded.folding import folded, is_scaled

        written = folded(bundle, config.tolerance) if is_scaled(bundle.architecture) else bundle
        write_model_files(written, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
        verify_export(written, target, config.dtype)
        return target


plugin = FoldedExporter()
