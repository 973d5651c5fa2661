"""The ``adapter`` section of the settings for low-rank adapters. Says what to add; knows no model."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import field_validator

from erniecore.api import Field
from erniecore.api.adapter import AdapterConfig


class Variant(NamedTuple):
    """What makes one adapter differ from another in its forward pass."""

    rank_stabilized: bool = False
    magnitudes: bool = False


class LinearAdapterConfig(AdapterConfig):
    """What adapters of linear layers share: where they are, and what they start from. Those that also adapt stacks of experts
    describe ``targets`` anew."""

    targets: tuple[str, ...] = Field(
        ("all-linear",),
        description="Layers with an adapter: `attention` (q, k, v, o), `mlp` (gate, up and down of dense layers and shared "
        "experts), `all-linear` or `text` (both), of vision-language models `tower` and `resampler`, or patterns over "
        "layer names such as `q_proj`. Routed experts have no adapter: a preset leaves them out and says so, a pattern of "
        "theirs is refused.",
    )
    path: str = Field(
        "",
        description="Directory of a saved adapter to continue from, with its layers. Empty: a new adapter.",
    )

    def starts_from(self) -> str:
        """The adapter directory to continue from."""
        return self.path

    @field_validator("targets", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """``a,b`` as the command line gives it; a list as files do (behind this it is no longer JSON, where lists are tuples)."""
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",") if word.strip())
        return tuple(value) if isinstance(value, list) else value

    @field_validator("targets")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("name at least one preset or pattern, such as all-linear")
        return value


class LoraConfig(LinearAdapterConfig):
    """y = W x + s B A x with s = alpha / rank; only A and B are trained (arXiv:2106.09685)."""

    rank: int = Field(8, ge=1, description="Rank r of the update B A.")
    alpha: float = Field(
        0.0, ge=0, description="Scaling s = alpha / rank of the update. 0: 2 * rank, which gives s = 2."
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Dropout probability of the inputs of A.",
    )
    targets: tuple[str, ...] = Field(
        ("all-linear",),
        description="Layers with an adapter: `attention` (q, k, v, o), `mlp` (gate, up and down of dense layers, shared and "
        "routed experts), `all-linear` or `text` (both), of vision-language models `tower` and `resampler`, or patterns over "
        "layer names such as `q_proj` or `model.layers.1?.mlp.*`; the routed experts of a layer share one name, as in "
        "`mlp.experts.up_proj`. Embeddings, routers and heads are excluded; layers with `vision` in their name are included "
        "only if a pattern or preset of their own names them.",
    )
    init: Literal["kaiming", "gaussian", "pissa"] = Field(
        "kaiming",
        description="Initialization of A: `kaiming` (uniform, a = sqrt 5) or `gaussian` (normal, 1 / rank), with B = 0. `pissa`: "
        "A and B from the largest singular values of W, which are subtracted from the frozen weight (arXiv:2404.02948). A saved "
        "pissa adapter is an ordinary LoRA adapter of twice the rank.",
    )
    path: str = Field(
        "",
        description="Directory of a saved adapter (PEFT or ERNIEKit) to continue from, with its rank, alpha and targets. Empty: "
        "a new adapter.",
    )

    @property
    def resolved_alpha(self) -> float:
        """alpha, or the default for 0."""
        return self.alpha or 2.0 * self.rank

    @property
    def lr_factors(self) -> dict[str, float]:
        """Pattern over parameter names -> factor of the learning rate."""
        return {}


class RsLoraConfig(LoraConfig):
    """LoRA with s = alpha / sqrt(rank): the size of the update does not depend on the rank (arXiv:2312.03732)."""

    alpha: float = Field(0.0, ge=0, description="Scaling s = alpha / sqrt(rank) of the update. 0: 4.")

    ratio: float = Field(
        1.0, gt=0, description="Ratio of the learning rates of B and A, as in LoRA+; 4 is ERNIEKit's `rslora_plus`."
    )

    @property
    def resolved_alpha(self) -> float:
        """alpha, or the default for 0."""
        return self.alpha or 4.0

    @property
    def lr_factors(self) -> dict[str, float]:
        """A higher learning rate for B, if ``ratio`` is set."""
        return {} if self.ratio == 1 else {"*.B": self.ratio}


class LoraPlusConfig(LoraConfig):
    """LoRA+: B has a higher learning rate than A (arXiv:2402.12354)."""

    ratio: float = Field(16.0, gt=0, description="Ratio of the learning rates of B and A; A has `train.learning_rate`.")

    @property
    def lr_factors(self) -> dict[str, float]:
        """B has a higher learning rate."""
        return {"*.B": self.ratio}


class DoraConfig(LoraConfig):
    """DoRA, magnitude and direction: y = m (W + s B A) x / |W + s B A|, with a magnitude m per output
    (arXiv:2402.09353)."""
