"""What an exporter is written with: a trained model with everything that belongs to it."""

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
