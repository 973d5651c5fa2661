"""Building block: writes and verifies model directories. Imports Paddle."""

from erniecore_checkpoint.directories import write_directory_manifest, write_json
from erniecore_checkpoint.tensors import LONG_NAMES, SHORT_NAMES, Array, same_bits
from erniecore_checkpoint.tensors import Tensor as StoredTensor

from erniecore.config.packed_base import QUANTIZATION as QUANTIZATION_KEY
from erniecore.engine.arrays import all_finite, dtype_name, to_numpy
from erniecore.engine.models.config_json import has_score
from erniecore.engine.models.model_files import (
    memory_dtype,
    provenance,
    public_config,
    public_tensors,
    save_model_directory,
    stored_as,
    write_assets,
    write_model_files,
    write_structured,
    write_weights,
)
from erniecore.engine.models.quantized import codec_of, is_packed
from erniecore.engine.models.random_weights import random_tensors
from erniecore.engine.models.score_head import completed as with_score_head
from erniecore.engine.models.served_weights import HADAMARD
from erniecore.engine.models.weights import Checked, check_finite, check_weights, convert, open_weights, state_of

__all__ = [
    "HADAMARD",
    "LONG_NAMES",
    "SHORT_NAMES",
    "QUANTIZATION_KEY",
    "Array",
    "Checked",
    "StoredTensor",
    "all_finite",
    "check_finite",
    "check_weights",
    "codec_of",
    "convert",
    "dtype_name",
    "has_score",
    "is_packed",
    "memory_dtype",
    "open_weights",
    "provenance",
    "public_config",
    "public_tensors",
    "random_tensors",
    "same_bits",
    "save_model_directory",
    "state_of",
    "stored_as",
    "to_numpy",
    "with_score_head",
    "write_assets",
    "write_directory_manifest",
    "write_json",
    "write_model_files",
    "write_structured",
    "write_weights",
]
