"""For mixture-of-experts models: protocols by which parallel strategies and quantizers find the experts."""

from erniecore.types.experts import (
    BalancedModel,
    ExpertChoices,
    ExpertLayer,
    LoadReduction,
    ReplayedRouter,
    SequenceShard,
    SequenceStatistics,
    SourcedExperts,
    WholeSequences,
)

__all__ = [
    "BalancedModel",
    "ExpertChoices",
    "ExpertLayer",
    "LoadReduction",
    "ReplayedRouter",
    "SequenceShard",
    "SequenceStatistics",
    "SourcedExperts",
    "WholeSequences",
]
