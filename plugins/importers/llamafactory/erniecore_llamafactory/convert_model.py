"""Which model, which adapter, which precision: the arguments of LLaMA-Factory that decide what is trained."""

from __future__ import annotations

import re

from erniecore_key_tables import Left

from erniecore_llamafactory.draft import LlamaDraft
from erniecore_llamafactory.keys_model import ADAPTER

_PUBLISHED = re.compile(r"ernie-4\.5-(?P<size>[a-z0-9.-]+?)(-base)?(-paddle|-pt)?")
_PLUGINS = {
    "ernie4_5": "ernie45",
    "ernie4_5_moe": "ernie45-moe",
    "ernie4_5_moe_vl": "ernie45-vl",
    "paddleocr_vl": "paddleocr-vl",
}
OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_hf",
    "adamw_apex_fused",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
)


def published(name: str) -> str:
    """The plugin of a published model such as ``baidu/ERNIE-4.5-0.3B-PT``; empty for any other name."""
    match = _PUBLISHED.fullmatch(name.rstrip("/").rpartition("/")[2].lower())
    if match is None:
        return ""
    if match["size"].startswith("vl-"):
        return "ernie45-vl"
    return "ernie45-moe" if re.search(r"-a\d+b", match["size"]) else "ernie45"


def plugin_of(draft: LlamaDraft) -> str:
    """The model plugin; empty: unknown."""
    if draft.around.config is not None:
        return _PLUGINS.get(str(draft.around.config.get("model_type")), "")
    return published(str(draft.get("model_name_or_path") or ""))


def model(draft: LlamaDraft) -> None:
    """Convert the keys behind ``model.*``."""
    if not draft.has("model_name_or_path"):
        if draft.purpose == "train":
            draft.note("hint", "no model: name a model directory with --model DIR", "model_name_or_path")
    elif draft.get("train_from_scratch"):
        _new_weights(draft)
    else:
        _directory(draft)
    draft.drop("weights are loaded from `model.path`", "train_from_scratch")
    if draft.has("moe_aux_loss_coef") and plugin_of(draft) != "ernie45":
        draft.carry("moe_aux_loss_coef", "model.router_aux_loss")
    draft.drop("a dense model has no router", "moe_aux_loss_coef")
    for old in ("add_tokens", "add_special_tokens", "new_special_tokens_config"):
        if draft.has(old):
            draft.leave(
                Left("the vocabulary is that of the model directory; tokens cannot be added", differs=True), old
            )
    if draft.has("rope_scaling"):
        text = "the model's config.json decides; model.architecture replaces single keys of it"
        draft.leave(Left(text, differs=True), "rope_scaling")


def _directory(draft: LlamaDraft) -> None:
    path, plugin = str(draft.get("model_name_or_path")), plugin_of(draft)
    draft.set("model.path", path, "model_name_or_path")
    if draft.around.config is not None:
        return
    if plugin:
        draft.set("model.name", plugin, "model_name_or_path")
        text = f"there is no directory {path} here, and nothing is downloaded that does not name a hub: model.path=hf:{path} does"
    else:
        text = f"{path} is no directory here and no published ERNIE model: name a model directory with --model DIR"
    draft.note("hint", text, "model_name_or_path")


def _new_weights(draft: LlamaDraft) -> None:
    """A model that is trained from the start: its description and its tokenizer."""
    if draft.around.config is None:
        draft.fault("model_name_or_path", "no such directory; new weights need its config.json")
        return
    draft.set("model.architecture", dict(draft.around.config), "train_from_scratch")
    if plugin_of(draft):
        draft.set("model.name", plugin_of(draft), "model_name_or_path")
    draft.set("model.tokenizer", str(draft.get("model_name_or_path")), "model_name_or_path")


#: keys of OFT
_OFT = ("oft_rank", "oft_block_size", "oft_target")
#: `num_cayley_neumann_terms` of PEFT's OFTConfig, which LLaMA-Factory leaves at its default
_PEFT_TERMS = 5


def adapter(draft: LlamaDraft) -> None:
    """Convert the keys behind ``adapter.*``."""
    kind = str(draft.get("finetuning_type")).lower()
    keys = [key.old for key in ADAPTER]
    if draft.purpose != "train":
        paths = draft.get("adapter_name_or_path") or []
        if paths:
            draft.set("adapter.path", paths[0], "adapter_name_or_path")
        draft.drop("the saved adapter says it", *keys)
    elif kind == "full":
        draft.set("adapter", None, "finetuning_type")
        draft.drop("`finetuning_type: full` has no adapter", *keys, "adapter_name_or_path")
    elif kind == "lora":
        _low_rank(draft)
        draft.drop("only with `finetuning_type: oft`", *_OFT)
    elif kind == "oft":
        _orthogonal(draft)
        draft.drop("only with `finetuning_type: lora`", *keys)
    elif kind == "freeze":
        draft.fault("finetuning_type", "there is no freeze here: lora, oft or full")
    else:
        draft.fault("finetuning_type", "must be lora, oft or full")


