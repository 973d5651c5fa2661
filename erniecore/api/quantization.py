"""Building block: quantizes a loaded model and writes it. Imports Paddle."""

from erniecore.checkpoint.directories import check_target
from erniecore.config.packed_base import quantizer_of
from erniecore.engine.models.bundles import described as with_provenance
from erniecore.engine.models.quantized import apply, calibrated, check_packed
from erniecore.engine.models.quantized_files import write_quantized

__all__ = [
    "apply",
    "calibrated",
    "check_packed",
    "check_target",
    "quantizer_of",
    "with_provenance",
    "write_quantized",
]
