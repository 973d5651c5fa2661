"""A whole ERNIEKit file: every key is mapped, dropped with a reason, unknown, or a problem. Reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from erniecore_key_tables import convert as convert_by

from erniecore.api.importer import Imported
from erniecore_erniekit import convert_data, convert_media, convert_model, convert_pairs, convert_training
from erniecore_erniekit.command import ADVICE, PURPOSES, command_for
from erniecore_erniekit.draft import ErniekitDraft, Surroundings
from erniecore_erniekit.keys_other import EXPORT, FP8, GENERATION, SERVING
from erniecore_erniekit.table import TABLE


def fp8(draft: ErniekitDraft) -> None:
    """Keys of FP8 training say nothing without it."""
    if convert_model.compute_type(draft) != "fp8":
        draft.drop("only with `compute_type: fp8`", *(key.old for key in FP8))


#: in an order in which later steps may look at the settings of earlier ones
STEPS: tuple[Callable[[ErniekitDraft], None], ...] = (
    convert_model.model,
    convert_model.method,
    convert_pairs.pairs,
    convert_model.adapter,
    convert_model.precision,
    convert_model.routers,
    convert_media.media,
    convert_data.data,
    convert_data.packing,
    convert_training.run,
    convert_training.batches,
    convert_training.length,
    convert_training.optimizer,
    convert_training.schedule,
    convert_training.recompute,
    convert_training.parallel,
    convert_training.device,
    fp8,
)


def purpose_of(given: Mapping[str, Any]) -> str:
    """Which command of ERNIEKit a file is for. One that trains names data, or says ``do_train``."""
    draft = ErniekitDraft(given=given)
    if draft.get("do_train") or any(draft.has(old) for old in ("train_dataset_path", "text_dataset_path", "input_dir")):
        return "train" if not draft.has("do_train") or draft.get("do_train") else "eval"
    if draft.has("eval_dataset_path") or draft.get("do_eval"):
        return "eval"
    if any(key.old in given for key in EXPORT):
        return "export"
    if any(key.old in given for key in (*SERVING, *GENERATION)):
        return "chat"
    return "eval" if draft.has("do_train") else "train"


def convert(given: Mapping[str, Any], around: Surroundings | None = None) -> Imported:
    """The outcome for a file's content (flat, dotted keys allowed); a pure function."""

    def draft_of(flat: Mapping[str, Any], problems: dict[str, str]) -> ErniekitDraft:
        return ErniekitDraft(given=flat, around=around or Surroundings(), purpose=purpose_of(flat), problems=problems)

    outcome, draft = convert_by(TABLE, given, draft_of, STEPS)
    return replace(
        outcome, command=command_for(outcome, draft.purpose), purpose=PURPOSES.get(draft.purpose, ""), advice=ADVICE
    )
