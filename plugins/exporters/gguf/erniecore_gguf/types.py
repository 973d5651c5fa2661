"""Types of GGUF tensors: which one each tensor gets, and how a block of rows becomes bytes.

The rules are llama.cpp's (``convert_hf_to_gguf.py`` and ``tensor_allows_quantization`` of ``src/llama-quant.cpp``): tensors
of one axis, norms and routers are float32; everything else has the type of the file, but for the matrix that gives the
logits, which a q4_0 file keeps in a finer type. llama.cpp takes q6_K for it, which the package ``gguf`` cannot write; here it
is q8_0.
"""

from __future__ import annotations

from typing import NamedTuple

import gguf
import numpy as np
from gguf.quants import quantize

from erniecore.api import NumericsError
from erniecore.api.model_files import Array, all_finite, convert

_Type = gguf.GGMLQuantizationType


class FileType(NamedTuple):
    """A value of ``dtype``: type of its matrices, llama.cpp's name and number of the file type."""

    matrices: gguf.GGMLQuantizationType
    name: str
    number: gguf.LlamaFileType


FILE_TYPES = {
    "float32": FileType(_Type.F32, "F32", gguf.LlamaFileType.ALL_F32),
    "float16": FileType(_Type.F16, "F16", gguf.LlamaFileType.MOSTLY_F16),
    "bfloat16": FileType(_Type.BF16, "BF16", gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": FileType(_Type.Q8_0, "Q8_0", gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": FileType(_Type.Q4_0, "Q4_0", gguf.LlamaFileType.MOSTLY_Q4_0),
}
#: types without blocks, and what their bytes are
_PLAIN = {_Type.F32: "float32", _Type.F16: "float16", _Type.BF16: "bfloat16"}


def type_of(name: str, shape: tuple[int, ...], wanted: gguf.GGMLQuantizationType, *, tied: bool) -> _Type:
    """The type of the tensor ``name`` (llama.cpp's) of ``shape`` in a file of ``wanted`` matrices.

    Args:
        tied: the embedding also gives the logits.
    """
    if len(shape) < 2 or not name.endswith(".weight") or name.endswith(("_norm.weight", "ffn_gate_inp.weight")):
        return _Type.F32
    if wanted is _Type.Q4_0 and name == ("token_embd.weight" if tied else "output.weight"):
        wanted = _Type.Q8_0
    block, _ = gguf.GGML_QUANT_SIZES[wanted]
    return wanted if shape[-1] % block == 0 else _Type.F16


def num_bytes(shape: tuple[int, ...], stored: gguf.GGMLQuantizationType) -> int:
    """Bytes of a tensor."""
    block, size = gguf.GGML_QUANT_SIZES[stored]
    return int(np.prod(shape)) // block * size


def encode(rows: Array, found: str, stored: gguf.GGMLQuantizationType, where: str) -> Array:
    """``rows`` of dtype ``found`` as the array whose bytes stand in the file.

    Raises:
        NumericsError: values that are not finite, or not in float16.
    """
    if stored in _PLAIN:
        with np.errstate(over="ignore"):  # checked below
            out = convert(rows, found, _PLAIN[stored], where)
        _check(out, _PLAIN[stored], where)
        return out
    values = convert(rows, found, "float32", where)
    _check(values, "float32", where)
    return quantize(np.ascontiguousarray(values), stored)


def _check(values: Array, dtype: str, where: str) -> None:
    if not all_finite(values, dtype):
        raise NumericsError(
            f"this weight holds values that are not finite in {dtype}",
            where=where,
            fix="choose --dtype bfloat16 or float32"
            if dtype == "float16"
            else "fetch the file again, or use an earlier checkpoint",
        )
