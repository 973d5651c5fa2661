"""What servers and transformers expect of a model directory in the public layout, as rules that are checked. Each rule names
its source; docs/reference/serving-contract.md is made from this table.

Reads config.json and the headers of the weights; nothing is computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from erniecore.checkpoint.safetensors_write import INDEX_NAME
from erniecore.checkpoint.tensors import Tensor
from erniecore.errors import CheckpointError

_FAST = "FastDeploy 2.3, `fastdeploy/config.py`"
_HF = "transformers 5.23"
_PAIRS = {"ernie4_5": "Ernie4_5ForCausalLM", "ernie4_5_moe": "Ernie4_5_MoeForCausalLM"}
_MOE_KEYS = ("moe_num_experts", "moe_k", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index")


class Directory(NamedTuple):
    """What is checked: the path, config.json, the tensors by name, and the metadata of the weight files."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    formats: Mapping[str, str]


@dataclass(frozen=True)
class Rule:
    """``check`` yields what is wrong. ``name``: stable. ``source``: who asks for it."""

    name: str
    text: str
    source: str
    check: Callable[[Directory], Iterator[str]]


def check_directory(path: Path) -> list[str]:
    """``rule: what is wrong``, for every rule that ``path`` breaks; [] for none.

    Raises:
        CheckpointError: config.json or the weights cannot be read.
    """
    from erniecore.engine.weights import open_weights

    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            "config.json cannot be read", where=str(path), found=str(error), code="ERN-K021"
        ) from error
    opened = open_weights(path)
    formats = {file.name: _format(file) for file in {file for file, _ in opened.values()}}
    directory = Directory(path, config, {name: tensor for name, (_, tensor) in opened.items()}, formats)
    return [f"{rule.name}: {problem}" for rule in RULES for problem in rule.check(directory)]


def _format(file: Path) -> str:
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return str(header.get("__metadata__", {}).get("format", ""))


def _one_dtype_key(d: Directory) -> Iterator[str]:
    if "torch_dtype" not in d.config or "dtype" in d.config:
        yield "config.json must have torch_dtype and no dtype"


def _rope(d: Directory) -> Iterator[str]:
    if not d.config.get("rope_theta"):
        yield "no rope_theta at the top level"
    elif d.config.get("rope_parameters", {}).get("rope_theta") != d.config["rope_theta"]:
        yield "rope_parameters.rope_theta differs from rope_theta, or is missing"


def _pair(d: Directory) -> Iterator[str]:
    model_type = str(d.config.get("model_type"))
    if d.config.get("architectures") != [_PAIRS.get(model_type)]:
        yield f"model_type {model_type} with architectures {d.config.get('architectures')}"


def _moe_keys(d: Directory) -> Iterator[str]:
    if d.config.get("model_type") == "ernie4_5_moe":
        yield from (f"config.json has no {key}" for key in _MOE_KEYS if key not in d.config)


def _no_remote_code(d: Directory) -> Iterator[str]:
    if "auto_map" in d.config:
        yield "auto_map points at code that is not here"


def _metadata(d: Directory) -> Iterator[str]:
    yield from (f"{file}: metadata format is {found!r}, not 'pt'" for file, found in d.formats.items() if found != "pt")


def _files(d: Directory) -> Iterator[str]:
    needed = ["generation_config.json"]
    if (d.path / "tokenizer_config.json").exists() or (d.path / "tokenizer.model").exists():
        needed += ["tokenizer_config.json", "special_tokens_map.json"]
    yield from (f"{name} is missing" for name in needed if not (d.path / name).is_file())
    if len(d.formats) > 1 and not (d.path / INDEX_NAME).is_file():
        yield f"several weight files without {INDEX_NAME}"


def _head(d: Directory) -> Iterator[str]:
    if bool(d.config.get("tie_word_embeddings")) == ("lm_head.weight" in d.tensors):
        yield "lm_head.weight must be there exactly when tie_word_embeddings is false"


