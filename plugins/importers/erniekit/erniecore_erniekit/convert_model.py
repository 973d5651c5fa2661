"""Which model, which method, which adapter, which precision: the keys of ERNIEKit that decide what a run is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from erniecore_key_tables import Left, one_of

from erniecore_erniekit import rules
from erniecore_erniekit.draft import ErniekitDraft as Draft
from erniecore_erniekit.keys_model import ADAPTER, ROUTERS
from erniecore_erniekit.keys_training import PAIRS

_PUBLISHED = re.compile(r"ernie-4\.5-(?P<size>[a-z0-9.-]+?)(-base)?(-paddle|-pt)?")
_PLUGINS = {"ernie4_5": "ernie45", "ernie4_5_moe": "ernie45-moe", "ernie4_5_moe_vl": "ernie45-vl"}
VISION = ("VL-SFT", "OCR-VL-SFT")


class Published(NamedTuple):
    """A published model: the plugin that reads it, and the recipe that describes it."""

    plugin: str
    size: str


def published(name: str) -> Published | None:
    """What ``baidu/ERNIE-4.5-0.3B-Paddle`` is; None for any other name."""
    base = name.rstrip("/").rpartition("/")[2].lower()
    if re.match(r"paddleocr-vl", base):
        return Published("paddleocr-vl", base.removeprefix("paddleocr-vl-"))
    match = _PUBLISHED.fullmatch(base)
    if match is None:
        return None
    size = match["size"]
    if size.startswith("vl-"):
        return Published("ernie45-vl", size.removeprefix("vl-"))
    return Published("ernie45-moe" if re.search(r"-a\d+b", size) else "ernie45", size)


def stage(draft: Draft) -> str:
    """The stage in ERNIEKit's spelling."""
    given = str(draft.get("stage"))
    return next((known for known in rules.STAGES if known.lower() == given.lower()), "SFT")


def plugin_of(draft: Draft) -> str:
    """The model plugin; empty: unknown."""
    if draft.around.config is not None:
        return _PLUGINS.get(str(draft.around.config.get("model_type")), "")
    found = published(str(draft.get("model_name_or_path") or ""))
    return found.plugin if found else ""


def model(draft: Draft) -> None:
    """``model.*``, but for what belongs to routers."""
    if not draft.has("model_name_or_path"):
        if draft.purpose == "train":
            draft.note("hint", "no model: name a model directory with --model DIR", "model_name_or_path")
        draft.drop("there is no model_name_or_path", "continue_training", "from_scratch")
        return
    path, vision = str(draft.get("model_name_or_path")), stage(draft) in VISION
    fresh = (not draft.get("continue_training")) or (vision and draft.has("from_scratch") and draft.get("from_scratch"))
    known = published(path) if draft.around.config is None else None
    if known is not None:
        draft.set("model.name", known.plugin, "model_name_or_path")
    if fresh:
        _new_weights(draft, path, known)
    else:
        hub, olds = _hub(draft, path)
        draft.set("model.path", f"{hub}:{path}" if hub else path, "model_name_or_path", *olds)
        if known is not None and not hub:
            what = "nothing is downloaded that does not name a hub"
            draft.note(
                "hint",
                f"there is no directory {path} here, and {what}: model.path=hf:{path} does",
                "model_name_or_path",
            )
    draft.drop("the model is a directory here, or its weights are new", *_HUB_KEYS)
    draft.drop("weights are loaded from `model.path`, always", "continue_training")
    draft.drop("weights are loaded from `model.path`" if vision else "only VL stages read it", "from_scratch")
    if vision and not draft.has("from_scratch"):
        text = "ERNIEKit's default 1 starts from random weights; here they are loaded"
        draft.note("differs", text, "from_scratch")


#: keys that choose a hub -> hub of each value
_HUB_KEYS: Mapping[str, Mapping[str, str]] = {
    "download_hub": {"huggingface": "hf", "modelscope": "ms"},
    "from_hf_hub": {"True": "hf"},
    "from_modelscope": {"True": "ms"},
}


def _hub(draft: Draft, path: str) -> tuple[str, list[str]]:
    """The hub from which the file has the model fetched, as `model.path` names it, and the keys that say so; empty: none, or the
    model is here."""
    if draft.around.config is not None or path.count("/") != 1 or path.startswith(("/", ".")):
        return "", []
    said = {old: hubs.get(str(draft.get(old)), "") for old, hubs in _HUB_KEYS.items() if draft.has(old)}
    hub = next((hub for hub in said.values() if hub), "")
    return hub, [old for old, named in said.items() if named and named == hub]


