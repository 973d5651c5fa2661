"""A whole LLaMA-Factory file: every argument is mapped, dropped with a reason, unknown, or a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from erniecore_key_tables import convert as convert_by

from erniecore.api.importer import Imported
from erniecore_llamafactory import (
    convert_data,
    convert_media,
    convert_methods,
    convert_model,
    convert_optimizer,
    convert_training,
)
from erniecore_llamafactory.command import PURPOSES, advice, command_for
from erniecore_llamafactory.draft import LlamaDraft, Surroundings
from erniecore_llamafactory.table import TABLE

#: in an order in which later steps may look at the settings of earlier ones
STEPS: tuple[Callable[[LlamaDraft], None], ...] = (
    convert_model.model,
    convert_methods.method,
    convert_model.adapter,
    convert_model.quantization,
    convert_model.precision,
    convert_media.media,
    convert_data.data,
    convert_data.packing,
    convert_training.run,
    convert_training.batches,
    convert_training.length,
    convert_optimizer.optimizer,
    convert_training.schedule,
    convert_training.parallel,
    convert_training.device,
)


def purpose_of(given: Mapping[str, Any]) -> str:
    """Which command of LLaMA-Factory a file is for. One that trains says ``do_train``, or names data and nothing else to do."""
    draft = LlamaDraft(given=given)
    if draft.get("do_train"):
        return "train"
    if draft.has("export_dir"):
        return "export"
    if any(draft.get(old) for old in ("do_eval", "do_predict")) or draft.has("task"):
        return "eval"
    trains = ("dataset", "stage", "finetuning_type", "output_dir", "learning_rate", "num_train_epochs", "max_steps")
    serves = draft.has("infer_backend") or draft.has("adapter_name_or_path")
    return "chat" if serves and not any(draft.has(old) for old in trains) else "train"


def convert(given: Mapping[str, Any], around: Surroundings | None = None) -> Imported:
    """The outcome for a file's content; a pure function, but for a DeepSpeed configuration that the file names."""

    def draft_of(flat: Mapping[str, Any], problems: dict[str, str]) -> LlamaDraft:
        return LlamaDraft(given=flat, around=around or Surroundings(), purpose=purpose_of(flat), problems=problems)

    outcome, draft = convert_by(TABLE, given, draft_of, STEPS)
    command = command_for(outcome, draft.purpose, str(draft.get("export_dir") or "OUT"))
    model = str(draft.get("model_name_or_path") or "the model")
    return replace(outcome, command=command, purpose=PURPOSES.get(draft.purpose, ""), advice=advice(model))
