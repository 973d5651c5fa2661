"""FP8 with a scale per tensor as FastDeploy stores it: ``quant_weight`` int8 bits of E4M3 [in, out], ``weight_scale`` and
``activation_scale`` float32 [1]. Inputs and weights are mixed by Hadamard blocks of 32, whose factor is in the weight scale.

A fused matrix has one scale where we have one per part: the largest, to which the values of the other parts are rounded again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import UsageError
from erniecore.api.export import ModelBundle
from erniecore.api.model_files import HADAMARD, Array, StoredTensor
from erniecore.api.ops import fp8_quantize
from erniecore_fastdeploy.contract import CODES, INPUT_SCALE, SCALE
from erniecore_fastdeploy.paddle_layout import Packed, paddle_tensors, place, public_dequantized


class Part(NamedTuple):
    """Quantized values uint8 [in, out] of one matrix, and its scales."""

    qweight: Array
    scale: float
    input_scale: float


def static_tensors(
    bundle: ModelBundle, packed: Mapping[str, Packed], dtype: str, refused: Callable[[str, str, str], UsageError]
) -> tuple[dict[str, StoredTensor], int]:
    """The tensors of the directory, and how many quantized values were rounded again.

    Raises:
        UsageError: a layer that is not quantized, without a trained input scale, or with another Hadamard transform.
    """
    groups: dict[str, dict[int, Part]] = {}
    for name, entry in packed.items():
        _check(entry, name, refused)
        for index, public in enumerate(entry.public):
            module, position = place(public)
            groups.setdefault(module, {})[position] = _part(entry, index)
    tensors, changed = {}, 0
    for name, tensor in paddle_tensors(public_dequantized(bundle, dtype)).items():
        module = name.removesuffix(".weight")
        parts = groups.get(module)
        if parts is None:
            if name.endswith("_proj.weight"):
                raise refused("a layer that is not quantized", "quantized weights in every linear layer", name)
            tensors[name] = tensor
            continue
        joined, count = join([parts[position] for position in sorted(parts)])
        if joined.qweight.shape != tensor.shape:
            raise refused(
                "a fused matrix that is only partly quantized", "quantized weights in every linear layer", name
            )
        changed += count
        tensors[f"{module}.{CODES}"] = StoredTensor("I8", tensor.shape, joined.qweight.view(np.int8).copy)
        for kind, value in ((SCALE, joined.scale), (INPUT_SCALE, joined.input_scale)):
            tensors[f"{module}.{kind}"] = StoredTensor("F32", (1,), np.array([value], np.float32).copy)
    return tensors, changed


def _check(entry: Packed, name: str, refused: Callable[[str, str, str], UsageError]) -> None:
    if entry.stored.hadamard_block != HADAMARD:
        raise refused(f"a Hadamard transform of {entry.stored.hadamard_block}", f"one of {HADAMARD}", name)
    scale = entry.stored.input_scale
    if scale is None or float(scale.max()) <= 0:
        raise refused("no input scale", "scales that training or calibration found", name)


def _part(entry: Packed, index: int) -> Part:
    stored = entry.stored
    qweight = stored.qweight.numpy()
    own = qweight[index] if qweight.ndim == 3 else qweight
    assert stored.input_scale is not None
    return Part(np.ascontiguousarray(own), float(stored.scales[index]), float(stored.input_scale[0]))


def join(parts: list[Part]) -> tuple[Part, int]:
    """Parts of a fused matrix side by side on their largest scale, and how many quantized values that changed."""
    largest, inputs = max(part.scale for part in parts), max(part.input_scale for part in parts)
    moved = [part.qweight if part.scale == largest else _moved(part, largest) for part in parts]
    changed = sum(int((new != part.qweight).sum()) for new, part in zip(moved, parts, strict=True))
    return Part(np.concatenate(moved, axis=1), largest, inputs), changed


def _moved(part: Part, scale: float) -> Array:
    dequantized = paddle.to_tensor(part.qweight).view("float8_e4m3fn").astype("float32") * (part.scale / scale)
    rounded = fp8_quantize(dequantized, paddle.ones([1]))
    qweight: Array = rounded.astype("float8_e4m3fn").view("uint8").numpy()
    return qweight
