"""The plugin object of the adapter ``vera``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from erniecore_lora.linear_plugin import LinearAdapterPlugin
from erniecore_lora.targets import choose_linear, of_shapes

from erniecore.api import hookimpl
from erniecore.api.adapter import Layout
from erniecore_vera.config import VeraConfig

#: style of a layer's weight -> those of d and b
_STYLES = {"column": {"d": "partial", "b": "first"}, "row": {"d": "partial", "b": "partial"}}


class VeraPlugin(LinearAdapterPlugin):
    """Vector-based random matrix adaptation."""

    name = "vera"
    summary = "VeRA: trained vectors around random matrices that all layers share"
    Config = VeraConfig
    peft_type = "VERA"
    # thirty steps of plain descent move little through vectors of a tenth
    conformance_config: ClassVar[Mapping[str, Any]] = {"d_initial": 1.0}
    factors: ClassVar[Mapping[str, tuple[float, str]]] = {
        "train.learning_rate": (10.0, "a start, the factor of `lora`, with which it was not compared")
    }

    @hookimpl
    def ernie_adapt_model(self, config: VeraConfig, model: Any) -> Any:
        """Freeze ``model`` and add the vectors."""
        from erniecore_vera.build import adapt

        return adapt(model, config)

    @hookimpl
    def ernie_adapter_shapes(
        self, config: VeraConfig, shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what would be trained."""
        known, ranks = of_shapes(shapes), {}
        if config.path:
            from erniecore_vera.saved import open_saved

            ranks = {target: vectors.d.size for target, vectors in open_saved(config.path).vectors(known).items()}
        else:
            ranks = dict.fromkeys(choose_linear(known, config.targets, self.name), config.rank)
        found: dict[str, tuple[int, ...]] = {}
        for target, rank in ranks.items():
            name = f"{target.layer}.vera.default.{target.parameter}"
            found[f"{name}.d"], found[f"{name}.b"] = (rank,), (target.shape[-1],)
        return found

    @hookimpl
    def ernie_adapter_layout(self, config: VeraConfig, layout: Layout) -> Layout:
        """d is whole on every rank, which sees a part of its gradient; so is b where W is divided by inputs. Where it is divided
        by outputs, so is b."""
        rules = [
            (f"{pattern.rpartition('.')[0]}.vera.*.{vector}", vectors[vector])
            for pattern, style in layout.rules
            if (vectors := _STYLES.get(style))
            for vector in ("d", "b")
        ]
        return replace(layout, rules=(*rules, *layout.rules))

    @hookimpl
    def ernie_save_adapter(self, config: VeraConfig, model: Any, target: Path, base: str) -> Path:
        """Write the PEFT layout."""
        from erniecore_vera.save import save

        return save(model, target, base=base, projections=config.save_projection)

    @hookimpl
    def ernie_load_adapter(self, model: Any, directory: Path, name: str) -> Any:
        """Add the saved adapter, not trained, to ``model``; others stay on it."""
        from erniecore_vera.build import load

        return load(model, directory, name)


plugin = VeraPlugin()
