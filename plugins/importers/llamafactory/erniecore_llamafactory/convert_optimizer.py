"""Which optimizer updates the weights: ``optim`` of TrainingArguments, and the ``use_…`` arguments that LLaMA-Factory adds."""

from __future__ import annotations

from math import sqrt
from typing import Any

from erniecore_key_tables import Left

from erniecore_llamafactory.convert_model import OPTIMIZERS
from erniecore_llamafactory.draft import LlamaDraft

#: values of ``optim`` that are AdamW with moments of 8 bits, as bitsandbytes and torchao have them
BITS = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit")
#: those that are APOLLO
APOLLO = ("apollo_adamw", "apollo_adamw_layerwise")
#: argument of ``optim_args`` -> setting, its type, and the default of transformers
_APOLLO_ARGS: dict[str, tuple[str, type, Any]] = {
    "rank": ("optimizer.rank", int, 128),
    "update_proj_gap": ("optimizer.period", int, 200),
    "scale": ("optimizer.factor", float, 1.0),
    "scale_type": ("optimizer.scaling", str, "channel"),
}
_SCALINGS = ("channel", "tensor")
_EVERY_MATRIX = "gradients of all matrices of hidden layers are projected that are larger than the rank"
_RANDOM = "projections are random, never a singular value decomposition"
_SHORTER = "the shorter side of a gradient is projected"
_AT_ONCE = "all weights are updated after the whole backward pass"
_NONE = "GaLore there is not here: AdamW with all moments is used; `use_apollo` has state of low rank, too"


def optimizer(draft: LlamaDraft) -> None:
    """Rates, decay, and the optimizer: AdamW, AdamW with moments of 8 bits, Muon, APOLLO, or a note that there is none such."""
    draft.carry("learning_rate", "train.learning_rate", pin=True)
    draft.carry("weight_decay", "train.weight_decay", pin=True)
    if draft.get("use_muon"):
        draft.set("optimizer.name", "muon", "use_muon")
        draft.drop("`use_muon` decides", "optim", "optim_args")
    elif draft.get("use_apollo"):
        _apollo(draft)
        draft.drop("`use_apollo` decides", "optim", "optim_args")
    elif draft.has("optim"):
        _optim(draft, str(draft.get("optim")))
    draft.drop("AdamW is the default", "use_muon", "use_apollo")
    draft.drop("only of `use_apollo`", *(name for name in draft.table.keys if name.startswith("apollo_")))
    draft.drop(f"no optimizer reads it; {_EVERY_MATRIX} by apollo", "optim_target_modules", "optim_args")
    if draft.has("use_galore"):
        draft.leave(
            Left(_NONE, differs=True) if draft.get("use_galore") else Left("AdamW is the default"), "use_galore"
        )
    if draft.has("label_smoothing_factor"):
        text = "target tokens are learned as they are"
        draft.leave(Left(text, differs=bool(draft.get("label_smoothing_factor"))), "label_smoothing_factor")
    if not draft.get("disable_gradient_checkpointing"):
        draft.set("train.recompute", "full", "disable_gradient_checkpointing")
    elif draft.has("disable_gradient_checkpointing"):
        draft.set("train.recompute", "none", "disable_gradient_checkpointing")


def _optim(draft: LlamaDraft, name: str) -> None:
    """``optim`` decides."""
    if name in BITS:
        draft.set("optimizer.name", "adamw8bit", "optim")
        if name.startswith("paged"):
            draft.note(
                "hint", "moments do not move to the host by pages; `optimizer.offload=true` keeps them there", "optim"
            )
    elif name in APOLLO:
        draft.set("optimizer.name", "apollo", "optim")
        given = dict(
            pair.partition("=")[::2] for pair in str(draft.get("optim_args") or "").replace(" ", "").split(",") if pair
        )
        for argument, (new, kind, default) in _APOLLO_ARGS.items():
            try:
                value = kind(given.pop(argument, default))
                draft.set(new, sqrt(value) if argument == "scale" else value, "optim_args")
            except ValueError:
                draft.fault("optim_args", f"{argument} must be a number, and not below 0")
        _differs(draft, "optim_args", given.pop("proj", "random") == "random", _RANDOM)
        _differs(draft, "optim_args", given.pop("proj_type", "std") == "std", _SHORTER)
        _differs(draft, "optim_args", not given, f"no such setting of APOLLO: {', '.join(given)}")
        _differs(draft, "optim", name == "apollo_adamw", _AT_ONCE)
        _differs(draft, "optim_target_modules", not draft.has("optim_target_modules"), _EVERY_MATRIX)
    else:
        draft.set("optimizer.name", "adamw", "optim")
        if name not in OPTIMIZERS:
            draft.note(
                "differs",
                _NONE if name.startswith("galore") else f"AdamW with all moments is used, not {name}",
                "optim",
            )


def _apollo(draft: LlamaDraft) -> None:
    """``use_apollo`` with its own arguments. The factor of updates is the root of its scale, as in the authors' code."""
    draft.set("optimizer.name", "apollo", "use_apollo")
    draft.set("optimizer.rank", draft.get("apollo_rank"), "apollo_rank")
    draft.set("optimizer.period", draft.get("apollo_update_interval"), "apollo_update_interval")
    scale, scaling = draft.get("apollo_scale"), draft.get("apollo_scale_type")
    if scale > 0:
        draft.set("optimizer.factor", sqrt(scale), "apollo_scale")
    else:
        draft.fault("apollo_scale", "must be above 0")
    if scaling in _SCALINGS:
        draft.set("optimizer.scaling", scaling, "apollo_scale_type")
    else:
        draft.fault("apollo_scale_type", f"must be one of {', '.join(_SCALINGS)}")
    draft.drop("an update is limited by the ratio of two norms, which a factor does not change", "apollo_scale_front")
    for old, same, text in (
        ("apollo_target", "all", _EVERY_MATRIX),
        ("apollo_proj", "random", _RANDOM),
        ("apollo_proj_type", "std", _SHORTER),
        ("apollo_layerwise", False, _AT_ONCE),
    ):
        found = draft.get(old)
        _differs(draft, old, found in (same, [same]), text)
        draft.drop(text, old)


def _differs(draft: LlamaDraft, old: str, same: bool, text: str) -> None:
    """A note where the training is not the same."""
    if not same:
        draft.note("differs", text, old)
