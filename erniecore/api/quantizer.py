"""What a quantizer is written with: layers whose weights are stored in few bits."""

from erniecore.capabilities import QuantizerCapability
from erniecore.plugin import QuantizerPlugin
from erniecore.sections import QuantizerConfig
from erniecore.types import (
    CacheCodec,
    CalibratedModel,
    ExpertLayer,
    MeasuredLayer,
    PackedLayer,
    Projection,
    ProjectionLayer,
    QuantizerState,
    RankGroup,
    ShardableWeights,
    SourcedExperts,
    StoredLayer,
    StoredWeight,
)

__all__ = [
    "CalibratedModel",
    "MeasuredLayer",
    "ProjectionLayer",
    "QuantizerState",
    "StoredLayer",
    "ExpertLayer",
    "SourcedExperts",
    "QuantizerConfig",
    "QuantizerPlugin",
    "QuantizerCapability",
    "CacheCodec",
    "PackedLayer",
    "Projection",
    "RankGroup",
    "ShardableWeights",
    "StoredWeight",
]
