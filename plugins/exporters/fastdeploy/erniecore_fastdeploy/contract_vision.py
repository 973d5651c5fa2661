"""What FastDeploy expects of models that see, beside the rules for texts: ERNIE 4.5 VL in both layouts, PaddleOCR-VL in the
Hugging Face format alone. Rules only. Paths are FastDeploy's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from erniecore_model_check.rules import HF_RULES, SECTION, Break, Directory, Rule

#: ``model_type`` of the flat config.json that the server reads, of the nested one, and of PaddleOCR-VL
VL, VL_NESTED, OCR = "ernie4_5_moe_vl", "ernie4_5_vl_moe", "paddleocr_vl"
VL_ARCHITECTURE, OCR_ARCHITECTURE = "Ernie4_5_VLMoeForConditionalGeneration", "PaddleOCRVLForConditionalGeneration"
_VL = "FastDeploy, `model_executor/models/ernie4_5_vl/ernie4_5_vl_moe.py`"
_TOWER = "FastDeploy, `model_executor/models/ernie4_5_vl/dfnrope/modeling.py`"
_OCR = "FastDeploy, `model_executor/models/paddleocr_vl/paddleocr_vl.py`"
_SIGLIP = "FastDeploy, `model_executor/models/paddleocr_vl/siglip.py`, `projector.py`"
_CONFIG = "FastDeploy, `config.py`"
#: rules of the Hugging Face format that hold for models that see too
_KEPT = ("one-dtype-key", "rope", "no-remote-code", "metadata", "files", "head")
#: where FastDeploy replaces an image in a rendered prompt, and the tokens that stand there in ours
MARKERS: Mapping[str, str] = {
    "<|IMAGE_PLACEHOLDER|>": "<|image@placeholder|>",
    "<|VIDEO_PLACEHOLDER|>": "<|video@placeholder|>",
}
PREPROCESSOR, TEMPLATE = "preprocessor_config.json", "chat_template.jinja"
_VISION = (
    "depth",
    "embed_dim",
    "hidden_size",
    "num_heads",
    "mlp_ratio",
    "patch_size",
    "in_channels",
    "spatial_merge_size",
)
_BLOCK = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "norm1", "norm2")
_NUMBERS, _BESIDE = ("F32", "BF16", "F16"), ("vision_model.", "resampler_model.", "mlp_AR.")
_OCR_VISION = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_channels",
    "image_size",
)


def has_vision(config: Mapping[str, Any]) -> bool:
    """Whether this config.json is one of a model that sees."""
    return config.get("model_type") in (VL, VL_NESTED, OCR)


def vision_rules(config: Mapping[str, Any], layout: str) -> tuple[Rule, ...]:
    """The rules that a model that sees has instead of those of the Hugging Face format for texts, or beside those of the Paddle
    layout; none for a model of texts."""
    if not has_vision(config):
        return ()
    public = tuple(rule for rule in HF_RULES if rule.name in _KEPT) if layout == "torch" else ()
    own = OCR_RULES if config["model_type"] == OCR else VL_RULES
    return (*public, *own)


class Kinds(NamedTuple):
    """Layers ``start`` to ``end`` (included) have experts of text and of vision: (how many, width) of each kind."""

    start: int
    end: int
    text: tuple[int, int]
    vision: tuple[int, int]

    def experts(self, index: int) -> Iterator[tuple[int, int]]:
        """Number and width of each expert of a layer, none of a dense one; those of vision follow those of text."""
        if self.start <= index <= self.end:
            (count, width), (more, other) = self.text, self.vision
            yield from ((i, width if i < count else other) for i in range(count + more))


def kinds_of(d: Directory) -> Kinds | None:
    """``None`` where config.json does not say it in a way that the server reads."""
    if any(_pairs(d)) or any(_ranges(d)):
        return None
    starts, ends = _bounds(d)
    counts, widths = d.config["moe_num_experts"], d.config["moe_intermediate_size"]
    return Kinds(starts[0], ends[0], (counts[0], widths[0]), (counts[1], widths[1]))


def _flat(d: Directory) -> Iterator[Break]:
    found = str(d.config.get("model_type"))
    if found != VL:
        yield Break(d.key("model_type"), found, f"{VL}, with the keys of the text part at the top level")


def _pairs(d: Directory) -> Iterator[Break]:
    for key in ("moe_num_experts", "moe_intermediate_size"):
        value = d.config.get(key)
        if not (isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)):
            yield Break(d.key(key), repr(value), "two numbers: of text, of vision")
        elif key == "moe_num_experts" and value[0] != value[1]:
            yield Break(d.key(key), repr(value), "equal ones: both have a row of one table of selection biases")


def _bounds(d: Directory) -> tuple[list[int], list[int]]:
    """First and last layer with experts, of text and of vision, as the server reads them."""
    layers, both = int(d.config.get("num_hidden_layers", 0)), []
    for key, usual in (("moe_layer_start_index", 0), ("moe_layer_end_index", layers)):
        value = d.config.get(key)
        value = usual if value is None else value
        both.append([min(int(n), layers - 1) for n in (value if isinstance(value, list) else [value, value])])
    return both[0], both[1]


def _ranges(d: Directory) -> Iterator[Break]:
    starts, ends = _bounds(d)
    for key, found in (("moe_layer_start_index", starts), ("moe_layer_end_index", ends)):
        if found[0] != found[1]:
            yield Break(d.key(key), repr(d.config.get(key)), "the same layers for text and vision")
    if ends[0] < starts[0]:
        yield Break(d.key("moe_layer_end_index"), repr(d.config.get("moe_layer_end_index")), "not before the first one")
    if int(d.config.get("moe_layer_interval", 1)) != 1:
        yield Break(d.key("moe_layer_interval"), repr(d.config["moe_layer_interval"]), "1, as it is not read")


def _bias(d: Directory) -> Iterator[Break]:
    if d.config.get("moe_use_aux_free") is not True:
        yield Break(
            d.key("moe_use_aux_free"), repr(d.config.get("moe_use_aux_free")), "true: else the biases are not read"
        )


def _tower(d: Directory) -> Iterator[Break]:
    vision = d.config.get("vision_config")
    vision = vision if isinstance(vision, Mapping) else {}
    for key in _VISION:
        if not isinstance(vision.get(key), int | float):
            yield Break(d.key(f"vision_config.{key}"), repr(vision.get(key)), "a number")
    if vision.get("embed_dim") != vision.get("hidden_size"):
        yield Break(d.key("vision_config.embed_dim"), repr(vision.get("embed_dim")), "the same as hidden_size")
    for key, expected in (("spatial_conv_size", int), ("freq_allocation", int)):
        if not isinstance(d.config.get(key), expected):
            yield Break(d.key(key), repr(d.config.get(key)), "a number")
    for key, value in (("temporal_conv_size", 2), ("rope_3d", True)):
        if d.config.get(key) != value:
            yield Break(d.key(key), repr(d.config.get(key)), repr(value))


def _vision_ids(d: Directory) -> Iterator[Break]:
    first = d.config.get("im_patch_id")
    for key in ("image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id"):
        value = d.config.get(key)
        if isinstance(first, int) and isinstance(value, int) and value < first:
            yield Break(d.key(key), str(value), f"from im_patch_id ({first}) on: such tokens go to the vision experts")


def _vl_names(d: Directory) -> Iterator[Break]:
    kinds, public = kinds_of(d), "torch_dtype" in d.config
    hidden, vision = d.config.get("hidden_size"), d.config.get("vision_config") or {}
    if kinds is None or not isinstance(hidden, int):
        return
    text = "model" if public else "ernie"
    names = [f"vision_model.{name}" for name in ("patch_embed.proj.weight", "ln.weight", "ln.bias")]
    for block, name in product(range(int(vision.get("depth", 0))), _BLOCK):
        names += [f"vision_model.blocks.{block}.{name}.{part}" for part in ("weight", "bias")]
    resampler = [f"{part}.{i}" for part, i in product(("spatial_linear", "temporal_linear"), (0, 2, 3))] + ["mlp"]
    names += [f"{text}.resampler_model.{name}.{part}" for name in resampler for part in ("weight", "bias")]
    names += [f"{text}.resampler_model.after_norm.weight"]
    parts = ("gate_proj", "up_proj", "down_proj") if public else ("up_gate_proj", "down_proj")
    for index in range(int(d.config.get("num_hidden_layers", 0))):
        place = f"{text}.layers.{index}.mlp."
        experts = [expert for expert, _ in kinds.experts(index)]
        names += [f"{place}experts.{expert}.{part}.weight" for expert in experts for part in parts] if public else []
        names += [f"{place}moe_statics.e_score_correction_bias"] if experts else []
    for name in (name for name in names if name not in d.tensors):
        yield Break(f"weights: {name}", "nothing", "a tensor")
    yield from _routers(d, kinds, text, hidden)


def _routers(d: Directory, kinds: Kinds, text: str, hidden: int) -> Iterator[Break]:
    shape = (hidden, kinds.text[0])
    for index in range(kinds.start, kinds.end + 1):
        for name in (f"{text}.layers.{index}.mlp.gate.{weight}" for weight in ("weight", "weight_1")):
            tensor = d.tensors.get(name)
            if tensor is None or tensor.dtype != "F32" or tuple(tensor.shape) != shape:
                found = "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
                yield Break(d.tensor(name), found, f"F32 {list(shape)}, in both layouts")


def _markers(d: Directory) -> Iterator[Break]:
    file = d.path / TEMPLATE
    if not file.is_file():
        yield Break(TEMPLATE, "no such file", "a chat template: prompts with images need one")
        return
    source = file.read_text(encoding="utf-8")
    for marker in MARKERS.values():
        if marker not in source:
            yield Break(TEMPLATE, f"no {marker}", "where an image or a video stands: the server looks for this text")


def _preprocessor(d: Directory) -> Iterator[Break]:
    file = d.path / PREPROCESSOR
    if not file.is_file():
        yield Break(PREPROCESSOR, "no such file", "the sizes that images get")
        return
    said = json.loads(file.read_text(encoding="utf-8"))
    needed = ["patch_size", "merge_size", *(("min_pixels", "max_pixels") if d.config.get("model_type") == OCR else ())]
    for key in needed:
        if type(said.get(key)) is not int:
            yield Break(f"{PREPROCESSOR}: {key}", repr(said.get(key)), "a number")


def _plain_vision(d: Directory) -> Iterator[Break]:
    for name, tensor in d.tensors.items():
        if any(part in name for part in _BESIDE) and tensor.dtype not in _NUMBERS:
            yield Break(d.tensor(name), tensor.dtype, "numbers that are not quantized")


def _public_only(d: Directory) -> Iterator[Break]:
    if "torch_dtype" not in d.config:
        yield Break(d.key("torch_dtype"), "nothing", "the type of the weights: its model reads this key")
    if d.config.get(SECTION) is not None:
        yield Break(d.key(SECTION), "a section", "none: say the quantization when the server starts")


def _ocr_config(d: Directory) -> Iterator[Break]:
    scaling, vision = d.config.get("rope_scaling"), d.config.get("vision_config")
    sections = scaling.get("mrope_section") if isinstance(scaling, Mapping) else None
    if not isinstance(sections, list):
        yield Break(
            d.key("rope_scaling.mrope_section"), repr(sections), "three numbers: by it positions have three axes"
        )
    if d.config.get("tie_word_embeddings"):
        yield Break(d.key("tie_word_embeddings"), "true", "false: the head is read from the files")
    if not isinstance(d.config.get("image_token_id"), int):
        yield Break(d.key("image_token_id"), repr(d.config.get("image_token_id")), "a number")
    vision = vision if isinstance(vision, Mapping) else {}
    for key in _OCR_VISION:
        if not isinstance(vision.get(key), int):
            yield Break(d.key(f"vision_config.{key}"), repr(vision.get(key)), "a number")


def _ocr_names(d: Directory) -> Iterator[Break]:
    if any(_ocr_config(d)):
        return
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    for index in range(int(d.config.get("num_hidden_layers", 0))):
        parts = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
        parts += ["input_layernorm", "post_attention_layernorm"]
        names += [f"model.layers.{index}.{part}.weight" for part in parts]
    tower, both = "visual.vision_model.", ("weight", "bias")
    for index in range(int(d.config["vision_config"]["num_hidden_layers"])):
        parts = [f"self_attn.{x}_proj" for x in ("q", "k", "v", "out")] + [
            "mlp.fc1",
            "mlp.fc2",
            "layer_norm1",
            "layer_norm2",
        ]
        names += [f"{tower}encoder.layers.{index}.{part}.{leaf}" for part in parts for leaf in both]
    names += [f"{tower}embeddings.patch_embedding.{leaf}" for leaf in both]
    names += [f"{tower}embeddings.position_embedding.weight", *(f"{tower}post_layernorm.{leaf}" for leaf in both)]
    names += [f"mlp_AR.{part}.{leaf}" for part in ("pre_norm", "linear_1", "linear_2") for leaf in both]
    for name in (name for name in names if name not in d.tensors):
        yield Break(
            f"weights: {name}", "nothing", "a tensor: one that is missing is left as it was made, without an error"
        )


VL_RULES = (
    Rule("vl-flat", "config.json is the flat one of the published directories.", f"{_CONFIG}; {_VL}", _flat),
    Rule("vl-pairs", "Numbers and widths of experts are lists of two, with as many experts of each kind.", f"{_VL}", _pairs),
    Rule("vl-layers", "Text and vision have their experts in the same layers, without gaps.", f"{_VL}", _ranges),
    Rule("vl-biases", "`moe_use_aux_free` is true.", f"{_VL}", _bias),
    Rule("vl-tower", "The sizes of the tower, of what follows it, and of positions on three axes.", f"{_TOWER}; \
`modeling_resampler.py`; `config.py`", _tower),
    Rule("vl-ids", "Tokens around images have ids above that of their placeholder: the server takes all from there on for \
vision.", f"{_VL}, `prepare_vl_moe_meta`", _vision_ids),
    Rule("vl-names", "Tower as `vision_model.`, resampler below the text part, experts of vision behind those of text, routers \
float32 [hidden, experts].", f"{_VL}, `load_weights`; {_TOWER}", _vl_names),
    Rule("vl-numbers", "Tower and resampler are not quantized.", f"{_TOWER}", _plain_vision),
    Rule("vl-template", "chat_template.jinja writes `<|image@placeholder|>` and `<|video@placeholder|>`.", "FastDeploy, \
`input/ernie4_5_vl_processor/process.py`", _markers),
    Rule("vl-preprocessor", "preprocessor_config.json beside the weights.", "FastDeploy, \
`input/ernie4_5_vl_processor/image_preprocessor`", _preprocessor),
)  # fmt: skip

OCR_RULES = (
    Rule("ocr-public", "The Hugging Face format with `torch_dtype`, not quantized.", f"{_OCR}, `PaddleOCRVLModel`; {_SIGLIP}",
         _public_only),
    Rule("ocr-config", "Three axes of positions, a head of its own, the token of images, the sizes of the tower.", f"{_OCR}; \
{_CONFIG}; `paddleocr_vl/config.py`", _ocr_config),
    Rule("ocr-names", "All tensors of text part, tower and projector under the published names.", f"{_OCR}, `load_weights`",
         _ocr_names),
    Rule("ocr-numbers", "Tower and projector are not quantized.", f"{_SIGLIP}", _plain_vision),
    Rule("ocr-preprocessor", "preprocessor_config.json has the sizes of images and patches.", "FastDeploy, \
`input/paddleocr_vl_processor/image_processor.py`", _preprocessor),
)  # fmt: skip
