"""Settings of the adapter ``vera``."""

from __future__ import annotations

from erniecore_lora.config import LinearAdapterConfig

from erniecore.api import Field

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
