"""For mixture-of-experts models: protocols by which parallel strategies and quantizers find the experts."""

from erniecore.types.experts import (
    BalancedModel,
    ExpertLayer,
    LoadReduction,
    SequenceShard,
    SequenceStatistics,
    SourcedExperts,
    WholeSequences,
)

__all__ = [
    "BalancedModel",
    "ExpertLayer",
    "LoadReduction",
    "SequenceShard",
    "SequenceStatistics",
    "SourcedExperts",
    "WholeSequences",
]
