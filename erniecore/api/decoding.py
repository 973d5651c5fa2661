"""Building block: describes a decoding step of a model as a ``DecoderPlan`` of layers. Imports Paddle."""

from erniecore.engine.models.lowering import computes_as, projection_of, without_hooks
from erniecore.types.decoder import (
    CompactEmbedding,
    DecoderBlock,
    DecoderPlan,
    DecodesWithRanks,
    Planned,
    Projection,
    RoutedExperts,
)
from erniecore.types.protocols import ProjectionLayer

__all__ = [
    "CompactEmbedding",
    "DecoderBlock",
    "DecoderPlan",
    "DecodesWithRanks",
    "Planned",
    "Projection",
    "ProjectionLayer",
    "RoutedExperts",
    "computes_as",
    "projection_of",
    "without_hooks",
]
