"""What is learned: ``stage`` and the losses of preferences. Formulas: LLaMA-Factory's trainers for DPO and KTO."""

from __future__ import annotations

from erniecore_key_tables import Left, one_of

from erniecore_llamafactory.draft import LlamaDraft
from erniecore_llamafactory.keys_training import PREFERENCES

STAGES = {"pt": "pt", "sft": "sft", "rm": "reward", "dpo": "", "kto": "kto"}
#: pref_loss -> method
LOSSES = {"sigmoid": "dpo", "hinge": "hinge", "ipo": "ipo", "kto_pair": "kto-pair", "orpo": "orpo", "simpo": "simpo"}
#: methods without a reference model
ALONE = ("orpo", "simpo")


def method(draft: LlamaDraft) -> None:
    """Convert the keys behind ``method.*``."""
    stage = str(draft.get("stage"))
    if stage == "ppo":
        draft.fault("stage", "there is no ppo here; --method grpo learns from reward functions")
        return
    try:
        name = one_of(stage, STAGES) or one_of(str(draft.get("pref_loss")), LOSSES)
    except ValueError as error:
        draft.fault("pref_loss" if stage == "dpo" else "stage", str(error))
        return
    if draft.purpose == "train" or draft.has("stage"):
        draft.set("method.name", name, "stage", *(("pref_loss",) if stage == "dpo" else ()))
    if stage == "dpo":
        _pairs(draft, name)
    elif stage == "kto":
        draft.carry("pref_beta", "method.beta", pin=True)
        draft.carry("kto_chosen_weight", "method.desirable_weight")
        draft.carry("kto_rejected_weight", "method.undesirable_weight")
        _reference(draft)
    draft.drop(f"`stage: {stage}` does not read it", *(key.old for key in PREFERENCES if key.together))
    accuracy(draft, stage)
    noise(draft, stage)
    if draft.get("gradient_accumulation_steps") > 1 and stage in ("dpo", "rm", "kto") and draft.purpose == "train":
        text = "the loss is a mean over all rows of a step, not a mean of the means of its micro-batches"
        draft.note("differs", text, "gradient_accumulation_steps")


def accuracy(draft: LlamaDraft, stage: str) -> None:
    """Convert the keys behind ``method.accuracy``."""
    if stage == "sft":
        draft.carry("compute_accuracy", "method.accuracy")
    draft.drop(f"`stage: {stage}` does not read it", "compute_accuracy")


def noise(draft: LlamaDraft, stage: str) -> None:
    """Convert the key behind ``method.neftune_alpha``."""
    old, alpha = "neftune_noise_alpha", draft.get("neftune_noise_alpha")
    if stage == "sft" and alpha:
        draft.carry(old, "method.neftune_alpha")
    elif draft.has(old):
        draft.leave(Left("noise on embeddings is for `stage: sft` alone", differs=bool(alpha)), old)


def _pairs(draft: LlamaDraft, name: str) -> None:
    draft.carry("pref_beta", "method.beta", pin=True)
    if name == "simpo":
        draft.carry("simpo_gamma", "method.gamma", pin=True)
    if name == "ipo":
        draft.set("method.length_normalization", "mean", "pref_loss")
    smoothing = float(draft.get("dpo_label_smoothing"))
    if smoothing and name != "dpo":
        draft.fault("dpo_label_smoothing", "works with pref_loss: sigmoid alone")
    elif name == "dpo":
        draft.carry("dpo_label_smoothing", "method.label_smoothing")
    if draft.has("pref_ftx"):
        weight = float(draft.get("pref_ftx"))
        draft.set("method.sft_weight", weight + (1.0 if name == "orpo" else 0.0), "pref_ftx")
    for old, text in {"pref_bco_weight": "there is no BCO loss", "ld_alpha": "there is no LD-DPO"}.items():
        if draft.has(old):
            draft.leave(Left(text, differs=bool(draft.get(old))), old)
    if name in ALONE:
        draft.drop(f"{name} has no reference", "ref_model")
    else:
        _reference(draft)


def _reference(draft: LlamaDraft) -> None:
    """The reference is the model before the first step; another one cannot be named."""
    if draft.has("ref_model"):
        other = draft.get("ref_model") != draft.get("model_name_or_path")
        draft.leave(Left("the reference is the model as it was before the first step", differs=other), "ref_model")
