"""What an exporter is written with: a trained model with everything that belongs to it."""

from erniecore.builtin.exporters import ExportConfig
from erniecore.capabilities import ExporterCapability
from erniecore.types import MeasuredLayer, ModelBundle, StateAdapter, StoredLayer, StoredWeight, TensorMap, Tokenizer

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
