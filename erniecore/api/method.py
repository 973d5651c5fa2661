"""For method plugins: encode records as samples, and compute the loss over them."""

from erniecore.capabilities import MethodCapability
from erniecore.engine.scoring.differences import with_differences
from erniecore.plugin import MethodPlugin
from erniecore.sections import MethodConfig, ReferenceUse
from erniecore.types.model import CausalLM, Features
from erniecore.types.records import Origin, Record
from erniecore.types.run import LossOutput, Objective, RunView
from erniecore.types.samples import IGNORE, Batch, Encoder, ExpectingEncoder, Sample
from erniecore.types.text import Segment, Tokenizer

__all__ = [
    "MethodConfig",
    "MethodPlugin",
    "ReferenceUse",
    "with_differences",
    "MethodCapability",
    "Batch",
    "CausalLM",
    "Encoder",
    "ExpectingEncoder",
    "Features",
    "IGNORE",
    "LossOutput",
    "Objective",
    "Origin",
    "Record",
    "RunView",
    "Sample",
    "Segment",
    "Tokenizer",
]
