"""For model plugins: an architecture, the names of its weights, its tokenizer and chat template."""

from erniecore.plugin import ModelPlugin
from erniecore.sections import ModelConfig
from erniecore.types.model import (
    Cache,
    CausalLM,
    Features,
    Layout,
    ModelBundle,
    MultiTokenPredictor,
    Stages,
    StateAdapter,
    TensorMap,
)
from erniecore.types.protocols import ElasticModel, ElasticSizes, RecomputableModel
from erniecore.types.records import Json
from erniecore.types.shape import DecoderShape, LayerShape, VisionShape
from erniecore.types.text import ChatTemplate, Segment, Tokenizer

__all__ = [
    "RecomputableModel",
    "ModelConfig",
    "Cache",
    "CausalLM",
    "ChatTemplate",
    "DecoderShape",
    "ElasticModel",
    "ElasticSizes",
    "Features",
    "Json",
    "LayerShape",
    "Layout",
    "MultiTokenPredictor",
    "ModelBundle",
    "ModelPlugin",
    "Segment",
    "Stages",
    "StateAdapter",
    "TensorMap",
    "Tokenizer",
    "VisionShape",
]
