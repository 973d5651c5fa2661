"""The Hugging Face format with FP8 weights by blocks of 128x128: what transformers and FastDeploy call ``quant_method: fp8``.

A matrix ``X.weight`` [out, in] is E4M3 with ``X.weight_scale_inv`` float32 [out / 128, in / 128], which a block is multiplied
with; scales are powers of two, max abs / 448 rounded up. Matrices whose sides are no multiples of 128, embeddings, heads and
routers keep the dtype of the model and are named in ``modules_to_not_convert``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import NumericsError, UsageError
from erniecore.api.model import ModelBundle
from erniecore.api.model_files import (
    LONG_NAMES,
    Array,
    StoredTensor,
    all_finite,
    convert,
    memory_dtype,
    provenance,
    public_config,
    public_tensors,
    write_assets,
    write_directory_manifest,
    write_json,
    write_weights,
)
from erniecore.api.ops import fp8_quantize
from erniecore.api.quantizer import StoredWeight


class PackedWeight(Protocol):
    """A quantized parameter: what is stored, and its public names: one, or one per expert."""

    @property
    def stored(self) -> StoredWeight: ...
    @property
    def public(self) -> tuple[str, ...]: ...


#: side of a block; largest value of E4M3
BLOCK, LARGEST = 128, 448.0
SCALE = "weight_scale_inv"
_READ_ONLY = ("embed_tokens", "lm_head", "gate", "score")


def write_fp8_files(
    bundle: ModelBundle,
    directory: Path,
    *,
    dtype: str,
    max_shard_bytes: int,
    plain: Mapping[str, StoredTensor] | None = None,
    qweight: Mapping[str, PackedWeight] | None = None,
) -> None:
    """Write every file into the existing, empty ``directory``. ``dtype``: of what stays; empty: as in memory. ``plain``: the
    tensors, if not those of ``bundle.model``; ``qweight``: public name -> a packed weight whose codes are taken as they are.

    Raises:
        NumericsError: weights that are not finite.
    """
    tensors, kept = quantized_tensors(public_tensors(bundle, dtype) if plain is None else plain)
    if qweight is not None:
        _replace_packed(tensors, qweight)
    written = write_weights(directory, tensors, max_shard_bytes)
    write_assets(bundle, directory, dtype or memory_dtype(bundle))
    config = public_config(bundle.architecture, dtype or memory_dtype(bundle))
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": kept,
    }
    write_json(directory / "config.json", config)
    facts = {**provenance(bundle, written), "layout": "fp8 by blocks"}
    write_directory_manifest(directory, facts, {file.name: file.sha256 for file in written})


def _replace_packed(tensors: dict[str, StoredTensor], packed: Mapping[str, PackedWeight]) -> None:
    """Codes and scales of ``packed`` in the place of new ones. Raises ``UsageError`` for a matrix that has none."""
    for name in [name for name, tensor in tensors.items() if tensor.dtype == "F8_E4M3"]:
        if name not in packed:
            raise UsageError("some layers of this model are quantized and others are not", where=name)
        entry = packed[name]
        index = entry.public.index(name)
        for key, stored in (
            (name, entry.stored.qweight),
            (f"{name.removesuffix('weight')}{SCALE}", entry.stored.scales),
        ):
            own = stored[index] if stored.ndim == 3 else stored
            tensors[key] = replace(tensors[key], load=partial(_turned, own))


def _turned(stored: Tensor) -> Array:
    found: Array = np.ascontiguousarray(stored.numpy().T)
    return found


def quantized_tensors(plain: Mapping[str, StoredTensor]) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors to write, and the modules whose matrices stay as they are."""
    stays = {
        name.removesuffix(".weight") for name, tensor in plain.items() if _is_linear(name, tensor) and not _fits(tensor)
    }
    stays |= {_stack(module) for module in stays if _stack(module)}  # experts are one module for their readers
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        if not _is_linear(name, tensor) or module in stays or _stack(module) in stays:
            tensors[name] = tensor
            continue
        rows, columns = (size // BLOCK for size in tensor.shape)
        blocks = _Blocks(name, tensor)
        tensors[name] = StoredTensor("F8_E4M3", tensor.shape, blocks.qweight)
        tensors[f"{module}.{SCALE}"] = StoredTensor("F32", (rows, columns), blocks.scales)
    heads = {name.removesuffix(".weight") for name, t in plain.items() if len(t.shape) == 2 and not _is_linear(name, t)}
    kept = sorted({module for module in stays if not _stack(module)} | heads | {"lm_head"})
    return tensors, [name for name in kept if not name.endswith("_bias")]


def _is_linear(name: str, tensor: StoredTensor) -> bool:
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    return name.endswith(".weight") and len(tensor.shape) == 2 and leaf not in _READ_ONLY


def _fits(tensor: StoredTensor) -> bool:
    return all(size % BLOCK == 0 for size in tensor.shape)


def _stack(module: str) -> str:
    """``model.layers.3.mlp.experts`` for one of its experts' matrices; else empty."""
    above, found, _ = module.rpartition(".experts.")
    return f"{above}.experts" if found else ""


class _Blocks:
    """Codes and scales of one matrix; made when they are asked for, and again."""

    def __init__(self, name: str, tensor: StoredTensor) -> None:
        self.name, self.tensor = name, tensor

    def qweight(self) -> Array:
        """Quantized values, uint8 [out, in]."""
        return encode(self._numbers())[0]

    def scales(self) -> Array:
        """Scales, float32 [out / 128, in / 128]."""
        return encode(self._numbers())[1]

    def _numbers(self) -> Array:
        long = LONG_NAMES[self.tensor.dtype]
        dequantized = convert(self.tensor.load(), long, "float32", self.name)
        if not all_finite(dequantized, "float32"):
            raise NumericsError("a weight that is not finite cannot be quantized", where=self.name)
        return dequantized


def encode(dequantized: Array) -> tuple[Array, Array]:
    """Codes uint8 and scales of a matrix [out, in] of whole blocks, float32."""
    rows, columns = (size // BLOCK for size in dequantized.shape)
    parts = dequantized.reshape(rows, BLOCK, columns, BLOCK)
    largest = np.abs(parts).max(axis=(1, 3), keepdims=True) / np.float32(LARGEST)
    fraction, exponent = np.frexp(np.where(largest > 0, largest, 1))
    power = np.clip(exponent - (fraction == 0.5), -126, 127)
    scales = np.ldexp(np.float32(1), power).astype(np.float32)
    rounded = fp8_quantize(paddle.to_tensor(parts), paddle.to_tensor(scales))
    qweight = rounded.astype("float8_e4m3fn").view("uint8").numpy().reshape(dequantized.shape)
    return qweight, scales.reshape(rows, columns)
