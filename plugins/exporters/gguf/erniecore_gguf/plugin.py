"""The exporter ``gguf``: light; what it writes is imported inside the hook."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from erniecore.api import Field, Plugin, Section, hookimpl
from erniecore.api.export import ExporterCapability, ModelBundle


class GgufConfig(Section):
    """Options of the exporter ``gguf``."""

    dtype: Literal["", "float32", "float16", "bfloat16", "q8_0", "q4_0"] = Field(
        "",
        description="Type of the weights; empty: as they are stored. Norms, biases and routers are always float32; "
        "q4_0 keeps the matrix that gives the logits as q8_0.",
    )


class GgufExporter(Plugin):
    """One GGUF file: weights, sizes, tokenizer and chat template."""

    kind = "exporter"
    name = "gguf"
    summary = "a GGUF file for llama.cpp, with tokenizer and chat template: float32, float16, bfloat16, q8_0, q4_0"
    capabilities = frozenset(
        {ExporterCapability.INSTALLED_MODEL, ExporterCapability.STREAMED, ExporterCapability.LOSSY}
    )
    Config = GgufConfig

    @hookimpl
    def ernie_export(self, config: GgufConfig, bundle: ModelBundle, target: Path) -> Path:
        """Raises ``UsageError`` for what llama.cpp does not compute, and ``CheckpointError``."""
        from erniecore_gguf.export import write_gguf

        write_gguf(bundle, target, config.dtype)
        return target


plugin = GgufExporter()
