"""Directories for FastDeploy, from unquantized models and from those of our quantizers.

floats      the Hugging Face format
int8, int4  the Paddle layout with the dequantized weights; the server rounds them when it loads, and it is checked that its
            rule gives the same values (stored values would be in the order of one kernel on one GPU)
E4M3        a scale per tensor: the Paddle layout with quantized values, weight scales and input scales ("static W8A8")
E4M3 by blocks of 128x128: the Hugging Face format with these values and scales
a cache of int8 with fixed scales: beside the first two in the Paddle layout

Everything else is refused by name. Sources of all rules: ``contract.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from erniecore_fp8_qat.hf_export import write_fp8_files

from erniecore.api import UsageError
from erniecore.api.export import ModelBundle
from erniecore.api.model_files import (
    QUANTIZATION_KEY,
    StoredTensor,
    memory_dtype,
    provenance,
    public_config,
    write_assets,
    write_directory_manifest,
    write_json,
    write_weights,
)
from erniecore_fastdeploy.cache import check_no_cache, with_cache
from erniecore_fastdeploy.contract import STATIC
from erniecore_fastdeploy.paddle_layout import Packed, packed_of, paddle_tensors, public_dequantized
from erniecore_fastdeploy.static_fp8 import static_tensors
from erniecore_fastdeploy.vision import BESIDE, check_vision, num_text_experts

_INTEGERS = {"int8": "wint8", "int4": "wint4"}
#: the largest quantized value of each, as the server's rounding has it: Paddle, `weight_quantize`
_BOUNDS = {"int8": 127.0, "int4": 7.0}


#: forms that FastDeploy has a name for, and why it cannot load them
_NOT_SERVED = {
    "w8a8": "its `w8a8.py` wants scales from files beside the model, and its `from_config` leaves one out, so nothing starts",
    "w4a8": "its `w4a8.py` takes experts only, in the order of one kernel",
}


#: config.json's keys of a scaled residual stream, which no server knows
_SCALED = ("gpas", "layer_norm_scaling")


def check_plain(architecture: Mapping[str, Any]) -> None:
    """Raises ``UsageError`` for a model that computes something else than the ERNIE 4.5 that the server knows."""
    if scaled := [key for key in _SCALED if architecture.get(key)]:
        raise UsageError(
            "FastDeploy does not compute this model",
            where=f"config.json: {scaled[0]}",
            found=str(architecture[scaled[0]]),
            fix="fold the scaling into the weights first, with --to hf-folded, then export that directory",
        )


def write_packed(bundle: ModelBundle, directory: Path, *, dtype: str, max_shard_bytes: int) -> None:
    """Write a quantized model into the existing, empty ``directory``. ``dtype``: of tensors that are not quantized.

    Raises:
        UsageError: a scheme that FastDeploy does not load, or layers that it would quantize and that are not.
    """
    packed = packed_of(bundle)
    if not packed:
        raise _refused(
            "a quantized KV cache beside weights as they are", "quantized weights too: `mix_quant` has no other"
        )
    if heads := [name for name in packed if name.endswith(("embed_tokens.weight", "lm_head.weight"))]:
        raise _refused("a quantized head", "a head as it was: quantizer.head=none", heads[0])
    quant_dtypes = {entry.stored.quant_dtype for entry in packed.values()}
    check_vision(bundle.architecture, quant_dtypes, _refused)
    dtype = dtype or memory_dtype(bundle)
    for accepted, write in _WRITERS.items():
        if quant_dtypes <= set(accepted):
            write(bundle, directory, packed, dtype, max_shard_bytes)
            return
    reason = "; ".join(_NOT_SERVED[quant_dtype] for quant_dtype in sorted(quant_dtypes & _NOT_SERVED.keys()))
    expected = "int8 or int4 per output, or E4M3, by tensor or by block"
    raise _refused(f"weights as {', '.join(sorted(quant_dtypes))}" + (f" ({reason})" if reason else ""), expected)


def _refused(found: str, expected: str, where: str = "") -> UsageError:
    return UsageError("FastDeploy cannot load this model as it is quantized", where=where, found=found,
                      expected=expected, fix="export the original model: --to fastdeploy or hf-fp8")  # fmt: skip


def _write_online(bundle: ModelBundle, out: Path, packed: Mapping[str, Packed], dtype: str, shard: int) -> None:
    for name, entry in packed.items():
        if all(module.startswith(BESIDE) for module in entry.modules):
            continue  # the server computes these with the dequantized weights
        if entry.stored.group or entry.stored.input_scale is not None:
            raise _refused("scales of groups or of inputs", "one scale per output", name)
        check_rounding(entry, dtype, name)
    tensors = paddle_tensors(public_dequantized(bundle, dtype))
    section = _online_section(tensors, packed, num_text_experts(bundle.architecture))
    tensors, section = with_cache(bundle, tensors, section, _refused)
    _write_paddle(bundle, out, tensors, section, dtype, shard)


def check_rounding(entry: Packed, dtype: str, where: str) -> None:
    """Raises ``UsageError`` unless the server's rounding of the dequantized weights gives our quantized values."""
    import paddle

    bound, dequantized = _BOUNDS[entry.stored.quant_dtype], entry.dequantize().astype("float32")
    seen = dequantized.astype(dtype).astype("float32")
    scales = entry.stored.scales.unsqueeze(-2)
    again = seen.abs().max(axis=-2, keepdim=True) / bound
    again = paddle.where(again > 0, again, paddle.ones_like(again))
    changed = int((paddle.round(seen / again) != paddle.round(dequantized / scales)).sum())
    if changed:
        raise _refused(f"{changed} values that its own rounding would change", "scales of the largest weight", where)


