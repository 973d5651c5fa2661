"""Directories for FastDeploy, from models as they are and from the codes of our quantizers.

floats      the public layout
int8, int4  the Paddle layout with the numbers of the codes; the server rounds them when it loads, and it is checked that its
            rule gives the same codes (stored codes would be in the order of one kernel on one GPU)
E4M3        a scale per tensor: the Paddle layout with codes, weight scales and input scales ("static W8A8")
E4M3 by blocks of 128x128: the public layout with these codes and scales
a cache of int8 with fixed scales: beside the first two in the Paddle layout

Everything else is refused by name. Sources of all rules: ``fastdeploy_contract.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from erniecore.checkpoint.directories import write_directory_manifest, write_json
from erniecore.checkpoint.tensors import Tensor
from erniecore.engine.exporting.fastdeploy_contract import STATIC
from erniecore.engine.exporting.fp8_export import write_fp8_files
from erniecore.engine.exporting.served_cache import check_no_cache, with_cache
from erniecore.engine.exporting.static_fp8 import static_tensors
from erniecore.engine.models.model_files import memory_dtype, provenance, public_config, write_assets, write_weights
from erniecore.engine.models.paddle_layout import Packed, packed_of, paddle_tensors, public_numbers
from erniecore.engine.models.quantized import KEY
from erniecore.errors import UsageError
from erniecore.types import ModelBundle

_INTEGERS = {"int8": "wint8", "int4": "wint4"}
#: the largest code of each, as the server's rounding has it: Paddle, `weight_quantize`
_BOUNDS = {"int8": 127.0, "int4": 7.0}


#: forms that FastDeploy has a name for, and why it cannot load them
_NOT_SERVED = {
    "w8a8": "its `w8a8.py` wants scales from files beside the model, and its `from_config` leaves one out, so nothing starts",
    "w4a8": "its `w4a8.py` takes experts only, in the order of one kernel",
}


def write_packed(bundle: ModelBundle, directory: Path, *, dtype: str, max_shard_bytes: int) -> None:
    """Write a quantised model into the existing, empty ``directory``. ``dtype``: of what are no codes.

    Raises:
        UsageError: a form that FastDeploy does not load, or layers that it would quantise and that are not.
    """
    packed = packed_of(bundle)
    if not packed:
        raise _refused("a cache of codes beside weights as they are", "quantised weights too: `mix_quant` has no other")
    forms = {entry.stored.form for entry in packed.values()}
    dtype = dtype or memory_dtype(bundle)
    for accepted, write in _WRITERS.items():
        if forms <= set(accepted):
            write(bundle, directory, packed, dtype, max_shard_bytes)
            return
    reason = "; ".join(_NOT_SERVED[form] for form in sorted(forms & _NOT_SERVED.keys()))
    expected = "int8 or int4 per output, or E4M3, by tensor or by block"
    raise _refused(f"weights as {', '.join(sorted(forms))}" + (f" ({reason})" if reason else ""), expected)


def _refused(found: str, expected: str, where: str = "") -> UsageError:
    return UsageError("FastDeploy cannot load this model as it is quantised", where=where, found=found,
                      expected=expected, fix="export the original model: --to fastdeploy or hf-fp8")  # fmt: skip


def _write_online(bundle: ModelBundle, out: Path, packed: Mapping[str, Packed], dtype: str, shard: int) -> None:
    for name, entry in packed.items():
        if entry.stored.group or entry.stored.input_scale is not None:
            raise _refused("scales of groups or of inputs", "one scale per output", name)
        check_codes(entry, dtype, name)
    tensors = paddle_tensors(public_numbers(bundle, dtype))
    tensors, section = with_cache(bundle, tensors, _online_section(tensors, packed), _refused)
    _write_paddle(bundle, out, tensors, section, dtype, shard)


def check_codes(entry: Packed, dtype: str, where: str) -> None:
    """Raises ``UsageError`` unless the server's rounding of the numbers gives the codes that we have."""
    import paddle

    bound, numbers = _BOUNDS[entry.stored.form], entry.numbers().astype("float32")
    seen = numbers.astype(dtype).astype("float32")
    scales = entry.stored.scales.unsqueeze(-2)
    again = seen.abs().max(axis=-2, keepdim=True) / bound
    again = paddle.where(again > 0, again, paddle.ones_like(again))
    changed = int((paddle.round(seen / again) != paddle.round(numbers / scales)).sum())
    if changed:
        raise _refused(f"{changed} codes that its own rounding would change", "scales of the largest weight", where)


