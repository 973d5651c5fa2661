"""Which rows, from where, and how they fill batches: the keys of ERNIEKit about the data."""

from __future__ import annotations

from typing import Any

from erniecore_key_tables import Left, one_of

from erniecore_erniekit import rules
from erniecore_erniekit.convert_model import VISION, stage
from erniecore_erniekit.convert_training import wants_evaluation
from erniecore_erniekit.draft import ErniekitDraft as Draft
from erniecore_erniekit.keys_data import SOURCES

#: reader class of text among images -> format
READERS = {"KnowledgeBasedSFTReader": "erniekit", "FunctionCallSFTReader": "messages"}


def data(draft: Draft) -> None:
    """``data.*`` but for packing."""
    kind = str(draft.get("dataset_type"))
    if kind not in ("iterable", "map", "pretrain"):
        draft.fault("dataset_type", "must be iterable, map or pretrain")
    if kind == "map":
        text = "an index of ERNIEKit's own cannot be read: name the files that it was made of as train_dataset_path"
        draft.leave(Left(text, differs=True), "dataset_type")
    found = _token_files(draft) if draft.has("input_dir") else _training(draft)
    draft.drop("only with `input_dir`", "split")
    draft.drop("rows, one after the other", "dataset_type")
    _mix(draft, found)
    _evaluation(draft)
    for split in ("train", "eval"):
        setting = draft.settings.get(f"data.{split}")
        if stage(draft) == "PT" and setting and any(source.get("format") == "text" for source in setting.value):
            draft.set("formats.text.field", "tgt", f"{split}_dataset_type")
    draft.carry("max_seq_len", "data.max_seq_len", pin=True)
    if stage(draft) != "PT":
        draft.set("data.too_long", "turns", "max_seq_len")
    if draft.has("use_template"):
        if not draft.get("use_template") and stage(draft) != "PT":
            draft.leave(
                Left("conversations are always rendered; plain text is stage: PT", differs=True), "use_template"
            )
        draft.drop("conversations are always rendered, plain text never", "use_template")


def _formats(draft: Draft, old: str) -> list[str]:
    """Our names of the formats."""
    if stage(draft) in VISION and not draft.has(old):
        return [""]
    found = []
    for name in draft.get(old):
        try:
            found.append(one_of(name, rules.FORMATS))
        except ValueError as error:
            draft.fault(old, str(error))
    texts = stage(draft) == "PT"  # whose rows have a `tgt` alone
    return ["text" if texts and name == "erniekit" else name for name in found] or [""]


def _list(draft: Draft, split: str) -> list[dict[str, Any]]:
    """The sources of ``train``, ``eval`` or ``text``."""
    names = [f"{split}_dataset_{word}" for word in ("path", "type", "prob")]
    if not draft.has(names[0]):
        return []
    types = [READERS.get(str(draft.get("dataset_name")), "")] if split == "text" else _formats(draft, names[1])
    try:
        return rules.sources(draft.get(names[0]), types, draft.get(names[2]) if draft.has(names[2]) else [])
    except ValueError as error:
        fault = next((old for old in (names[2], names[1]) if old in draft.given and draft.has(old)), names[0])
        draft.fault(fault, str(error))
        return []


