"""``stage: DPO``: which loss, and what belongs to it. Formulas: ``erniecore_preference``'s losses and ERNIEKit's criterion."""

from __future__ import annotations

from erniecore_key_tables import Left, one_of

from erniecore_erniekit import rules
from erniecore_erniekit.convert_model import plugin_of, stage
from erniecore_erniekit.draft import ErniekitDraft as Draft

#: methods whose loss has the setting
SMOOTHED = ("dpo", "simpo")
REFERENCE_FREE = ("dpo", "ipo", "hinge")
WITHOUT_REFERENCE = ("simpo", "orpo")


def pairs(draft: Draft) -> None:
    """``method.*`` of a preference method."""
    if stage(draft) != "DPO":
        return
    try:
        name = one_of(str(draft.get("loss_type")), rules.LOSSES)
    except ValueError as error:
        draft.fault("loss_type", str(error))
        return
    draft.set("method.name", name, "loss_type", "stage")
    if name == "orpo":
        draft.drop("ERNIEKit's orpo has no beta; its weight is `pref_loss_ratio`", "beta")
    else:
        draft.carry("beta", "method.beta", pin=True)
    _lengths(draft, name)
    _margins(draft, name)
    _reference(draft, name)
    _weights(draft, name)
    if draft.get("mask_out_eos_token"):
        default = "" if draft.has("mask_out_eos_token") else " (true, the default of ERNIEKit)"
        text = f"the end token of an answer counts in its log-probability{default}"
        draft.note("differs", text, "mask_out_eos_token")
    draft.drop("the end token of an answer counts in its log-probability", "mask_out_eos_token")
    text = (
        "the loss is a mean over all pairs of a step; ERNIEKit takes the mean of every micro-batch, then of those means"
    )
    draft.note("differs", text)
    if plugin_of(draft) == "ernie45-moe" and not draft.has("moe_use_aux_free"):
        text = (
            "the selection bias of config.json is used; ERNIEKit may switch it off for preferences when this is absent"
        )
        draft.note("differs", text, "moe_use_aux_free")


def _lengths(draft: Draft, name: str) -> None:
    if name in WITHOUT_REFERENCE:
        draft.drop(f"{name} always divides by the length", "normalize_logps")
        return
    how = "mean" if name == "ipo" else "balanced" if draft.get("normalize_logps") else "none"
    draft.set("method.length_normalization", how, "normalize_logps")
    if name == "ipo":
        draft.note("effective", "ipo divides by the length, whatever normalize_logps says", "loss_type")
    elif not draft.has("normalize_logps"):
        text = (
            "true, the default of ERNIEKit: length_normalization is balanced, which is not the DPO of the paper (none)"
        )
        draft.note("effective", text, "normalize_logps")


def _margins(draft: Draft, name: str) -> None:
    if name in SMOOTHED:
        draft.carry("label_smoothing", "method.label_smoothing")
    elif draft.get("label_smoothing"):
        draft.note("effective", f"no effect: {name} has no label smoothing", "label_smoothing")
    draft.drop(f"{name} has no label smoothing", "label_smoothing")
    if draft.get("offset_alpha"):
        if name != "dpo":
            draft.fault("offset_alpha", "works with loss_type: sigmoid alone")
        text = "0: ERNIEKit reads no margin from rows, so it has no effect. Rows with a `margin` make method.offset_alpha work"
        draft.note("effective", text, "offset_alpha")
    if name == "dpo" and draft.has("offset_alpha"):
        draft.set("method.offset_alpha", 0.0, "offset_alpha")
    draft.drop(f"{name} has no margin", "offset_alpha")
    if name == "simpo":
        draft.carry("simpo_gamma", "method.gamma", pin=True)
    if name == "dpop":
        draft.carry("dpop_lambda", "method.penalty", pin=True)
        draft.set("method.penalty_outside", True, "loss_type")
    draft.drop("for loss_type simpo alone", "simpo_gamma")
    draft.drop("for loss_type dpop alone", "dpop_lambda")


def _reference(draft: Draft, name: str) -> None:
    if name in REFERENCE_FREE:
        draft.carry("reference_free", "method.reference_free")
    elif name in WITHOUT_REFERENCE:
        draft.drop(f"{name} has no reference", "reference_free")
    elif draft.get("reference_free"):
        draft.leave(Left(f"{name} compares with a reference here", differs=True), "reference_free")
    draft.drop(f"{name} compares with a reference", "reference_free")
    old, steps = "ref_model_update_steps", draft.get("ref_model_update_steps")
    if name not in WITHOUT_REFERENCE and not draft.get("reference_free") and draft.has(old):
        full = str(draft.get("fine_tuning")).lower() == "full"
        draft.set("method.reference_update_steps", max(steps, 0) if full else 0, old)
        if steps > 0 and not full:
            draft.note("effective", "-1: ERNIEKit renews a second model, which LoRA does not have", old)
    draft.drop("there is no reference", old)


def _weights(draft: Draft, name: str) -> None:
    preference, tuning = float(draft.get("pref_loss_ratio")), float(draft.get("sft_loss_ratio"))
    if preference <= 0:
        draft.fault("pref_loss_ratio", "must be above 0; without preferences it is stage: SFT")
        return
    if name == "orpo":
        if draft.has("sft_loss_ratio") and tuning != 1:
            draft.note("effective", "1: orpo sets it", "sft_loss_ratio")
        draft.set("method.beta", preference, "pref_loss_ratio")
        draft.set("method.sft_weight", 1.0, "sft_loss_ratio")
        return
    if draft.has("sft_loss_ratio") or (draft.has("pref_loss_ratio") and tuning):
        draft.set("method.sft_weight", tuning / preference, "sft_loss_ratio", "pref_loss_ratio")
    if preference != 1:
        text = f"1: the loss is divided by {preference:g}; AdamW takes the same steps, but clipping sees other norms"
        draft.note("differs", text, "pref_loss_ratio")
    draft.drop("1: the loss counts as it is", "pref_loss_ratio")
