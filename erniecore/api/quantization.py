"""Building block: quantizes a loaded model and writes it. Imports Paddle."""

from erniecore_checkpoint.directories import WRITING, check_target, claimed, publish

from erniecore.config.packed_base import quantizer_of
from erniecore.engine.fingerprint import model_digest
from erniecore.engine.models.bundles import described as with_provenance
from erniecore.engine.models.quantized import apply, attach_finished, calibrated, check_packed
from erniecore.engine.models.quantized_files import write_by_layer, write_quantized

__all__ = [
    "WRITING",
    "apply",
    "attach_finished",
    "calibrated",
    "check_packed",
    "check_target",
    "claimed",
    "model_digest",
    "publish",
    "quantizer_of",
    "write_by_layer",
    "with_provenance",
    "write_quantized",
]