def _orthogonal(draft: LlamaDraft) -> None:
    """OFT as PEFT computes it by default: five terms of the series."""
    if draft.get("oft_rank"):
        text = "a number of blocks, which differ in size from layer to layer: give oft_block_size, with oft_rank: 0"
        draft.fault("oft_rank", text)
        return
    draft.set("adapter.name", "oft", "finetuning_type")
    draft.set("adapter.block_size", draft.get("oft_block_size"), "oft_block_size")
    draft.set("adapter.neumann_terms", _PEFT_TERMS, "finetuning_type")
    if draft.has("oft_target"):
        _targets(draft, "oft_target")
    _saved(draft)
    _more_modules(draft)


def _targets(draft: LlamaDraft, old: str) -> None:
    targets = draft.get(old)
    draft.set("adapter.targets", ["all-linear"] if "all" in targets else targets, old)


def _low_rank(draft: LlamaDraft) -> None:
    ratio = float(draft.get("loraplus_lr_ratio") or 1)
    chosen = {"use_dora": "dora"} if draft.get("use_dora") else {}
    chosen |= {"use_rslora": "rslora"} if draft.get("use_rslora") else {}
    if len(chosen) > 1 or ("use_dora" in chosen and ratio != 1):
        draft.fault("use_dora", "DoRA goes neither with rsLoRA nor with LoRA+ here")
        return
    name = next(iter(chosen.values()), "lora" if ratio == 1 else "lora-plus")
    rank = draft.get("lora_rank")
    if rank < 1:
        draft.fault("lora_rank", "must be 1 or more")
        return
    if not draft.has("finetuning_type"):
        draft.note("effective", "LoRA, the default of LLaMA-Factory; for all weights: adapter=null", "finetuning_type")
    draft.set("adapter.name", name, "finetuning_type", "use_rslora", "use_dora", "loraplus_lr_ratio")
    draft.set("adapter.rank", rank, "lora_rank")
    draft.set("adapter.alpha", float(draft.get("lora_alpha") or 2 * rank), "lora_alpha")
    draft.carry("lora_dropout", "adapter.dropout")
    if draft.has("lora_target"):
        _targets(draft, "lora_target")
    if ratio != 1:
        draft.set("adapter.ratio", ratio, "loraplus_lr_ratio")
    if draft.get("pissa_init"):
        draft.set("adapter.init", "pissa", "pissa_init")
    draft.drop("A starts at random, B at 0", "pissa_init")
    _saved(draft)
    _more_modules(draft)


def _more_modules(draft: LlamaDraft) -> None:
    if draft.has("additional_target"):
        text = "modules beside the adapter cannot be trained"
        draft.leave(Left(text, differs=True), "additional_target")


def _saved(draft: LlamaDraft) -> None:
    """An adapter that is there already."""
    paths = draft.get("adapter_name_or_path") or []
    if len(paths) > 1 or (paths and draft.get("create_new_adapter")):
        draft.fault(
            "adapter_name_or_path", "merge the adapters into the model first: ernie merge ADAPTER --base DIR --out DIR"
        )
    elif paths:
        draft.set("adapter.path", paths[0], "adapter_name_or_path")
    draft.drop("without an earlier adapter, the adapter is new", "create_new_adapter")


def quantization(draft: LlamaDraft) -> None:
    """Convert the keys behind ``quantizer.name``."""
    olds = ("quantization_type", "quantization_method")
    if draft.has("quantization_bit"):
        bits, kind = draft.get("quantization_bit"), str(draft.get("quantization_type"))
        name = {4: "nf4", 8: "wint8"}.get(bits, "")
        if not name:
            draft.fault("quantization_bit", "weights of 4 or 8 bits can be trained on")
        elif bits == 4 and kind != "nf4":
            draft.fault("quantization_type", "there is nf4 alone")
        else:
            draft.set("quantizer.name", name, "quantization_bit", *(("quantization_type",) if bits == 4 else ()))
            if name != "nf4" or str(draft.get("quantization_method")) != "bnb":
                text = f"weights are rounded as {name} does it; other methods of 4 or 8 bits round otherwise"
                draft.note("differs", text, "quantization_method")
        draft.drop("the quantizer decides", *olds)
    draft.drop("only with `quantization_bit`", *olds)
    if draft.get("fp8"):
        draft.set("quantizer.name", "fp8-qat", "fp8")
    draft.drop("weights are not in FP8", "fp8")


def precision(draft: LlamaDraft) -> None:
    """Convert the keys behind ``train.precision``."""
    flags = [old for old in ("bf16", "pure_bf16", "fp16") if draft.get(old)]
    if "fp16" in flags and len(flags) > 1:
        draft.fault("fp16", "not together with bf16")
        return
    wanted = {"fp16": "float16"}.get(flags[0], "bfloat16") if flags else ""
    if wanted:
        draft.set("train.precision", _available(draft, wanted, flags[0]), *flags)
    draft.drop("`train.precision` is float32 unless a flag is true", "bf16", "pure_bf16", "fp16")


def _available(draft: LlamaDraft, dtype: str, old: str) -> str:
    """``dtype``, or float32 on a device that has nothing else."""
    if not draft.around.dtypes or dtype in draft.around.dtypes:
        return dtype
    text = f"train.precision is float32: device {draft.around.device} has no {dtype}. On another device: --device NAME"
    draft.note("effective", text, old)
    return "float32"
