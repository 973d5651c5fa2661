"""The exporter ``fastdeploy``: light; what it writes is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import Json, Plugin, hookimpl
from erniecore.api.export import ExportConfig, ExporterCapability, ModelBundle

if TYPE_CHECKING:
    from erniecore_model_check.rules import Rule


class FastDeployExporter(Plugin):
    """What FastDeploy loads: the Hugging Face format of a model, or the layout for its quantized weights."""

    kind = "exporter"
    name = "fastdeploy"
    summary = "for FastDeploy: text and image models as they are, or in wint8, wint4, wint4-8, fp8-qat, fp8-block"
    capabilities = frozenset({ExporterCapability.INSTALLED_MODEL, ExporterCapability.PACKED})
    Config = ExportConfig

    @hookimpl
    def ernie_export(self, config: ExportConfig, bundle: ModelBundle, target: Path) -> Path:
        """Write, check. Raises ``UsageError`` for a scheme that FastDeploy does not load, and ``CheckpointError``."""
        from erniecore_export.exporting import verify_export
        from erniecore_model_check.rules import require_contract

        from erniecore.api.model_files import is_packed, write_model_files
        from erniecore_fastdeploy.export import check_plain, write_packed
        from erniecore_fastdeploy.vision import for_server

        check_plain(bundle.architecture)
        bundle = for_server(bundle)
        if is_packed(bundle.model):
            write_packed(bundle, target, dtype=config.dtype, max_shard_bytes=config.max_shard_bytes)
        else:
            write_model_files(bundle, target, max_shard_bytes=config.max_shard_bytes, dtype=config.dtype)
            verify_export(bundle, target, config.dtype)
        require_contract(target, self.name)
        return target

    @hookimpl
    def ernie_contract_rules(self, architecture: Json) -> Sequence[Rule]:
        """The rules of the layout that config.json announces."""
        from erniecore_fastdeploy.contract import rules_for

        return rules_for(architecture)


plugin = FastDeployExporter()
