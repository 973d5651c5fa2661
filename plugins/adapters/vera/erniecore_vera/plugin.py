"""The plugin object of the adapter ``vera``, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from erniecore_lora.config import LinearAdapterConfig
from erniecore_lora.linear_plugin import LinearAdapterPlugin
from erniecore_lora.targets import choose_linear, of_shapes

from erniecore.api import ConfigError, Field, hookimpl
from erniecore.api.adapter import Layout

#: what PEFT does with its seeds, which are 64 bits of which the generator takes half
_SEEDS = 2**32


class VeraConfig(LinearAdapterConfig):
    """y = W x + b ∘ B (d ∘ A x): only the vectors d and b are trained; A and B are random, frozen and shared by all layers
    (arXiv:2310.11454)."""

    rank: int = Field(256, ge=1, description="Rows of A and columns of B, and thus values of each d.")
    d_initial: float = Field(
        0.1, description="What d begins with; b begins with 0, so that the model starts unchanged."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability of the inputs of A.")
    seed: int = Field(
        0,
        ge=0,
        lt=_SEEDS,
        description="Of A and B: PEFT makes the same numbers of it (`projection_prng_key`). It does not depend on `run.seed`.",
    )
    save_projection: bool = Field(
        True,
        description="Whether the saved adapter has A and B; without them it is small, and readers make them of the seed.",
    )


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
        """Raises ``ConfigError``: rows and columns of A and B are numbered over whole matrices."""
        message = "vera needs whole matrices; leave parallel.tensor and parallel.expert at 1, or use lora or oft"
        raise ConfigError.at("adapter", message)

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