def _training(draft: Draft) -> list[dict[str, Any]]:
    found, further = _list(draft, "train"), _list(draft, "text")
    olds = ["train_dataset_path", "train_dataset_type", "train_dataset_prob"]
    if further:
        share = (1.0, 1.0)
        try:
            share = rules.ratio(str(draft.get("modality_ratio") or "[1,1]"))
        except ValueError as error:
            draft.fault("modality_ratio", str(error))
        found = [*_scaled(found, share[0]), *_scaled(further, share[1])]
        olds += ["text_dataset_path", "dataset_name", "modality_ratio", "text_dataset_prob"]
    if len(found) > 1 and draft.get("mix_strategy") == "concat":
        found = [{k: v for k, v in source.items() if k != "weight"} for source in found]
        draft.drop(
            "concat takes every row of every source", "train_dataset_prob", "text_dataset_prob", "modality_ratio"
        )
    if found:
        draft.set("data.train", found, *(old for old in olds if old not in draft.dropped))
        if draft.purpose == "train" and not draft.has("train_dataset_type") and stage(draft) not in VISION:
            draft.note("default", "erniekit, the default of ERNIEKit", "train_dataset_type")
    draft.drop("there is no train_dataset_path", "train_dataset_type", "train_dataset_prob")
    draft.drop("only with `text_dataset_path`", "dataset_name", "text_dataset_prob", "modality_ratio")
    return found


def _scaled(found: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    """Sources whose weights sum to ``share``."""
    total = sum(source.get("weight", 1.0) for source in found) or 1.0
    return [{**source, "weight": share * source.get("weight", 1.0) / total} for source in found]


def _token_files(draft: Draft) -> list[dict[str, Any]]:
    try:
        parts = rules.blend(str(draft.get("input_dir")))
        fraction = rules.eval_fraction(str(draft.get("split")))
    except ValueError as error:
        draft.fault("input_dir", str(error))
        return []
    found: list[dict[str, Any]] = [{"path": path} for _, path in parts]
    if len(parts) > 1:
        found = [{**source, "weight": weight} for source, (weight, _) in zip(found, parts, strict=True)]
    draft.set("data.train", found, "input_dir", "dataset_type")
    if wants_evaluation(draft) and fraction:
        draft.set("data.eval_fraction", fraction, "split")
    draft.drop("`input_dir` decides", *(key.old for key in SOURCES if key.new == "data.train"))
    return found


def _mix(draft: Draft, found: list[dict[str, Any]]) -> None:
    """``data.mix``, which matters for several sources."""
    if len(found) < 2:
        draft.drop("a single source is not mixed", "mix_strategy")
        return
    try:
        mix = one_of(str(draft.get("mix_strategy")), rules.MIXES)
    except ValueError as error:
        draft.fault("mix_strategy", str(error))
        return
    draft.set("data.mix", mix, "mix_strategy")
    if mix == "weighted" and draft.get("max_steps") <= 0:
        text = (
            "an epoch of several sources has as many samples as they have together; in ERNIEKit the sum of size times "
            "probability. train.max_steps or data.epoch_samples says it exactly"
        )
        draft.note("differs", text, "mix_strategy", "num_train_epochs")


def _evaluation(draft: Draft) -> None:
    if wants_evaluation(draft):
        found = [{k: v for k, v in source.items() if k != "weight"} for source in _list(draft, "eval")]
        if found:
            draft.set("data.eval", found, "eval_dataset_path", "eval_dataset_type", "do_eval")
        elif draft.purpose == "train" and not draft.has("input_dir"):
            text = "no eval_dataset_path: nothing is held out. ERNIEKit evaluates on a sample file of its own"
            draft.note("differs", text, "do_eval", "eval_dataset_path")
    draft.drop("there is no evaluation: `do_eval` is off", "eval_dataset_path", "eval_dataset_type")
    draft.drop("there is nothing to evaluate on", "do_eval")
    draft.drop("every held-out row is evaluated once", "eval_dataset_prob")


def packing(draft: Draft) -> None:
    """Convert the keys behind ``data.packing``."""
    olds = ("packing", "greedy_intokens", "padding")
    if not draft.get("packing"):
        how, unused = "none", ["greedy_intokens", "padding"]
    elif not draft.get("padding"):
        how, unused = "padding-free", ["greedy_intokens"]
    else:
        how, unused = "greedy" if draft.get("greedy_intokens") else "sequential", []
    if any(draft.has(old) for old in olds):
        draft.set("data.packing", how, *(old for old in olds if old not in unused))
    draft.drop(f"`data.packing` is {how}", *olds)
