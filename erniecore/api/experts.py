"""What a mixture of experts is written with, so that parallel strategies and quantizers know its layers."""

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