def _new_weights(draft: Draft, path: str, known: Published | None) -> None:
    """A model that is trained from the start: its description and its tokenizer."""
    olds = ("continue_training", "from_scratch")
    if draft.around.config is not None:
        draft.set("model.name", plugin_of(draft), "model_name_or_path")
        draft.set("model.architecture", dict(draft.around.config), *olds)
    elif known is not None:
        draft.set("model.size", known.size, *olds)
    else:
        draft.fault("model_name_or_path", "no such directory; new weights need its config.json")
    draft.set("model.tokenizer", path, "model_name_or_path")
    draft.note("effective", "new weights: nothing but the tokenizer is loaded", *(o for o in olds if draft.has(o)))


def method(draft: Draft) -> None:
    """``method.name``; the settings of preference methods are in ``convert_pairs``."""
    try:
        name = one_of(str(draft.get("stage")), rules.STAGES, ignore_case=True)
    except ValueError as error:
        draft.fault("stage", str(error))
        return
    if name:
        draft.set("method.name", name, "stage")
        draft.drop("only for `stage: DPO`", *(key.old for key in PAIRS))


def adapter(draft: Draft) -> None:
    """``adapter.*``: ``fine_tuning`` decides, whatever ``lora`` says."""
    kind = str(draft.get("fine_tuning")).lower()
    if kind not in ("lora", "full"):
        draft.fault("fine_tuning", "must be LoRA or Full")
        return
    if draft.has("lora") and bool(draft.get("lora")) != (kind == "lora"):
        default = "" if draft.has("fine_tuning") else " (its default)"
        text = f"lora: {str(draft.get('lora')).lower()} has no effect: fine_tuning is {kind}{default}, which decides"
        other = "fine_tuning: Full, or adapter=null" if kind == "lora" else "fine_tuning: LoRA, or --adapter lora"
        draft.note("effective", f"{text}. For the other: {other}", "fine_tuning", "lora")
    if kind == "full":
        draft.set("adapter", None, "fine_tuning")
        draft.drop("`fine_tuning: Full` has no adapter", *(key.old for key in ADAPTER))
        return
    if draft.purpose in ("chat", "export"):
        draft.drop("`ernie merge` and --adapter DIR find all of it in the saved adapter", *(key.old for key in ADAPTER))
        return
    _low_rank(draft)
    draft.drop("`fine_tuning` decides, also where it is absent", "lora")


def _low_rank(draft: Draft) -> None:
    scale = float(draft.get("lora_plus_scale"))
    if scale != 1 and quantizer_of(draft) in ("wint8", "wint4-8", "nf4"):
        draft.note("effective", "1: ERNIEKit ignores it on quantized weights", "lora_plus_scale")
        scale = 1.0
    try:
        chosen = rules.adapter(
            draft.get("lora_rank"), draft.get("lora_alpha"), draft.get("rslora"), scale, draft.get("rslora_plus")
        )
    except ValueError as error:
        draft.fault("lora_rank", str(error))
        return
    if not draft.has("fine_tuning"):
        draft.note("effective", "LoRA, the default of ERNIEKit; for full fine-tuning: adapter=null", "fine_tuning")
    draft.set("adapter.name", chosen.name, "fine_tuning", "rslora", "lora_plus_scale", "rslora_plus", *_agreeing(draft))
    draft.set("adapter.rank", chosen.rank, "lora_rank")
    draft.set("adapter.alpha", chosen.alpha, "lora_alpha", *(("rslora",) if draft.get("rslora") else ()))
    if chosen.ratio != 1:
        draft.set("adapter.ratio", chosen.ratio, "lora_plus_scale", "rslora_plus")
        if draft.get("rslora") or draft.get("rslora_plus"):
            text = f"rslora and LoRA+ together: lora-plus with alpha * sqrt(rank) = {chosen.alpha:g}, which is the same"
            draft.note("hint", text, "rslora", "lora_plus_scale")
    if draft.get("rslora_plus"):
        draft.note("effective", "rslora: true, lora_alpha: 4, lora_plus_scale: 4", "rslora_plus")
    draft.carry("lora_path", "adapter.path")


def _agreeing(draft: Draft) -> tuple[str, ...]:
    return ("lora",) if draft.has("lora") and draft.get("lora") else ()


def compute_type(draft: Draft) -> str:
    """The type that counts: ``compute_type``, else what ``weight_quantize_algo`` stands for, else bf16."""
    if not draft.has("compute_type") and draft.has("weight_quantize_algo"):
        return rules.ALGORITHMS.get(str(draft.get("weight_quantize_algo")), "")
    return str(draft.get("compute_type"))


def quantizer_of(draft: Draft) -> str:
    """The quantizer; empty: none."""
    return rules.COMPUTE.get(compute_type(draft), ("", ""))[1]


