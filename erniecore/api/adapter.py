"""What an adapter plugin is written with: a small trainable addition to a frozen model."""

from erniecore.capabilities import AdapterCapability
from erniecore.plugin import AdapterPlugin
from erniecore.sections import AdapterConfig
from erniecore.types import (
    AdaptedModel,
    AdapterChoice,
    ExpertLayer,
    Layout,
    PackedLayer,
    Projection,
    ProjectionLayer,
    RankGroup,
    RateFactors,
    ShardableWeights,
    Update,
)

__all__ = [
    "AdaptedModel",
    "AdapterChoice",
    "ProjectionLayer",
    "RateFactors",
    "ExpertLayer",
    "AdapterConfig",
    "AdapterPlugin",
    "AdapterCapability",
    "Layout",
    "PackedLayer",
    "Projection",
    "RankGroup",
    "ShardableWeights",
    "Update",
]