def _online_section(tensors: Mapping[str, Tensor], packed: Mapping[str, Packed]) -> dict[str, Any]:
    """``quantization_config``: which group of layers has which form, and which layers stay as they are."""
    forms = {module: _INTEGERS[entry.stored.form] for entry in packed.values() for module in entry.modules}
    linear = [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight")]
    groups: dict[bool, set[str]] = {True: set(), False: set()}
    kept = []
    for module in linear:
        form = forms.get(module)
        if form is not None:
            groups[".experts." in module].add(form)
        elif ".experts." in module:
            raise _refused("experts that are not quantised", "all or none of them", module)
        else:
            kept.append(module)
    dense, experts = groups[False], groups[True]
    if len(dense) != 1 or len(experts) > 1:
        raise _refused(f"dense layers as {sorted(dense)}, experts as {sorted(experts)}", "one form for each")
    section: dict[str, Any] = {"quantization": next(iter(dense)), "is_quantized": False}
    if experts and experts != dense:
        types = {"dense_quant_type": next(iter(dense)), "moe_quant_type": next(iter(experts))}
        section = {"quantization": "mix_quant", **types, "is_quantized": False}
    return {**section, "modules_to_not_convert": sorted(kept)} if kept else section


def _write_static(bundle: ModelBundle, out: Path, packed: Mapping[str, Packed], dtype: str, shard: int) -> None:
    tensors, changed = static_tensors(bundle, packed, dtype, _refused)
    section = {"quantization": "mix_quant", "dense_quant_type": STATIC, "moe_quant_type": STATIC, "is_quantized": True}
    tensors, section = with_cache(bundle, tensors, section, _refused)
    facts = {"codes rounded again because fused matrices share a scale": changed} if changed else {}
    _write_paddle(bundle, out, tensors, section, dtype, shard, facts)


def _write_paddle(bundle: ModelBundle, out: Path, tensors: Mapping[str, Tensor], section: Mapping[str, Any], dtype: str,
                  shard: int, facts: Mapping[str, Any] | None = None) -> None:  # fmt: skip
    written = write_weights(out, tensors, shard)
    write_assets(bundle, out, dtype)
    config = public_config(_plain(bundle), dtype)
    config["dtype"] = config.pop("torch_dtype")
    config.pop("transformers_version", None)
    write_json(out / "config.json", {**config, KEY: dict(section)})
    about = {**provenance(bundle, written), "layout": "Paddle, for FastDeploy", **(facts or {})}
    write_directory_manifest(out, about, {file.name: file.sha256 for file in written})


def _plain(bundle: ModelBundle) -> dict[str, Any]:
    return {key: value for key, value in bundle.architecture.items() if key != KEY}


def _write_blocks(bundle: ModelBundle, out: Path, packed: Mapping[str, Packed], dtype: str, shard: int) -> None:
    check_no_cache(bundle, _refused)
    codes: dict[str, Packed] = {name: entry for entry in packed.values() for name in entry.public}
    write_fp8_files(bundle, out, dtype=dtype, max_shard_bytes=shard, plain=public_numbers(bundle, dtype), codes=codes)


_Write = Callable[[ModelBundle, Path, Mapping[str, Packed], str, int], None]
_WRITERS: dict[tuple[str, ...], _Write] = {
    ("int8", "int4"): _write_online,
    ("e4m3",): _write_static,
    ("e4m3 by blocks",): _write_blocks,
}