def precision(draft: Draft) -> None:
    """``train.precision`` and ``quantizer.name``: ``compute_type`` decides."""
    kind = compute_type(draft)
    source = (
        "compute_type" if draft.has("compute_type") or not draft.has("weight_quantize_algo") else "weight_quantize_algo"
    )
    try:
        dtype, quantizer = one_of(kind or str(draft.get(source)), rules.COMPUTE)
    except ValueError as error:
        known = ", ".join(rules.ALGORITHMS)
        draft.fault(source, str(error) if source == "compute_type" else f"must be one of {known}")
        return
    _algorithm(draft, source, kind)
    flags = [
        old
        for old, names in (("bf16", ("bf16",)), ("fp16", ("fp16",)))
        if draft.has(old) and draft.get(old) == (kind in names)
    ]
    for old in ("bf16", "fp16"):
        if draft.has(old) and old not in flags and (draft.get(old) or kind == old):
            draft.note("effective", f"{kind}: compute_type decides, not {old}", old)
    computed = _available(draft, dtype, source)
    agreeing = [old for old in flags if draft.get(old) and not draft.has("compute_type")]
    if draft.purpose == "train" or draft.has(source):
        draft.set("train.precision", computed, source, *agreeing)
    draft.drop("`compute_type` decides", "bf16", "fp16", "compute_type")
    _mixed(draft, computed)
    if quantizer:
        draft.set("quantizer.name", quantizer, source)


def _mixed(draft: Draft, computed: str) -> None:
    """What O1 and main gradients in float32 would change where weights have low precision."""
    if computed != "float32" and draft.purpose == "train":
        if str(draft.get("fp16_opt_level")).upper() != "O2":
            text = f"as O2: weights are kept in {computed}, with float32 masters in the optimizer"
            draft.note("differs", text, "fp16_opt_level")
        if draft.get("amp_master_grad") and draft.get("gradient_accumulation_steps") > 1:
            draft.note("differs", f"gradients of a step add up in {computed}", "amp_master_grad")
    draft.drop("weights are kept in `train.precision`, with float32 masters in the optimizer", "fp16_opt_level")
    draft.drop("gradients have the dtype of their weights; the optimizer works in float32", "amp_master_grad")


def _algorithm(draft: Draft, source: str, kind: str) -> None:
    """What becomes of ``weight_quantize_algo``."""
    old = "weight_quantize_algo"
    if not draft.has(old):
        return
    if source == old:
        draft.note("effective", f"as compute_type: {kind}. ERNIEKit 1.3 ignores it without compute_type", old)
        return
    if rules.ALGORITHMS.get(str(draft.get(old))) != kind:
        draft.note("effective", f"no effect: compute_type is {kind}, which decides", old, "compute_type")
    draft.drop("`compute_type` decides", old)


def _available(draft: Draft, dtype: str, old: str) -> str:
    """``dtype``, or float32 on a device that has nothing else."""
    if not draft.around.dtypes or dtype in draft.around.dtypes:
        return dtype
    text = f"train.precision is float32: device {draft.around.device} has no {dtype}. On another device: --device NAME"
    draft.note("effective", text, old)
    return "float32"


def routers(draft: Draft) -> None:
    """Coefficients of router losses, and multi-token prediction."""
    plugin = plugin_of(draft)
    if plugin == "ernie45":
        reason = "a dense model has neither routers nor prediction layers"
        if draft.get("num_nextn_predict_layers") > 0:
            draft.leave(Left(reason, differs=True), "num_nextn_predict_layers")
        draft.drop(reason, *(key.old for key in ROUTERS if key.together))
        return
    pin = plugin == "ernie45-moe"
    draft.carry("moe_aux_loss_lambda", "model.router_aux_loss", pin=pin)
    draft.carry("moe_z_loss_lambda", "model.router_z_loss")
    draft.carry("moe_orthogonal_loss_lambda", "model.router_orthogonal_loss")
    draft.carry("use_ortho_loss_callback", "model.router_orthogonal_decoupled")
    draft.carry("moe_use_aux_free_update_coef", "model.bias_update_rate")
    if draft.has("moe_use_aux_free") and not draft.get("moe_use_aux_free"):
        whole = draft.settings.get("model.architecture")
        content = {**(whole.value if whole else {}), "moe_use_aux_free": False}
        draft.set("model.architecture", content, "moe_use_aux_free", *(whole.keys if whole else ()))
    draft.drop("the model's config.json decides; only `false` changes it", "moe_use_aux_free")
    _prediction(draft)


def _prediction(draft: Draft) -> None:
    layers = draft.get("num_nextn_predict_layers")
    if layers > 0 and stage(draft) == "DPO":
        draft.note("effective", "0: ERNIEKit trains no prediction layers with preferences", "num_nextn_predict_layers")
        draft.drop("0 for preferences, in ERNIEKit too", "num_nextn_predict_layers")
        layers = 0
    elif draft.has("num_nextn_predict_layers"):
        draft.set("model.mtp", layers > 0, "num_nextn_predict_layers")
    if layers > 0:
        draft.carry("multi_token_pred_lambda", "method.mtp_weight", pin=True)
    draft.drop("no prediction layers are trained", "multi_token_pred_lambda")
