"""The exporters of the core: ``hf``, the public layout that transformers and servers read, ``hf-fp8``, the same with FP8
weights, ``fastdeploy``, also of quantised models, and ``safetensors``, our own structured names. What is written is compared
with the model, or checked against the contract of its readers, before it gets its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from erniecore.config.section import Field, Section
from erniecore.errors import CheckpointError
from erniecore.plugin import Plugin, hookimpl
from erniecore.types import ModelBundle


class ExportConfig(Section):
    """Options of both exporters."""

    dtype: Literal["", "float32", "bfloat16", "float16"] = Field(
        "", description="Dtype of the stored weights; empty: as they are in memory. Router weights stay float32."
    )
    max_shard_bytes: int = Field(5 * 1000**3, ge=1, description="Larger weights are cut into shards of this size.")


class HfExporter(Plugin):
    """Public layout ('-PT'): config.json, safetensors, tokenizer, chat template, provenance."""

    kind = "exporter"
    name = "hf"
    summary = "public safetensors layout for transformers and servers; verified bit for bit"
    capabilities = frozenset({"installed-model"})
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write, load again, compare. Raises ``CheckpointError`` when the export differs from the model."""
        from erniecore.engine.exporting.export import verify_export
        from erniecore.engine.models.model_files import write_model_files

        write_model_files(bundle, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
        verify_export(bundle, target, config.dtype)
        return target


class HfFp8Exporter(Plugin):
    """The public layout with FP8 weights by blocks: for transformers, and offline FP8 in FastDeploy."""

    kind = "exporter"
    name = "hf-fp8"
    summary = "public layout with FP8 weights by 128x128 blocks, for transformers and FastDeploy"
    capabilities = frozenset({"installed-model", "lossy"})
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write, check. Raises ``CheckpointError`` when a server would not take it."""
        from erniecore.engine.exporting.fp8_export import write_fp8_files

        write_fp8_files(bundle, target, dtype=config.dtype, max_shard_bytes=config.max_shard_bytes)
        return _checked(target, "hf")


class FastDeployExporter(Plugin):
    """What FastDeploy loads: the public layout of a model, or the form of its codes."""

    kind = "exporter"
    name = "fastdeploy"
    summary = "for FastDeploy: models as they are, and those of wint8, wint4, wint4-8, fp8-qat, fp8-block"
    #: ``packed``: takes models whose weights are codes
    capabilities = frozenset({"installed-model", "packed"})
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write, check. Raises ``UsageError`` for a form that FastDeploy does not load, and ``CheckpointError``."""
        from erniecore.engine.exporting.export import verify_export
        from erniecore.engine.exporting.fastdeploy_export import write_packed
        from erniecore.engine.models.model_files import write_model_files
        from erniecore.engine.models.quantized import is_packed

        if is_packed(bundle.model):
            write_packed(bundle, target, dtype=config.dtype, max_shard_bytes=config.max_shard_bytes)
        else:
            write_model_files(bundle, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
            verify_export(bundle, target, config.dtype)
        return _checked(target, "fastdeploy")


def _checked(target: Path, contract: str) -> Path:
    from erniecore.engine.exporting.serving_contract import check_directory

    problems = check_directory(target, contract)
    if problems:
        text = "the export breaks the contract with servers: " + "; ".join(map(str, problems[:5]))
        raise CheckpointError(text, code="ERN-K030")
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
hf_fp8 = HfFp8Exporter()
fastdeploy = FastDeployExporter()
flat = FlatExporter()
