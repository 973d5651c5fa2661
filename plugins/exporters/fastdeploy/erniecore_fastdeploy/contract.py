"""What FastDeploy expects of a model directory, as rules with the file of FastDeploy that asks for each. Which of its two
layouts a directory has is decided by config.json, as FastDeploy does: the Hugging Face format must keep the rules of ``hf`` too,
the Paddle layout (names ``ernie.``, matrices [in, out], fused projections) has its own.

Rules only; the core runs them. Paths below are FastDeploy's, of 2.3 or later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from erniecore_model_check.rules import (
    FAST,
    HF_RULES,
    SECTION,
    Break,
    Directory,
    Rule,
    is_moe,
    rope_base,
    router,
)

from erniecore.api.model_files import HADAMARD
from erniecore_fastdeploy.contract_vision import (
    OCR_ARCHITECTURE,
    VL,
    VL_ARCHITECTURE,
    has_vision,
    kinds_of,
    vision_rules,
)

_LAYERS = "FastDeploy, `model_executor/layers"
_QUANT = f"{_LAYERS}/quantization"
_MODEL = "FastDeploy, `model_executor/models/ernie4_5_moe.py`"
#: what `quantization` may be, and `dense_quant_type` and `moe_quant_type` under `mix_quant`
ONLINE, STATIC, MIX = ("wint8", "wint4"), "tensor_wise_fp8", "mix_quant"
METHODS = (
    *ONLINE,
    STATIC,
    MIX,
    "wint2",
    "weight_only",
    "block_wise_fp8",
    "w4afp8",
    "w8a8",
    "w4a8",
    "wfp8afp8",
    "kvcache",
)
_ARCHITECTURES = (
    "Ernie4_5ForCausalLM",
    "Ernie4_5_ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    VL_ARCHITECTURE,
    OCR_ARCHITECTURE,
)
#: `kv_cache_quant_type` that is exported, and the names of its scales in a layer's attention
CACHE_TYPE = "int8"
CACHE_SCALES = {"keys": "cachek_matmul.activation_scale", "values": "cachev_matmul.activation_scale"}
CODES, SCALE, INPUT_SCALE = "quant_weight", "weight_scale", "activation_scale"


def layout_of(config: Mapping[str, Any]) -> str:
    """``torch``, ``paddle``, or empty where FastDeploy refuses."""
    if "torch_dtype" in config:
        return "" if "dtype" in config else "torch"
    if "dtype" not in config:
        return ""
    return "torch" if _version(str(config.get("transformers_version", "0"))) > (4, 56, 0) else "paddle"


def _version(text: str) -> tuple[int, ...]:
    parts = [int("".join(c for c in part if c.isdigit()) or 0) for part in text.split(".")[:3]]
    return tuple(parts + [0] * (3 - len(parts)))


def rules_for(config: Mapping[str, Any]) -> Sequence[Rule]:
    """The rules of the layout that this config.json announces."""
    layout = layout_of(config)
    texts = {"torch": HF_RULES, "paddle": PADDLE, "": ()}[layout]
    return (*(() if has_vision(config) and layout == "torch" else texts), *SHARED, *vision_rules(config, layout))


def _layout(d: Directory) -> Iterator[Break]:
    if not layout_of(d.config):
        found = " and ".join(key for key in ("torch_dtype", "dtype") if key in d.config) or "neither"
        yield Break(d.key("torch_dtype, dtype"), found, "one of them")


def _every_layer(d: Directory) -> Iterator[Break]:
    if d.config.get("model_type") != "ernie4_5_moe":
        return
    start = int(d.config.get("moe_layer_start_index", 0))
    for index in range(start, int(d.config.get("num_hidden_layers", 0))):
        if not is_moe(d, index):
            yield Break(d.key("moe_layer_interval, moe_layer_end_index"), f"no experts in layer {index}", "experts")


def _architecture(d: Directory) -> Iterator[Break]:
    found = d.config.get("architectures") or [None]
    if found[0] not in _ARCHITECTURES:
        yield Break(d.key("architectures"), str(found), "one of " + ", ".join(_ARCHITECTURES))


def _method(d: Directory) -> Iterator[Break]:
    section = d.config.get(SECTION)
    if section is None:
        return
    if section.get("quantization") not in METHODS:
        yield Break(d.key(f"{SECTION}.quantization"), repr(section.get("quantization")), "one of " + ", ".join(METHODS))
    elif section["quantization"] == MIX:
        for key in ("dense_quant_type", "moe_quant_type"):
            if section.get(key) not in METHODS:
                yield Break(d.key(f"{SECTION}.{key}"), repr(section.get(key)), "one of " + ", ".join(METHODS))


def _announced(d: Directory) -> Iterator[Break]:
    section, qweight = d.config.get(SECTION), any(name.endswith(f".{CODES}") for name in d.tensors)
    said = None if section is None else section.get("is_quantized")
    if section is None and qweight:
        yield Break(d.key(SECTION), "nothing", "a section, as there are quantized weights")
    elif section is not None and said is not qweight:
        yield Break(
            d.key(f"{SECTION}.is_quantized"),
            repr(said),
            f"{qweight}: quantized weights {'are' if qweight else 'are not'} stored",
        )


def _online(d: Directory) -> Iterator[Break]:
    if any(name.endswith(f".{CODES}") for name in d.tensors) and STATIC not in _forms(d):
        yield Break(d.key(SECTION), ", ".join(sorted(_forms(d))), f"{STATIC}, or weights that are not quantized yet")


def _forms(d: Directory) -> set[str]:
    section = d.config.get(SECTION) or {}
    keys = ("dense_quant_type", "moe_quant_type") if section.get("quantization") == MIX else ("quantization",)
    return {str(section.get(key)) for key in keys}


def _sizes(d: Directory) -> Iterator[Break]:
    needed = ["hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size"]
    if d.config.get("model_type") == "ernie4_5_moe":
        needed += ["moe_num_experts", "moe_intermediate_size", "moe_layer_start_index"]
    for key in needed:
        if not isinstance(d.config.get(key), int):
            yield Break(d.key(key), repr(d.config.get(key)), "a number")


def matrices(d: Directory) -> dict[str, tuple[int, int]]:
    """Module -> [in, out] of every matrix that may be quantized; {} for a config.json without sizes."""
    if any(_sizes(d)):
        return {}
    c = {key: int(d.config[key]) for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")}
    hidden = c["hidden_size"]
    head = int(d.config.get("head_dim") or hidden // c["num_attention_heads"])
    heads = c["num_attention_heads"] * head
    found: dict[str, tuple[int, int]] = {}
    for index in range(int(d.config["num_hidden_layers"])):
        place = f"ernie.layers.{index}."
        found[f"{place}self_attn.qkv_proj"] = (hidden, heads + 2 * c["num_key_value_heads"] * head)
        found[f"{place}self_attn.o_proj"] = (heads, hidden)
        for module, width in _mlps(d, index):
            found[f"{place}mlp{module}.up_gate_proj"] = (hidden, 2 * width)
            found[f"{place}mlp{module}.down_proj"] = (width, hidden)
    return found


def _mlps(d: Directory, index: int) -> Iterator[tuple[str, int]]:
    experts = list(_experts(d, index))
    if not experts:
        yield "", int(d.config["intermediate_size"])
        return
    shared = int(d.config.get("moe_num_shared_experts") or 0)
    yield from ((f".experts.{expert}", width) for expert, width in experts)
    if shared:
        yield ".shared_experts", shared * experts[0][1]


def _experts(d: Directory, index: int) -> Iterator[tuple[int, int]]:
    """(number, width) of each expert of a layer; none of a dense one."""
    if d.config.get("model_type") == VL:
        kinds = kinds_of(d)
        yield from kinds.experts(index) if kinds is not None else ()
    elif is_moe(d, index):
        width = int(d.config["moe_intermediate_size"])
        yield from ((expert, width) for expert in range(int(d.config["moe_num_experts"])))


def _names(d: Directory) -> Iterator[Break]:
    for module, shape in matrices(d).items():
        plain, qweight = (d.tensors.get(f"{module}.{kind}") for kind in ("weight", CODES))
        tensor = plain or qweight
        if tensor is None:
            yield Break(f"weights: {module}.weight", "nothing", f"a matrix {list(shape)}")
        elif tensor.shape != shape:
            yield Break(d.tensor(f"{module}.{'weight' if plain else CODES}"), str(list(tensor.shape)), str(list(shape)))
    rest = ["ernie.embed_tokens", "ernie.norm"]
    for index in range(int(d.config.get("num_hidden_layers", 0))):
        rest += [f"ernie.layers.{index}.{norm}" for norm in ("input_layernorm", "post_attention_layernorm")]
        rest += [f"ernie.layers.{index}.mlp.gate"] if is_moe(d, index) else []
    for name in rest:
        if f"{name}.weight" not in d.tensors:
            yield Break(f"weights: {name}.weight", "nothing", "a tensor")


def _no_others(d: Directory) -> Iterator[Break]:
    for name in d.tensors:
        if name.startswith("model.") or any(f".{part}_proj." in name for part in ("q", "k", "v", "gate", "up")):
            yield Break(d.tensor(name), "a name of the Hugging Face format", "ernie.*, with qkv_proj and up_gate_proj")


def _static(d: Directory) -> Iterator[Break]:
    for name, tensor in d.tensors.items():
        module, _, kind = name.rpartition(".")
        if kind != CODES:
            continue
        if tensor.dtype != "I8":
            yield Break(d.tensor(name), tensor.dtype, "I8: the bits of E4M3")
        if tensor.shape[0] % HADAMARD:
            yield Break(d.tensor(name), f"{tensor.shape[0]} inputs", f"a multiple of {HADAMARD}")
        for scale in (SCALE, INPUT_SCALE):
            found = d.tensors.get(f"{module}.{scale}")
            if found is None or found.dtype != "F32" or found.shape != (1,):
                text = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                yield Break(d.tensor(f"{module}.{scale}"), text, "F32 [1]")


def _cache(d: Directory) -> Iterator[Break]:
    section, scales = d.config.get(SECTION) or {}, [n for n in d.tensors if n.endswith(tuple(CACHE_SCALES.values()))]
    if section.get("kv_cache_quant_type") is None:
        yield from (
            Break(d.tensor(name), "a scale of the cache", "`kv_cache_quant_type` in config.json") for name in scales
        )
        return
    if section.get("quantization") != MIX:
        yield Break(d.key(f"{SECTION}.quantization"), repr(section.get("quantization")), f"{MIX}, which alone reads it")
    if section["kv_cache_quant_type"] != CACHE_TYPE or any(_sizes(d)):
        return
    head = int(d.config.get("head_dim") or d.config["hidden_size"] // d.config["num_attention_heads"])
    shape = (int(d.config["num_key_value_heads"]) * head,)
    for layer in range(int(d.config["num_hidden_layers"])):
        for name in (f"ernie.layers.{layer}.self_attn.{kind}" for kind in CACHE_SCALES.values()):
            found = d.tensors.get(name)
            if found is None or tuple(found.shape) != shape:
                yield Break(d.tensor(name), "nothing" if found is None else str(list(found.shape)), str(list(shape)))


def _all_quantized(d: Directory) -> Iterator[Break]:
    if STATIC not in _forms(d):
        return
    for module in matrices(d):
        if f"{module}.{CODES}" not in d.tensors:
            yield Break(
                f"weights: {module}.{CODES}", "nothing", f"quantized values, as {STATIC} applies to every linear layer"
            )


def _head(d: Directory) -> Iterator[Break]:
    if not d.config.get("tie_word_embeddings") and "lm_head.weight" not in d.tensors:
        yield Break("weights: lm_head.weight", "nothing", "a matrix [hidden, vocabulary], as the embedding is not tied")


SHARED = (
    Rule("layout", "Exactly one of `torch_dtype` (Hugging Face format) and `dtype` (Paddle layout; public with \
`transformers_version` above 4.56.0).", FAST, _layout),
    Rule("experts-to-the-end", "Every layer from `moe_layer_start_index` on has experts: `moe_layer_interval` and \
`moe_layer_end_index` are not read.", f"{_MODEL}, `Ernie4_5_DecoderLayer`", _every_layer),
    Rule("served", "The first of `architectures` is one that FastDeploy serves.", f"{_MODEL}", _architecture),
)  # fmt: skip

PADDLE = (
    Rule("rope-base", "`rope_theta` at the top level: a missing one becomes 10000.", FAST, rope_base),
    Rule("sizes", "config.json has the sizes of the model.", FAST, _sizes),
    Rule("paddle-names", "Every layer has `ernie.layers.N` tensors, matrices [in, out]: `qkv_proj` is [Q | K | V], \
`up_gate_proj` [gate | up].", f"{_MODEL}; {_LAYERS}/linear.py`", _names),
    Rule("no-public-names", "No tensor has a name of the Hugging Face format.", f"{_MODEL}", _no_others),
    Rule("paddle-head", "`lm_head.weight` where the embedding is not tied.", f"{_MODEL}", _head),
    Rule("paddle-router", "Router weights and selection biases are float32.", f"{_LAYERS}/linear.py`", router),
    Rule("method", "`quantization_config.quantization` is a known name; `mix_quant` has `dense_quant_type` and \
`moe_quant_type`.", f"{_QUANT}/__init__.py`, `mix_quant.py`", _method),
    Rule("is-quantized", "`quantization_config.is_quantized` says whether weights are quantized in the files (true) or at load \
(false); a missing key means true.", f"{_QUANT}/__init__.py`", _announced),
    Rule("weight-only-online", "`wint8` and `wint4` are quantized at load: stored values would be in the order of one kernel \
on one GPU, and experts have no names for theirs.", f"{_QUANT}/weight_only.py`; {_MODEL}; Paddle, `weight_quantize`", _online),
    Rule("static-fp8", "`tensor_wise_fp8`: `quant_weight` int8 bits of E4M3 [in, out], `weight_scale` and `activation_scale` \
float32 [1]; inputs are mixed by a Hadamard transform of 32.", f"{_QUANT}/tensor_wise_fp8.py`; \
`custom_ops/gpu_ops/fused_hadamard_quant_fp8.cu`", _static),
    Rule("cache-scales", "`kv_cache_quant_type: int8` under `mix_quant`: every layer has the largest size of each channel of its \
keys and values, [key heads * head size], as `self_attn.cachek_matmul.activation_scale` and `cachev_matmul`.",
         f"{_QUANT}/kv_cache.py`, `mix_quant.py`", _cache),
    Rule("static-fp8-whole", "`tensor_wise_fp8` holds for every matrix of its group.", f"{_QUANT}/mix_quant.py`", _all_quantized),
)  # fmt: skip
