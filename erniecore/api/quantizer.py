"""For quantizer plugins: layers with quantized weights."""

from erniecore.capabilities import QuantizerCapability
from erniecore.plugin import QuantizerPlugin
from erniecore.sections import QuantizerConfig
from erniecore.types.model import CacheCodec, PackedLayer, RankGroup, ShardableWeights, StoredWeight
from erniecore.types.protocols import CalibratedModel, FloatCodes, MeasuredLayer, QuantizerState, StoredLayer

__all__ = [
    "CalibratedModel",
    "MeasuredLayer",
    "FloatCodes",
    "QuantizerState",
    "StoredLayer",
    "QuantizerConfig",
    "QuantizerPlugin",
    "QuantizerCapability",
    "CacheCodec",
    "PackedLayer",
    "RankGroup",
    "ShardableWeights",
    "StoredWeight",
]
