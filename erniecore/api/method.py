"""What a method plugin is written with: how records become samples, and the loss over them."""

from erniecore.capabilities import MethodCapability
from erniecore.engine.scoring.differences import with_differences
from erniecore.plugin import MethodPlugin
from erniecore.sections import MethodConfig, ReferenceUse
from erniecore.types import (
    IGNORE,
    Batch,
    CausalLM,
    Completion,
    Encoder,
    Features,
    LossOutput,
    Objective,
    Origin,
    Record,
    RewardFunction,
    RunView,
    Sample,
    Segment,
    Tokenizer,
)

__all__ = [
    "MethodConfig",
    "MethodPlugin",
    "ReferenceUse",
    "with_differences",
    "MethodCapability",
    "Completion",
    "Batch",
    "CausalLM",
    "Encoder",
    "Features",
    "IGNORE",
    "LossOutput",
    "Objective",
    "Origin",
    "Record",
    "RunView",
    "Sample",
    "RewardFunction",
    "Segment",
    "Tokenizer",
]
