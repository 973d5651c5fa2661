"""Which data sets, and how they fill batches: the arguments of LLaMA-Factory about the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erniecore_key_tables import Left, one_of

from erniecore_llamafactory.datasets import DataSet, data_set
from erniecore_llamafactory.draft import LlamaDraft

MIXES = {
    "concat": "concat",
    "interleave_under": "interleave-under",
    "interleave_over": "interleave-over",
    "interleave_once": "concat",
}


def data(draft: LlamaDraft) -> None:
    """``data.*`` but for packing, and ``formats.*``."""
    train = _sets(draft, "dataset")
    has_eval = _sets(draft, "eval_dataset") if wants_evaluation(draft) else []
    if train:
        sources = _sources(draft, train)
        weights = () if "interleave_probs" in {**draft.dropped, **draft.problems} else ("interleave_probs",)
        draft.set("data.train", sources, "dataset", "dataset_dir", *weights)
    elif draft.purpose == "train" and not draft.has("dataset"):
        draft.note("hint", "no data: name files with --data FILE", "dataset")
    if has_eval:
        draft.set("data.eval", [_source(found) for found in has_eval], "eval_dataset", "dataset_dir")
    _formats(draft, [*train, *has_eval])
    for text in dict.fromkeys(note for found in (*train, *has_eval) for note in found.notes):
        draft.note("differs", text, "dataset")
    _validation(draft, bool(has_eval))
    draft.drop("there is no evaluation", "eval_dataset")
    draft.drop("no data set is named", "dataset_dir")
    if draft.has("max_samples"):
        draft.leave(Left("every row is used: cut the files, or give train.max_steps", differs=True), "max_samples")
    draft.carry("cutoff_len", "data.max_seq_len", pin=True)
    if draft.has("disable_shuffling"):
        draft.set("data.shuffle", not draft.get("disable_shuffling"), "disable_shuffling")
    _rows(draft)


def wants_evaluation(draft: LlamaDraft) -> bool:
    """Whether rows are held out: there are some, and ``do_eval`` or a strategy asks for them."""
    asked = bool(draft.get("do_eval")) or strategy(draft) in ("steps", "epoch")
    return asked and (draft.has("eval_dataset") or draft.get("val_size") > 0)


def strategy(draft: LlamaDraft) -> str:
    """``eval_strategy`` by either name; YAML 1.1 reads ``no`` as false."""
    name = (
        "eval_strategy" if draft.has("eval_strategy") or not draft.has("evaluation_strategy") else "evaluation_strategy"
    )
    said = str(draft.get(name)).lower()
    return "no" if said == "false" else said


def _sets(draft: LlamaDraft, old: str) -> list[DataSet]:
    """The data sets that an argument names; what is wrong with them becomes its problem."""
    names = draft.get(old) if draft.has(old) else []
    if not names:
        return []
    if draft.around.info.problem:
        draft.fault(old, draft.around.info.problem)
        return []
    found, wrong = [], []
    for name in names:
        try:
            found.append(data_set(name, draft.around.info, str(draft.get("stage"))))
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        draft.fault(old, "; ".join(wrong))
    return found


def _source(found: DataSet) -> dict[str, Any]:
    return {"path": found.path, "format": found.format}


def _sources(draft: LlamaDraft, found: Sequence[DataSet]) -> list[dict[str, Any]]:
    """Training sources with their weights, and ``data.mix``."""
    sources = [_source(one) for one in found]
    if len(found) < 2:
        draft.drop("a single data set is not mixed", "mix_strategy", "interleave_probs")
        return sources
    try:
        mix = one_of(str(draft.get("mix_strategy")), MIXES)
    except ValueError as error:
        draft.fault("mix_strategy", str(error))
        return sources
    if draft.has("mix_strategy"):
        draft.set("data.mix", mix, "mix_strategy")
    if draft.get("mix_strategy") == "interleave_once":
        draft.note("differs", "every row once, in random order, not in turn", "mix_strategy")
    if mix == "concat":
        draft.drop("concat takes every row of every data set", "interleave_probs")
        return sources
    if not draft.has("interleave_probs"):
        return sources
    try:
        weights = [float(text) for text in draft.get("interleave_probs")]
    except ValueError:
        weights = []
    if len(weights) != len(sources) or any(not 0 < weight < float("inf") for weight in weights):
        draft.fault("interleave_probs", f"must be {len(sources)} numbers above 0, one per data set")
        return sources
    return [{**source, "weight": weight} for source, weight in zip(sources, weights, strict=True)]


def _formats(draft: LlamaDraft, found: Sequence[DataSet]) -> None:
    """Columns are settings of a format, so all data sets of a format must have the same."""
    for form in dict.fromkeys(one.format for one in found):
        same = [one for one in found if one.format == form]
        fields = {one.field for one in same if one.field and not one.path.endswith(".txt")}
        columns = same[0].columns
        if any(one.columns != columns for one in same) or len(fields) > 1:
            paths = " and ".join(one.path for one in same)
            draft.fault("dataset", f"{paths} have other names for the same columns: rename them in the files")
        elif fields:
            draft.set("formats.text.field", fields.pop(), "dataset")
        elif columns:
            draft.set(f"formats.{form}.columns", dict(columns), "dataset")


def _validation(draft: LlamaDraft, has_eval: bool) -> None:
    size = float(draft.get("val_size"))
    if has_eval or not wants_evaluation(draft):
        draft.drop("`eval_dataset` decides" if has_eval else "there is no evaluation", "val_size")
    elif 0 < size < 1:
        draft.set("data.eval_fraction", size, "val_size")
    elif draft.has("val_size"):
        text = "a share is held out, not a number of rows: nothing is; data.eval_fraction=0.1 holds a tenth out"
        draft.leave(Left(text, differs=True), "val_size")


def _rows(draft: LlamaDraft) -> None:
    """What of a row is learned: the chat template and the method decide."""
    template = str(draft.get("template") or "")
    if template and not template.startswith("ernie") and template not in ("empty", "default"):
        text = f"the chat template of the model directory is used, or model.template; not {template}"
        draft.leave(Left(text, differs=True), "template")
    draft.drop("the chat template of the model directory is used, or `model.template`", "template")
    for old, text in {
        "train_on_prompt": "the turns of the assistant are learned, nothing else",
        "mask_history": "every turn of the assistant is learned, not the last alone",
        "default_system": "rows without a system text have none; write it into the rows as `system`",
    }.items():
        if draft.has(old):
            draft.leave(Left(text, differs=bool(draft.get(old))), old)


def packing(draft: LlamaDraft) -> None:
    """``data.packing``: on by default for documents alone."""
    documents = str(draft.get("stage")) == "pt"
    neat = bool(draft.get("neat_packing"))
    on = bool(draft.get("packing")) if draft.has("packing") else (documents or neat)
    how = ("sequential" if documents else "greedy") if on else "none"
    if draft.purpose != "train":
        return
    draft.set("data.packing", how, "packing", *(("neat_packing",) if neat else ()))
    if on and documents:
        draft.set("method.document_mask", False, "packing")
    elif on and not neat:
        draft.note("differs", "packed samples never see each other, as with neat_packing: true", "packing")
    draft.drop(f"`data.packing` is {how}; packed samples never see each other", "neat_packing")
