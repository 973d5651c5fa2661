"""For exporter plugins: a trained model with its configuration, tokenizer and weights."""

from erniecore.capabilities import ExporterCapability
from erniecore.sections import ExportConfig
from erniecore.types.model import ModelBundle, StateAdapter, StoredWeight, TensorMap
from erniecore.types.protocols import MeasuredLayer, StoredLayer
from erniecore.types.text import Tokenizer

__all__ = [
    "MeasuredLayer",
    "StoredLayer",
    "ExportConfig",
    "ExporterCapability",
    "ModelBundle",
    "StateAdapter",
    "StoredWeight",
    "TensorMap",
    "Tokenizer",
]
