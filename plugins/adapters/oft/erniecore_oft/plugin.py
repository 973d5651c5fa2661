"""The plugin object of the adapter ``oft``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from erniecore_lora.linear_plugin import LinearAdapterPlugin
from erniecore_lora.targets import of_shapes

from erniecore.api import hookimpl
from erniecore.api.adapter import Layout
from erniecore_oft.config import OftConfig
from erniecore_oft.shapes import Blocks, new_blocks


class OftPlugin(LinearAdapterPlugin):
    """Rotates the inputs of linear layers."""

    name = "oft"
    summary = "OFT: inputs of frozen layers are rotated by trained orthogonal blocks"
    Config = OftConfig
    peft_type = "OFT"
    conformance_config: ClassVar[Mapping[str, Any]] = {"block_size": 8}
    factors: ClassVar[Mapping[str, tuple[float, str]]] = {
        "train.learning_rate": (10.0, "a start, the factor of `lora`, with which it was not compared")
    }

    @hookimpl
    def ernie_adapt_model(self, config: OftConfig, model: Any) -> Any:
        """Freeze ``model`` and add the blocks."""
        from erniecore_oft.build import adapt

        return adapt(model, config)

    @hookimpl
    def ernie_adapter_shapes(
        self, config: OftConfig, shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what would be trained."""
        known = of_shapes(shapes)
        if config.path:
            from erniecore_oft.saved import open_saved

            saved = open_saved(config.path)
            blocks: Mapping[Any, Blocks] = saved.blocks(known)
        else:
            blocks = new_blocks(config, known)
        return {f"{target.layer}.oft.default.{target.parameter}.skew": one.shape for target, one in blocks.items()}

    @hookimpl
    def ernie_adapter_layout(self, config: OftConfig, layout: Layout) -> Layout:
        """Before a matrix that is cut by columns the blocks are whole on every rank, which sees a part of their gradient; before
        one that is cut by rows each rank has the blocks of its inputs."""
        rules = [
            (f"{pattern.rpartition('.')[0]}.oft.*.skew", {"column": "partial", "row": "first"}[style])
            for pattern, style in layout.rules
            if style in ("column", "row")
        ]
        return replace(layout, rules=(*rules, *layout.rules))

    @hookimpl
    def ernie_save_adapter(self, model: Any, target: Path, base: str) -> Path:
        """Write the PEFT layout."""
        from erniecore_oft.save import save

        return save(model, target, base=base)

    @hookimpl
    def ernie_load_adapter(self, model: Any, directory: Path, name: str) -> Any:
        """Add the saved adapter, not trained, to ``model``; others stay on it."""
        from erniecore_oft.build import load

        return load(model, directory, name)


plugin = OftPlugin()