def _layers(d: Directory) -> Iterator[str]:
    for index in range(int(d.config.get("num_hidden_layers", 0))):
        place = f"model.layers.{index}."
        names = [f"self_attn.{x}_proj" for x in "qkvo"] + ["input_layernorm", "post_attention_layernorm"]
        if not _is_moe(d, index):
            names += [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
        else:
            experts = range(int(d.config["moe_num_experts"]))
            names += ["mlp.gate", *(f"mlp.experts.{e}.{x}_proj" for e in experts for x in ("gate", "up", "down"))]
        yield from (f"{place}{name}.weight is missing" for name in names if f"{place}{name}.weight" not in d.tensors)


def _is_moe(d: Directory, index: int) -> bool:
    if d.config.get("model_type") != "ernie4_5_moe":
        return False
    start, end = int(d.config.get("moe_layer_start_index", 0)), int(d.config.get("moe_layer_end_index", -1))
    end = int(d.config["num_hidden_layers"]) - 1 if end == -1 else end
    return start <= index <= end and (index + 1) % int(d.config.get("moe_layer_interval", 1)) == 0


def _router(d: Directory) -> Iterator[str]:
    for name, tensor in d.tensors.items():
        if (name.endswith(".mlp.gate.weight") or name.endswith("e_score_correction_bias")) and tensor.dtype != "F32":
            yield f"{name} is {tensor.dtype}, not F32"


def _fp8_config(d: Directory) -> Iterator[str]:
    section = d.config.get("quantization_config")
    stored = any(tensor.dtype == "F8_E4M3" for tensor in d.tensors.values())
    if section is None:
        if stored:
            yield "FP8 weights without quantization_config"
        return
    expected = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    for key, value in expected.items():
        if section.get(key) != value:
            yield f"quantization_config.{key} is {section.get(key)!r}, not {value!r}"


def _fp8_scales(d: Directory) -> Iterator[str]:
    for name, tensor in d.tensors.items():
        if tensor.dtype != "F8_E4M3":
            continue
        scale = d.tensors.get(name.removesuffix("weight") + "weight_scale_inv")
        wanted = tuple(size // 128 for size in tensor.shape)
        if any(size % 128 for size in tensor.shape):
            yield f"{name}: sides {list(tensor.shape)} are no multiples of 128"
        elif scale is None or scale.dtype != "F32" or scale.shape != wanted:
            yield f"{name}: needs weight_scale_inv F32 {list(wanted)}"


def _fp8_skipped(d: Directory) -> Iterator[str]:
    section = d.config.get("quantization_config")
    if section is None:
        return
    skipped = tuple(section.get("modules_to_not_convert") or ())
    for name, tensor in d.tensors.items():
        module = name.removesuffix(".weight")
        if module == name or len(tensor.shape) != 2:
            continue
        listed = any(module == entry or module.startswith(f"{entry}.") for entry in skipped)
        if listed == (tensor.dtype == "F8_E4M3"):
            yield f"{module} is {tensor.dtype} and {'' if listed else 'not '}in modules_to_not_convert"


RULES = (
    Rule("one-dtype-key", "config.json has `torch_dtype` and no `dtype`: both are refused, and `dtype` alone is taken for the \
Paddle layout.", _FAST, _one_dtype_key),
    Rule("rope", "`rope_theta` at the top level (a missing one becomes 10000) and the same in `rope_parameters`.", f"{_FAST}; \
{_HF}, `modeling_rope_utils.py`", _rope),
    Rule("architecture", "`model_type` and `architectures` belong together.", f"{_HF}, `models/ernie4_5*`", _pair),
    Rule("moe-keys", "Sizes of experts and which layers have them.", f"{_HF}, `configuration_ernie4_5_moe.py`", _moe_keys),
    Rule("no-remote-code", "No `auto_map`.", f"{_HF}, `dynamic_module_utils.py`", _no_remote_code),
    Rule("metadata", "Metadata `format: pt` in every weight file.", f"{_HF}, `modeling_utils.py`", _metadata),
    Rule("files", "generation_config.json, the tokenizer's files where there is one, an index for several weight files.",
         "the published -PT directories", _files),
    Rule("head", "`lm_head.weight` exactly when the embedding is not tied.", "the published -PT directories", _head),
    Rule("names", "Every layer has its tensors under the public names.", f"{_HF}, `modeling_ernie4_5*.py`", _layers),
    Rule("router", "Router weights and selection biases are float32.", "the published -PT directories", _router),
    Rule("fp8-config", "FP8 is announced as `quant_method: fp8`, blocks of 128x128, dynamic inputs: the only offline form that \
the torch layout has in FastDeploy.", f"FastDeploy 2.3; {_HF}, `FineGrainedFP8Config`", _fp8_config),
    Rule("fp8-scales", "Each FP8 matrix has `weight_scale_inv` float32 by whole blocks.", f"{_HF}, \
`integrations/finegrained_fp8.py`", _fp8_scales),
    Rule("fp8-skipped", "`modules_to_not_convert` names exactly the matrices that are not FP8.", f"{_HF}, \
`quantizer_finegrained_fp8.py`", _fp8_skipped),
)  # fmt: skip
