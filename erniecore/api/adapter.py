"""For adapter plugins: a small trainable addition to a frozen model."""

from erniecore.capabilities import AdapterCapability
from erniecore.plugin import AdapterPlugin
from erniecore.sections import AdapterConfig
from erniecore.types.decoder import Projection, Update
from erniecore.types.experts import ExpertLayer
from erniecore.types.model import Layout, PackedLayer, RankGroup, ShardableWeights
from erniecore.types.protocols import AdaptedModel, AdapterChoice, ProjectionLayer, RateFactors

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