def _online_section(
    tensors: Mapping[str, StoredTensor], packed: Mapping[str, Packed], text_experts: int
) -> dict[str, Any]:
    """``quantization_config``: which group of layers has which scheme, and which layers are not quantized.

    Args:
        text_experts: experts from this number on are those of vision; 0: there are none of these.
    """
    quant_dtypes = {
        module: _INTEGERS[entry.stored.quant_dtype] for entry in packed.values() for module in entry.modules
    }
    linear = [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight")]
    groups: dict[str, set[str]] = {"dense": set(), "moe": set(), "image_moe": set()}
    kept = []
    for module in linear:
        quant_dtype, group = quant_dtypes.get(module), _group(module, text_experts)
        if quant_dtype is not None:
            groups[group].add(quant_dtype)
        elif group != "dense":
            named = "quantizer.int4 chooses those of vision" if group == "image_moe" else "all or none of them"
            raise _refused("experts that are not quantized", f"experts alike; {named}", module)
        else:
            kept.append(module)
    dense, experts, vision = groups.values()
    if len(dense) != 1 or len(experts) > 1 or len(vision) > 1:
        found = f"dense layers as {sorted(dense)}, experts as {sorted(experts)} and {sorted(vision)}"
        raise _refused(found, "one scheme for each")
    section: dict[str, Any] = {"quantization": next(iter(dense)), "is_quantized": False}
    if experts | vision and experts | vision != dense:
        types = {f"{group}_quant_type": next(iter(found)) for group, found in groups.items() if found}
        section = {"quantization": "mix_quant", **types, "is_quantized": False}
    return {**section, "modules_to_not_convert": sorted(kept)} if kept else section


def _group(module: str, text_experts: int) -> str:
    """By whose scheme the server quantizes a linear layer."""
    found = re.search(r"\.experts\.(\d+)\.", module)
    if found is None:
        return "dense"
    return "image_moe" if text_experts and int(found[1]) >= text_experts else "moe"


def _write_static(bundle: ModelBundle, out: Path, packed: Mapping[str, Packed], dtype: str, shard: int) -> None:
    tensors, changed = static_tensors(bundle, packed, dtype, _refused)
    section = {"quantization": "mix_quant", "dense_quant_type": STATIC, "moe_quant_type": STATIC, "is_quantized": True}
    tensors, section = with_cache(bundle, tensors, section, _refused)
    facts = {"codes rounded again because fused matrices share a scale": changed} if changed else {}
    _write_paddle(bundle, out, tensors, section, dtype, shard, facts)


def _write_paddle(bundle: ModelBundle, out: Path, tensors: Mapping[str, StoredTensor], section: Mapping[str, Any], dtype: str,
                  shard: int, facts: Mapping[str, Any] | None = None) -> None:  # fmt: skip
    written = write_weights(out, tensors, shard)
    write_assets(bundle, out, dtype)
    config = public_config(_plain(bundle), dtype)
    config["dtype"] = config.pop("torch_dtype")
    config.pop("transformers_version", None)
    write_json(out / "config.json", {**config, QUANTIZATION_KEY: dict(section)})
    about = {**provenance(bundle, written), "layout": "Paddle, for FastDeploy", **(facts or {})}
    write_directory_manifest(out, about, {file.name: file.sha256 for file in written})


def _plain(bundle: ModelBundle) -> dict[str, Any]:
    return {key: value for key, value in bundle.architecture.items() if key != QUANTIZATION_KEY}


def _write_blocks(bundle: ModelBundle, out: Path, packed: Mapping[str, Packed], dtype: str, shard: int) -> None:
    check_no_cache(bundle, _refused)
    qweight: dict[str, Packed] = {name: entry for entry in packed.values() for name in entry.public}
    write_fp8_files(
        bundle, out, dtype=dtype, max_shard_bytes=shard, plain=public_dequantized(bundle, dtype), qweight=qweight
    )


_Write = Callable[[ModelBundle, Path, Mapping[str, Packed], str, int], None]
_WRITERS: dict[tuple[str, ...], _Write] = {
    ("int8", "int4"): _write_online,
    ("e4m3",): _write_static,
    ("e4m3 by blocks",): _write_blocks,
}
