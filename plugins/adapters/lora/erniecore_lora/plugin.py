"""The plugin objects of the low-rank adapters: one implementation, four sections of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import hookimpl
from erniecore.api.adapter import AdapterCapability, AdapterPlugin, Layout
from erniecore_lora.config import DoraConfig, LoraConfig, LoraPlusConfig, RsLoraConfig, Variant

if TYPE_CHECKING:
    from erniecore.api.method import RunView
    from erniecore_lora.saved import Description


class LoraPlugin(AdapterPlugin):
    """Low-rank adaptation of linear layers."""

    name = "lora"
    summary = "LoRA: a low-rank update is trained, the weights are frozen"
    Config = LoraConfig
    capabilities = frozenset({AdapterCapability.MERGE, AdapterCapability.EMPTY})
    variant: ClassVar[Variant] = Variant()
    factors: ClassVar[Mapping[str, tuple[float, str]]] = {
        "train.learning_rate": (
            10.0,
            "LoRA Without Regret (Schulman et al., 2025): the best rate is ten times that of all weights",
        )
    }

    @hookimpl
    def ernie_adapt_model(self, config: LoraConfig, model: Any) -> Any:
        """Freeze ``model`` and add the updates."""
        from erniecore_lora.build import adapt

        return adapt(model, config, self.variant)

    @hookimpl
    def ernie_adapter_shapes(
        self, config: LoraConfig, shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what would be trained."""
        from erniecore_lora.shapes import trained_shapes

        return trained_shapes(config, shapes, self.variant)

    @hookimpl
    def ernie_adapter_layout(self, config: LoraConfig, layout: Layout) -> Layout:
        """Of a matrix cut by columns B is cut like it, of one cut by rows A; the other factor is whole on every rank, which
        sees a part of its gradient. Lengths of outputs are cut with the outputs, and whole where inputs are cut. Updates of
        experts go with their experts."""
        rules: list[tuple[str, str]] = []
        for pattern, style in layout.rules:
            layer = pattern.rpartition(".")[0]
            styles = {
                "column": ("partial", "last", "first"),
                "row": ("first", "partial", "partial"),
                "expert": ("first", "first", "first"),
            }
            if style in styles:
                names = (f"{layer}.lora.*.{leaf}" for leaf in ("A", "B", "magnitude"))
                rules += zip(names, styles[style], strict=True)
        return replace(layout, rules=(*rules, *layout.rules))

    @hookimpl
    def ernie_save_adapter(self, model: Any, target: Path, base: str) -> Path:
        """Write the PEFT layout."""
        from erniecore_lora.save import save

        return save(model, target, base=base)

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Say before the first step that PEFT will not read what the run leaves."""
        from erniecore_lora.save import unreadable

        why = unreadable(run.model) if run.is_main else ""
        if why:
            run.emit("warning", kind="adapter", message=why)

    @hookimpl
    def ernie_match_adapter(self, directory: Path) -> bool:
        """A PEFT or ERNIEKit directory of this kind of adapter."""
        from erniecore_lora.saved import describe

        found = describe(directory)
        return found is not None and self.owns(found)

    @hookimpl
    def ernie_load_adapter(self, model: Any, directory: Path, name: str) -> Any:
        """Add the saved adapter, not trained, to ``model``; others stay on it."""
        from erniecore_lora.build import load

        return load(model, directory, name)

    def owns(self, found: Description) -> bool:
        """Whether a directory is this plugin's; each is exactly one plugin's."""
        return found.variant == self.variant


class RsLoraPlugin(LoraPlugin):
    """LoRA with rank-stabilized scaling."""

    name = "rslora"
    summary = "rsLoRA: LoRA scaled by alpha / sqrt(rank), for large ranks"
    Config = RsLoraConfig
    variant = Variant(rank_stabilized=True)


class LoraPlusPlugin(LoraPlugin):
    """LoRA with different learning rates for A and B."""

    name = "lora-plus"
    summary = "LoRA+: LoRA with a higher learning rate for B than for A"
    Config = LoraPlusConfig
    factors: ClassVar[Mapping[str, tuple[float, str]]] = {
        "train.learning_rate": (
            2.5,
            "of A; with `adapter.ratio` 16 the geometric mean with that of B is the rate of `lora`",
        )
    }

    def owns(self, found: Description) -> bool:
        """A saved LoRA+ adapter is a LoRA adapter: ``lora`` reads it."""
        return False


class DoraPlugin(LoraPlugin):
    """LoRA with separate magnitudes and directions."""

    name = "dora"
    summary = "DoRA: weights as magnitude and direction, LoRA on the direction"
    Config = DoraConfig
    variant = Variant(magnitudes=True)

    def owns(self, found: Description) -> bool:
        """True for any scaling, if there are magnitudes."""
        return found.variant.magnitudes


lora, rslora, lora_plus, dora = LoraPlugin(), RsLoraPlugin(), LoraPlusPlugin(), DoraPlugin()
